"""Declared hand-overs (rule DP-2): a sequence leaves one replica and goes on at another, with its whole cache.

A hand-over is declared by two facts, ``handed_over`` on the replica that is left and ``received`` on the other one,
and by the rows of ``moves`` between them. What they are held to is in ``handed_over`` and ``resharded``.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import ADMITTED, ARRIVED, HANDED_OVER, RECEIVED, History
from clustersim.legality.timeline_rules.pieces import BoolArray, Pieces
from clustersim.timeline.tables import HOST, Table

NONE = -1


class HandOvers:
    """What a history says of hand-overs.

    Parameters
    ----------
    history : History

    Attributes
    ----------
    request : int64 array of shape (hand-overs,)
        Ascending; those of which both facts were recorded, once each.
    source, target, left_ns, came_ns, entries, reached : int64 arrays
        Replicas, when it left and arrived, and the entries that both facts name.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        facts = history.facts
        left, came = _told(facts, HANDED_OVER), _told(facts, RECEIVED)
        self.left, self.came = left, came
        both = np.intersect1d(left["request"], came["request"])
        self.request = both
        at_left, at_came = (np.searchsorted(one["request"], both) for one in (left, came))
        self.source, self.left_ns, self.entries = (left[name][at_left] for name in ("replica", "time_ns", "value"))
        self.target, self.came_ns, self.reached = (came[name][at_came] for name in ("replica", "time_ns", "value"))

    def __len__(self) -> int:
        return len(self.request)

    def of(self, requests: Int64Array) -> Int64Array:
        """Return the hand-over of each request, −1 where there is none."""
        at = np.minimum(np.searchsorted(self.request, requests), max(len(self) - 1, 0))
        return np.where(self.request[at] == requests, at, NONE) if len(self) else np.full(len(requests), NONE)

    def declares(self, pieces: Pieces) -> BoolArray:
        """Return whether a hand-over led from the replica of the piece before each to its own."""
        before = np.arange(len(pieces)) - 1
        at = self.of(pieces.request)
        found = pieces.follows & (at >= 0)
        if len(self):
            found &= (pieces.replica[before] == self.source[at]) & (pieces.replica == self.target[at])
        return found

    def last_piece(self, pieces: Pieces) -> Int64Array:
        """Return what each hand-over's sequence did last where it left, as a position in ``pieces``; −1: nothing."""
        found = np.full(len(self), NONE, np.int64)
        if len(self) and len(pieces):
            last = np.append(self.declares(pieces)[1:], False)
            last[pieces.closes] = True  # it has done nothing yet where it came
            last = np.flatnonzero(last)
            at = self.of(pieces.request[last])
            mine = (at >= 0) & (pieces.replica[last] == self.source[at])
            found[at[mine]] = last[mine]
        return found

    @cached_property
    def reserved(self) -> Int64Array:
        """Facts that admit a request for the first time on another replica than it arrived at: blocks to receive it."""
        facts = self.history.facts
        if facts is None or not (self.history.pools or self.left["request"].size or self.came["request"].size):
            return np.empty(0, np.int64)
        home = np.full(int(facts["request"].max(initial=-1)) + 1, NONE, np.int64)
        arrived = facts["kind"] == ARRIVED
        home[facts["request"][arrived]] = facts["replica"][arrived]
        rows = np.flatnonzero((facts["kind"] == ADMITTED) & (facts["replica"] != home[facts["request"]]))
        rows = rows[np.lexsort((facts["time_ns"][rows], facts["request"][rows]))]
        request = facts["request"][rows]
        return np.sort(rows[np.concatenate((np.ones(1, bool), request[1:] != request[:-1]))[: len(rows)]])

    @cached_property
    def moves(self) -> Table | None:
        """Transfers from replica to replica, in order of their requests."""
        moves = self.history.moves
        if moves is None:
            return None
        rows = np.flatnonzero((moves["from_rank"] != HOST) & (moves["to_rank"] != HOST))
        rows = rows[np.argsort(moves["request"][rows], kind="stable")]
        return {name: values[rows].astype(np.int64) for name, values in moves.items()}


def _told(facts: Table | None, kind: int) -> dict[str, Int64Array]:
    names = ("request", "replica", "time_ns", "value")
    if facts is None or "value" not in facts:
        return dict.fromkeys(names, np.empty(0, np.int64))
    rows = np.flatnonzero(facts["kind"] == kind)
    rows = rows[np.argsort(facts["request"][rows], kind="stable")]
    return {name: facts[name][rows].astype(np.int64) for name in names}
