"""The dataflow of a step as each rank sees it, with collectives and transfers contracted away."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS, TRANSFER_OPS
from clustersim.legality.graph_rules.views.graph import DATA, KV, BoolArray, GraphView

LOGICAL: Final = ("dispatch", "combine")
"""Operators of the model that are collectives under EP; they stay."""


def contains(ordered: Int64Array, wanted: Int64Array) -> BoolArray:
    """Return which of ``wanted`` are in an ascending array."""
    if not len(ordered):
        return np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    found: BoolArray = ordered[at] == wanted
    return found


def on_one_rank(view: GraphView) -> BoolArray:
    """Return which edges have a rank that takes part at both ends."""
    edge, rank = view.rows
    both = view.takes_part(view.source[edge], rank) & view.takes_part(view.target[edge], rank)
    found = np.zeros(len(view.source), bool)
    found[edge[both]] = True
    return found


def _each_once(columns: Int64Array) -> Int64Array:
    """Return the distinct columns of a matrix in ascending order: as ``numpy.unique``, which compares whole columns."""
    ordered = columns[:, np.lexsort(columns[::-1])]
    first = np.ones(ordered.shape[1], bool)
    first[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    return ordered[:, first]


def contracted(view: GraphView, *, transfers: bool = False) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return (source, target, rank) of the dataflow between operators of one rank, stage and step.

    A collective (or a chain of them) is bridged: what entered it on a rank goes on to what it feeds on that rank.
    What enters a TP collective from another layer or step is left out (rule TP-7 speaks of that), and so is the K/V of
    other ranks that SP ranks gather or pass on (rules SP-2 and SP-5). Phase boundaries and the move of K/V before them
    are no part of the dataflow of tokens. With ``transfers``, sends and receives stay.
    """
    edge, rank = view.rows
    source, target = view.source[edge], view.target[edge]
    kind, layer = view.kind[edge], view.layer
    joins = view.mask(lambda node: node.axis in ("tp", "expert_tp"))
    apart = view.mask(lambda node: node.op == "boundary" or node.name == "kv_move")
    ops = COLLECTIVE_OPS if transfers else COLLECTIVE_OPS + TRANSFER_OPS
    dropped = view.mask(lambda node: node.op in ops and node.name not in LOGICAL)
    exposes = view.mask(lambda node: node.axis == "sp" and node.op != "all_to_all")
    joined = view.mask(lambda node: node.op in COLLECTIVE_OPS)
    entries = view.named("attention_prefill", "kv_b_proj")
    same_layer = layer[source] == layer[target]
    kept = (
        view.within_step[edge]
        & (view.stage[source] == view.stage[target])
        & ((kind == DATA) | ((kind == KV) & same_layer))
        & ~apart[source]
        & ~apart[target]
        & (same_layer | ~joins[target])
        & ~((kind == KV) & exposes[source])
        & ~(entries[target] & (exposes & joined)[source])
    )
    source, target, rank = source[kept], target[kept], rank[kept]
    width = max(1, view.num_ranks)
    inner = dropped[source]
    order = np.argsort(source[inner] * width + rank[inner], kind="stable")
    keys = (source[inner] * width + rank[inner])[order]
    following = target[inner][order]
    first, last, at = source[~inner], target[~inner], rank[~inner]
    parts = []
    for _ in range(len(view.symbols) + 1):  # no chain of collectives is longer, unless it is a cycle (RUN-1)
        ended = ~dropped[last]
        parts.append(np.stack([first[ended], last[ended], at[ended]]))
        first, last, at = first[~ended], last[~ended], at[~ended]
        if not len(first):
            break
        key = last * width + at
        low, high = np.searchsorted(keys, key, "left"), np.searchsorted(keys, key, "right")
        counts = high - low
        places = np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        grown = np.stack([np.repeat(first, counts), following[places], np.repeat(at, counts)])
        first, last, at = _each_once(grown)
    found = np.concatenate(parts, axis=1)
    return found[0], found[1], found[2]
