"""What each sequence did, piece by piece: prompt chunks and episodes of decoding, and how far it had come before each.

::

    request 7   chunk [0, 512)   chunk [512, 700)*   120 decode steps   preempted   chunk [0, 820)* …
    computed          0                512                 700                             0
    tokens            0                 0                   1                             121        (* sampled)

Everything follows from the record of steps, chunks and episodes alone.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import ADMITTED, REUSED, History
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.columns import is_one, joined, shelved, taken
from clustersim.timeline.rows_of import in_order
from clustersim.timeline.tables import Table

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Pieces:
    """Pieces in order of (request, replica, step); one whose steps are not in the record is not among them.

    Parameters
    ----------
    history : History
        With steps, chunks and decodes.
    runs : Runs

    Attributes
    ----------
    request, replica, first_step : int64 arrays of shape (pieces,)
    first_run, last_run : int64 arrays
        Where their first and last steps are.
    count : int64 array
        Entries that the piece adds: tokens of the chunk, or steps of the episode.
    start : int64 array
        First token of a chunk; −1 for an episode.
    begin, end : int64 arrays
        Start of its first step, end of its last one, ns.
    reused : int64 array
        Entries that the sequence took over from the prefix cache right before the piece.
    astray : list of (table, row)
        Rows that name steps which are not recorded as such.
    """

    def __init__(self, history: History, runs: Runs) -> None:
        chunks, decodes = history.chunks, history.decodes
        assert chunks is not None
        assert decodes is not None
        at_chunk = runs.at(chunks["replica"], chunks["step"])
        first, last = (runs.at(decodes["replica"], decodes[name]) for name in ("first_step", "last_step"))
        slot = decodes["slot"]
        fits = (first >= 0) & (last >= 0)
        fits &= (runs.slot[first] == slot) & (runs.slot[last] == slot) if len(runs) else False
        fits &= (runs.step[first] == decodes["first_step"]) if len(runs) else False
        fits &= (runs.step[last] + runs.count[last] - 1 == decodes["last_step"]) if len(runs) else False
        fits &= decodes["last_step"] >= decodes["first_step"]
        self.astray = [("chunk", int(row)) for row in np.flatnonzero(at_chunk < 0)]
        self.astray += [("episode", int(row)) for row in np.flatnonzero(~fits)]
        some, these = np.flatnonzero(at_chunk >= 0), np.flatnonzero(fits)
        at_chunk, first, last = at_chunk[some], first[these], last[these]

        def both(of_chunks: Any, of_decodes: Any) -> Int64Array:
            return joined(taken(of_chunks, some), taken(of_decodes, these))

        request, runs_of = both(chunks["request"], decodes["request"]), np.concatenate((at_chunk, first))
        order = in_order(request, runs_of)
        if history.declared.down:  # a sequence may go on at another replica, and come back
            order = np.lexsort((runs_of, runs.start[runs_of], request))
        self._runs = runs
        self.request, self.first_run = request[order], runs_of[order]
        self.replica: Int64Array = taken(both(chunks["replica"], decodes["replica"]), order)
        self.first_step = both(chunks["step"], decodes["first_step"])[order]
        self.last_run = np.concatenate((at_chunk, last))[order]
        steps = runs.place[last] + runs.count[last] - runs.place[first]
        self.count = joined(taken(chunks["count"], some), steps)[order]
        none = np.broadcast_to(np.int64(-1), len(steps))
        self.start = joined(taken(chunks["start"], some), none)[order]
        self._sampled = np.concatenate((chunks["sampled"][some], none.astype(np.int8)))[order]
        self.begin, self.end = runs.start[self.first_run], runs.end[self.last_run]
        self.reused = self._reused(history)
        vars(self).update(shelved({name: one for name, one in vars(self).items() if isinstance(one, np.ndarray)}))

    def __len__(self) -> int:
        return len(self.request)

    @property
    def gave(self) -> Int64Array:
        """Tokens that the request got from each piece."""
        return np.where(self.is_chunk, self._sampled, self.count)

    @property
    def last_step(self) -> Int64Array:
        """The last step of each piece."""
        runs, last = self._runs, self.last_run
        return np.where(self.is_chunk, self.first_step, runs.step[last] + runs.count[last] - 1)

    @property
    def slot(self) -> Int64Array:
        """Slot of the steps of an episode; −1 of a chunk."""
        return np.where(self.is_chunk, -1, self._runs.slot[self.first_run])

    def where(self, at: int) -> str:
        """Return where a piece is."""
        return f"replica {self.replica[at]}, step {self.first_step[at]}, request {self.request[at]}"

    def _reused(self, history: History) -> Int64Array:
        facts = history.facts
        rows = np.empty(0, np.int64)
        if facts is not None and "value" in facts:
            rows = np.flatnonzero(facts["kind"] == REUSED)
        if facts is None or not len(rows):
            return np.broadcast_to(np.int64(0), len(self))
        found = np.zeros(len(self), np.int64)
        at = self.opened_by(facts, rows, failures=bool(history.declared.down))
        found[at[at >= 0]] = facts["value"][rows][at >= 0]
        return found

    def opened_by(self, facts: Table, rows: Int64Array, *, failures: bool) -> Int64Array:
        """Return the piece that each admission, or what goes with it, opens; −1 where none follows.

        With ``failures`` the step that an admission is for may be cut off, and the request admitted again before its
        next piece.
        """
        request, time = facts["request"][rows].astype(np.int64), facts["time_ns"][rows].astype(np.int64)
        at = self.next_of(request, time)
        if not failures:
            return at
        again = np.flatnonzero(facts["kind"] == ADMITTED)
        again = again[np.lexsort((facts["time_ns"][again], facts["request"][again]))]
        who, when = facts["request"][again], facts["time_ns"][again]
        for place in np.flatnonzero(at >= 0).tolist():
            low, high = np.searchsorted(who, (request[place], request[place] + 1))
            later = when[low:high]
            if ((later > time[place]) & (later <= self.begin[at[place]])).any():
                at[place] = -1
        return at

    def next_of(self, request: Int64Array, time: Int64Array) -> Int64Array:
        """Return the first piece of each request that begins at an instant or later; −1 where there is none."""
        order, _, last, at = self.before(request, time)
        found = np.full(len(request), -1, np.int64)
        some = at < last
        found[some] = order[at[some]]
        return found

    def before(self, request: Int64Array, time: Int64Array, *, ended: bool = False) -> tuple[Int64Array, ...]:
        """Return the order of pieces by request and begin (or end), and in it where those of requests are.

        Returns
        -------
        order : int64 array of shape (pieces,)
        first, last, at : int64 arrays of shape (requests,)
            In ``order`` the pieces of each are [first, last), and [first, at) began before the instant, or have ended
            by it.
        """
        order, instants = self._by_end if ended else self._by_begin
        number = self._places_of(request)
        bounds = np.append(self.opens, (len(self), len(self)))
        known = np.append(self._carried, -1)[number] == request
        first = bounds[number]
        last = np.where(known, bounds[number + 1], first)
        at, until = first.copy(), last.copy()
        some = np.flatnonzero(at < until)
        while len(some):  # all requests are halved together
            middle = (at[some] + until[some]) // 2
            early = instants[middle] < time[some] + ended
            at[some[early]] = middle[early] + 1
            until[some[~early]] = middle[~early]
            some = some[at[some] < until[some]]
        return order, first, last, at

    @cached_property
    def _carried(self) -> Int64Array:
        """The requests that have pieces, in their order."""
        return self.request[self.opens]

    def _places_of(self, request: Int64Array) -> Int64Array:
        """Return where requests are among those that have pieces, or would be; where all have, their number says it."""
        carried = self._carried
        if len(carried) and carried[0] == 0 and carried[-1] == len(carried) - 1:
            return np.clip(request, 0, len(carried))
        return np.searchsorted(carried, request)

    @cached_property
    def _by_begin(self) -> tuple[Int64Array, Int64Array]:
        return self._ordered(self.begin)

    @cached_property
    def _by_end(self) -> tuple[Int64Array, Int64Array]:
        return self._ordered(self.end)

    def _ordered(self, instants: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the order by request and instant, and the instants in it."""
        if (self.follows[1:] & (instants[1:] < instants[:-1])).any():
            order = in_order(self.request, instants)
            return order, instants[order]
        return self._places, instants

    @cached_property
    def _places(self) -> Int64Array:
        return np.arange(len(self))

    @cached_property
    def by_instant(self) -> Int64Array | None:
        """The order by request, begin and end; None where they are in it."""
        same = self.follows[1:] & (self.begin[1:] == self.begin[:-1])
        late = self.follows[1:] & (self.begin[1:] < self.begin[:-1])
        if (late | (same & (self.end[1:] < self.end[:-1]))).any():
            return in_order(self.request, self.begin, self.end)
        return None

    @cached_property
    def is_chunk(self) -> BoolArray:
        """Whether each piece is a prompt chunk."""
        found: BoolArray = self.start >= 0
        return found

    @cached_property
    def follows(self) -> BoolArray:
        """Whether each piece is of the same request as the one before it in the table."""
        return np.concatenate((np.zeros(1, bool), self.request[1:] == self.request[:-1]))[: len(self)]

    @cached_property
    def opens(self) -> Int64Array:
        """Position of the first piece of each request that has any."""
        return np.flatnonzero(~self.follows)

    @cached_property
    def restarts(self) -> BoolArray:
        """Whether a piece begins to compute the sequence anew, at token 0 or behind what it took over."""
        found: BoolArray = ((self.start == 0) | (self.reused > 0)) & self.follows
        return found

    @cached_property
    def turn(self) -> Int64Array:
        """How often the sequence had been begun anew."""
        if not self.restarts.any():
            return np.broadcast_to(np.int64(0), len(self))
        return self._since(self.restarts.astype(np.int64), self.opens)

    @cached_property
    def computed(self) -> Int64Array:
        """Entries that the sequence has before each piece."""
        opens = np.flatnonzero(~self.follows | self.restarts)
        found = self._before(self.count, opens)
        return found if is_one(self.reused) else found + self.reused[opens][self.turn_of]

    @cached_property
    def turn_of(self) -> Int64Array:
        """Number of the turn of each piece: pieces from one admission of a request to the next are one."""
        return np.cumsum(~self.follows | self.restarts) - 1

    @cached_property
    def tokens(self) -> Int64Array:
        """Tokens that the sequence got before each piece."""
        return self._before(self.gave, self.opens)

    def _since(self, values: Int64Array, opens: Int64Array) -> Int64Array:
        total = np.cumsum(values)
        counts = np.diff(np.append(opens, len(self)))
        found: Int64Array = total - np.repeat(total[opens] - values[opens], counts)
        return found

    def _before(self, values: Int64Array, opens: Int64Array) -> Int64Array:
        return self._since(values, opens) - values

    def ended_before(self, request: Int64Array, time: Int64Array) -> Int64Array:
        """Return how many pieces of requests had ended at given instants."""
        _, first, _, at = self.before(request, time, ended=True)
        return at - first

    @cached_property
    def closes(self) -> Int64Array:
        """Position of the last piece of each request, in the order of ``opens``."""
        return np.append(self.opens[1:], len(self))[: len(self.opens)] - 1
