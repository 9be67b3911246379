"""Declared hand-overs (rule DP-2): a sequence leaves one replica and goes on at another, with its whole cache.

A hand-over is declared by two facts, ``handed_over`` on the replica that is left and ``received`` on the other one,
and by the rows of ``moves`` between them. What they are held to is in ``handed_over`` and ``resharded``.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import ADMITTED, ARRIVED, HANDED_OVER, RECEIVED, History
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.reservations import Reservations, reservations_of
from clustersim.legality.timeline_rules.views.residency import Residency
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
        Ascending; those of which both facts were recorded, once each; or, where something fails, as often on both
        sides, in the order of time.
    source, target, left_ns, came_ns, entries, reached : int64 arrays
        Replicas, when it left and arrived, and the entries that both facts name.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.left, self.came = left, came = self._told(HANDED_OVER), self._told(RECEIVED)
        self.again = bool(history.declared.down) and history.hands_over
        of_left, of_came = (numbered(one["request"]) if self.again else one["request"] for one in (left, came))
        both = np.intersect1d(of_left, of_came)
        at_left, at_came = (np.searchsorted(one, both) for one in (of_left, of_came))
        self.request = left["request"][at_left]
        self.source, self.left_ns, self.entries = (left[name][at_left] for name in ("replica", "time_ns", "value"))
        self.target, self.came_ns, self.reached = (came[name][at_came] for name in ("replica", "time_ns", "value"))

    def _told(self, kind: int) -> dict[str, Int64Array]:
        names, facts = ("request", "replica", "time_ns", "value"), self.history.facts
        if facts is None or "value" not in facts:
            return dict.fromkeys(names, np.empty(0, np.int64))
        rows = self.residency.among(facts["kind"] == kind)
        return {name: facts[name][rows].astype(np.int64) for name in names}

    def __len__(self) -> int:
        return len(self.request)

    def of(self, requests: Int64Array, times: Int64Array | None = None) -> Int64Array:
        """Return the hand-over of each request, −1 where there is none; of several the last up to an instant."""
        if not len(self):
            return np.full(len(requests), NONE)
        at = np.minimum(np.searchsorted(self.request, requests), len(self) - 1)
        found = np.where(self.request[at] == requests, at, NONE)
        if not self.again or times is None:
            return found
        for turn in range(1, self._most):
            later = np.minimum(at + turn, len(self) - 1)
            mine = (found >= 0) & (at + turn < len(self)) & (self.request[later] == requests)
            found = np.where(mine & (self.came_ns[later] <= times), later, found)
        return found

    @cached_property
    def _most(self) -> int:
        return int(np.bincount(self.request).max(initial=0)) if len(self) else 0

    def following(self, requests: Int64Array, times: Int64Array, source: Int64Array, target: Int64Array) -> Int64Array:
        """Return the hand-over that something of an instant is for, −1 where there is none, or a failure is between."""
        found = self.of(requests)
        if not self.again:
            return found
        first, found = found, np.full(len(requests), NONE)
        for turn in reversed(range(self._most)):
            at = np.minimum(first + turn, len(self) - 1)
            mine = (first >= 0) & (first + turn < len(self))
            mine &= (self.request[at] == requests) & (self.left_ns[at] >= times)
            mine &= ((source < 0) | (self.source[at] == source)) & (self.target[at] == target)
            for failed, since, _ in self.history.declared.down:
                hit = (self.source[at] == failed) | (self.target[at] == failed)
                mine &= ~(hit & (times <= since) & (since < self.left_ns[at]))
            found = np.where(mine, at, found)
        return found

    def of_moves(self, moves: Table) -> Int64Array:
        """Return the hand-over of each transfer, −1 where there is none."""
        names = ("request", "end_ns", "from_replica", "to_replica")
        return self.following(*(moves[name] for name in names))

    @cached_property
    def residency(self) -> Residency:
        """The facts of each request one after the other."""
        assert self.history.facts is not None
        return Residency(self.history.facts)

    @cached_property
    def reservations(self) -> Reservations | None:
        """What facts of the decode pool mean where something fails; else every one means what it says."""
        facts = self.history.facts
        if not self.again or facts is None:
            return None
        failures = frozenset((failed, since) for failed, since, _ in self.history.declared.down)
        return reservations_of(facts, self.history.pools[1].first_replica, failures)

    @property
    def in_vain(self) -> Int64Array:
        """Facts that give blocks back which were set aside for what does not come."""
        return np.empty(0, np.int64) if self.reservations is None else self.reservations.vain

    @cached_property
    def unused(self) -> Int64Array:
        """Requests for which blocks are set aside at the end, and that were not handed over since."""
        facts, reservations = self.history.facts, self.reservations
        if reservations is not None or facts is None:
            return np.empty(0, np.int64) if reservations is None else reservations.open
        gone = facts["request"][facts["kind"] == HANDED_OVER]
        found: Int64Array = np.setdiff1d(facts["request"][self.reserved], gone)
        return found

    def declares(self, pieces: Pieces) -> BoolArray:
        """Return whether a hand-over led from the replica of the piece before each to its own."""
        before = np.arange(len(pieces)) - 1
        at = self.of(pieces.request, pieces.begin)
        found = pieces.follows & (at >= 0)
        if len(self):
            found &= (pieces.replica[before] == self.source[at]) & (pieces.replica == self.target[at])
            if self.again:
                found &= pieces.begin[before] <= self.left_ns[at]
        return found

    def last_piece(self, pieces: Pieces) -> Int64Array:
        """Return what each hand-over's sequence did last where it left, as a position in ``pieces``; −1: nothing."""
        found = np.full(len(self), NONE, np.int64)
        if self.again:
            for number, (request, source, left) in enumerate(zip(self.request, self.source, self.left_ns, strict=True)):
                low, high = np.searchsorted(pieces.request, (request, request + 1))
                piece = int(low + np.searchsorted(pieces.begin[low:high], left)) - 1
                if piece >= low and pieces.replica[piece] == source:
                    found[number] = piece
        elif len(self) and len(pieces):
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
        if self.reservations is not None:
            return self.reservations.reserved
        if facts is None or not (self.history.hands_over or self.left["request"].size or self.came["request"].size):
            return np.empty(0, np.int64)
        home = np.full(int(facts["request"].max(initial=-1)) + 1, NONE, np.int64)
        arrived = facts["kind"] == ARRIVED
        home[facts["request"][arrived]] = facts["replica"][arrived]
        away = (facts["kind"] == ADMITTED) & (facts["replica"] != home[facts["request"]])
        return np.flatnonzero(away & (self.residency.before(away) < 0))

    @cached_property
    def moves(self) -> Table | None:
        """Transfers from replica to replica, in order of their requests."""
        moves = self.history.moves
        if moves is None:
            return None
        rows = np.flatnonzero((moves["from_rank"] != HOST) & (moves["to_rank"] != HOST))
        rows = rows[np.argsort(moves["request"][rows], kind="stable")]
        return {name: values[rows].astype(np.int64) for name, values in moves.items()}


def numbered(request: Int64Array) -> Int64Array:
    """Return a key per row of ascending requests: the request, and the how-manieth of it this is."""
    opens = np.flatnonzero(np.append(True, request[1:] != request[:-1])[: len(request)])
    sizes = np.diff(np.append(opens, len(request)))
    return (request << 32) + np.arange(len(request)) - np.repeat(opens, sizes)
