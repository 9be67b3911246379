"""Who comes before whom: topological levels, and which nodes lie before chosen ones, many at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.legality.graph_rules.views.graph import ORDER, BoolArray, GraphView
from clustersim.values import dataclass


def levels(num_nodes: int, source: Int64Array, target: Int64Array) -> Int64Array:
    """Return the length of the longest path to each node; −1 on and behind cycles (Kahn, 1962).

    Where all edges point forward in the order of numbers, one look at each of them in that order tells.
    """
    if np.all(source < target):
        return _levels_forward(num_nodes, source, target)
    pending = np.bincount(target, minlength=num_nodes)
    order = np.argsort(source, kind="stable")
    offsets = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=num_nodes))))
    following = target[order]
    found = np.full(num_nodes, -1, np.int64)
    place = np.empty(num_nodes, np.int64)
    ready = np.flatnonzero(pending == 0)
    level = 0
    while len(ready):
        found[ready] = level
        counts = offsets[ready + 1] - offsets[ready]
        starts = np.repeat(offsets[ready] - (np.cumsum(counts) - counts), counts)
        after = following[starts + np.arange(len(starts))]
        np.subtract.at(pending, after, 1)
        ready = after[pending[after] == 0]
        numbers = np.arange(len(ready))
        place[ready] = numbers
        ready = ready[place[ready] == numbers]  # each once
        level += 1
    return found


def _levels_forward(num_nodes: int, source: Int64Array, target: Int64Array) -> Int64Array:
    found = [0] * num_nodes
    order = np.argsort(source)
    for one, after in zip(source[order].tolist(), target[order].tolist(), strict=True):
        if found[one] >= found[after]:
            found[after] = found[one] + 1
    return np.array(found, np.int64)


def stuck(num_nodes: int, source: Int64Array, target: Int64Array) -> BoolArray:
    """Return which nodes lie on or behind a cycle; none where all edges point forward in the order of numbers."""
    if np.all(source < target):
        return np.zeros(num_nodes, bool)
    found: BoolArray = levels(num_nodes, source, target) < 0
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """For every node, which of some chosen nodes of its own step it is or comes before, as bits.

    Parameters
    ----------
    bits : uint64 array of shape (nodes, words)
    bit : int array of shape (nodes,)
        Number of a chosen node within its step, −1 of others.
    """

    bits: npt.NDArray[np.uint64]
    bit: Int64Array

    def comes_before(self, node: Int64Array, chosen: Int64Array) -> BoolArray:
        """Return for pairs whether ``node`` is, or comes before, the chosen node of the same step."""
        number = self.bit[chosen]
        word = self.bits[node, np.maximum(number, 0) // 64]
        hit = (word >> (np.maximum(number, 0) % 64).astype(np.uint64)) & np.uint64(1)
        found: BoolArray = (hit == 1) & (number >= 0)
        return found


def _in_program_order(view: GraphView) -> tuple[Int64Array, Int64Array]:
    """Return (write, attention) of one rank, layer and step: its compute stream runs one before the other."""
    writes = np.flatnonzero(view.named("kv_write"))
    cores = np.flatnonzero(view.mask(lambda node: node.op in ("attention_prefill", "attention_decode")))
    if not len(writes):
        return writes, writes
    layers, width = int(view.layer.max(initial=0)) + 2, max(1, view.num_ranks)
    key = (view.step * layers + view.layer + 1) * width + view.rank
    order = np.argsort(key[writes], kind="stable")
    at = np.minimum(np.searchsorted(key[writes][order], key[cores]), len(writes) - 1)
    write = writes[order[at]]
    own = (key[write] == key[cores]) & (write < cores)
    return write[own], cores[own]


def reach(view: GraphView, chosen: Int64Array) -> Reach:
    """Return what comes before the chosen nodes, along the edges inside each step and its programs."""
    inside = np.flatnonzero(view.within_step & (view.kind != ORDER))
    first, then = _in_program_order(view)
    source = np.concatenate((view.source[inside], first))
    target = np.concatenate((view.target[inside], then))
    level = levels(len(view), source, target)
    sound = (level[source] >= 0) & (level[target] >= 0)
    source, target = source[sound], target[sound]
    bit = np.full(len(view), -1, np.int64)
    by_step = chosen[np.argsort(view.step[chosen], kind="stable")]
    counts = np.bincount(view.step[by_step], minlength=len(view.steps))
    bit[by_step] = np.arange(len(by_step)) - np.repeat(np.cumsum(counts) - counts, counts)
    words = int(counts.max(initial=0)) // 64 + 1
    bits = np.zeros((len(view), words), np.uint64)
    bits[by_step, bit[by_step] // 64] = np.uint64(1) << (bit[by_step] % 64).astype(np.uint64)
    order = np.argsort(-level[source], kind="stable")
    source, target = source[order], target[order]
    ends = np.flatnonzero(np.diff(level[source])) + 1
    for begin, end in zip([0, *ends.tolist()], [*ends.tolist(), len(source)], strict=True):
        np.bitwise_or.at(bits, source[begin:end], bits[target[begin:end]])
    return Reach(bits=bits, bit=bit)
