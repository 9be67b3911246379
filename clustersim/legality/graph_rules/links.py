"""The edges between steps: which nodes of a step wait for which of the step before it in the lane."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.legality.graph_rules.views.dataflow import contains
from clustersim.legality.graph_rules.views.graph import BoolArray, GraphView, once
from clustersim.legality.graph_rules.views.reach import Reach, reach
from clustersim.values import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Links:
    """Edges from one step to another, and what comes before their sources."""

    source: Int64Array
    target: Int64Array
    before: Reach

    def masks(self, view: GraphView, waiting: Int64Array, before: int) -> npt.NDArray[np.uint64]:
        """Return for each of ``waiting`` the nodes of step ``before`` that links make it wait for, as bits."""
        word = self.before.bits.shape[1]
        found = np.zeros((len(waiting), word), np.uint64)
        ordered = np.argsort(waiting, kind="stable")
        here = np.flatnonzero(view.step[self.source] == before)
        here = here[contains(waiting[ordered], self.target[here])]
        at = ordered[np.searchsorted(waiting[ordered], self.target[here])]
        bit = self.before.bit[self.source[here]]
        np.bitwise_or.at(found, (at, bit // 64), np.uint64(1) << (bit % 64).astype(np.uint64))
        return found

    def awaited(self, view: GraphView, node: Int64Array, waiting: Int64Array) -> BoolArray:
        """Return for pairs (node of one step, node of a later step) whether links make the second wait for the first.

        All of ``node`` are of one step. A node is waited for when it is the source of a link, or comes before one.
        """
        if not len(node):
            return np.zeros(0, bool)
        distinct, which = np.unique(waiting, return_inverse=True)
        masks = self.masks(view, distinct, int(view.step[node[0]]))
        return np.asarray((self.before.bits[node] & masks[which.ravel()]).any(axis=1), bool)

    def unlike(self, view: GraphView, waiting: Int64Array, before: int) -> Int64Array:
        """Return one of each kind of ``waiting``: those that wait for the same nodes of step ``before`` are alike."""
        masks = self.masks(view, waiting, before)
        return waiting[np.unique(masks, axis=0, return_index=True)[1]]


@once
def links(view: GraphView) -> Links:
    """Return the edges between steps of one lane."""
    lane = np.array([(step.replica << 32) + step.lane for step in view.steps], np.int64)[view.step]
    across = np.flatnonzero(~view.within_step & (lane[view.source] == lane[view.target]))
    source, target = view.source[across], view.target[across]
    return Links(source=source, target=target, before=reach(view, np.unique(source)))


def successions(view: GraphView) -> Iterator[tuple[int, int]]:
    """Yield (step, the step behind it in its lane)."""
    last: dict[tuple[int, int], int] = {}
    for at, step in enumerate(view.steps):
        key = (step.replica, step.lane)
        if key in last:
            yield last[key], at
        last[key] = at


def pairs_of(first: Int64Array, second: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return every pair of the two lists."""
    return np.repeat(first, len(second)), np.tile(second, len(first))
