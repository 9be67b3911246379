"""RUN-4: as many requests wait and run, when a step starts, as the record has on its replica.

::

    arrived        admitted                    preempted     admitted              finished
       │   waits      │          runs              │  waits     │       runs           │

A stay ends with the next fact of its request in its pool. Three ends are not told by facts: one that leaves for another
pool runs until its prompt is computed, one that is swapped out until its copy is asked for, which is between its last
step and the start of the copy, and one that comes back from the end of its copy on. Who waits when its replica fails
goes to another one, and no fact says to which before it is admitted there. So each count has a least and a most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    HANDED_OVER,
    PREEMPTED,
    RECEIVED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.views.pieces import Pieces
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.residency import Residency
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.columns import is_any
from clustersim.timeline.passes import parts
from clustersim.timeline.rows_of import RowsOf
from clustersim.values import dataclass

NONE: Final = -1
NEVER: Final = np.iinfo(np.int64).max
Until = Callable[[Int64Array], Int64Array]
"""Rows of facts → when what they begin ends."""
FIX: Final = "count the requests that wait and run when a step starts"
_WORDS: Final = (
    "says that {told:,} requests {word} when it starts, and by the facts {least:,} to {most:,} do",
    "says that {told:,} requests {word} when it starts, and by the facts {most:,} do",
)
_TURN: Final = ((ARRIVED, 0), (SWAPPED_OUT, 1), (RECEIVED, 1), (PREEMPTED, 2))
"""Which facts of one instant come before others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stays:
    """Stretches of time in which a request waits, or runs, on a replica: int64 arrays of shape (stays,).

    Parameters
    ----------
    replica : int64 array
        −1: any of them.
    begin, end : int64 arrays
        From when it surely does, and until when; nothing is sure where the end is not behind the beginning.
    early, late : int64 arrays
        From when it may, and until when.
    """

    replica: Int64Array
    begin: Int64Array
    end: Int64Array
    early: Int64Array
    late: Int64Array

    @property
    def is_exact(self) -> bool:
        """Whether nothing is open."""
        return np.array_equal(self.early, self.begin) and np.array_equal(self.late, self.end)

    def counts(self, runs: Runs) -> tuple[Int64Array, Int64Array]:
        """Return how many there are at least, and at most, when the first of each run of steps starts."""
        if self.is_exact:
            exact = _count(runs, self.replica, self.begin, self.end)
            return exact, exact
        sure = self.end > self.begin
        least = _count(runs, self.replica[sure], self.begin[sure], self.end[sure])
        return least, _count(runs, self.replica, self.early, self.late)


def _count(runs: Runs, replica: Int64Array, begin: Int64Array, end: Int64Array) -> Int64Array:
    found = np.zeros(len(runs), np.int64)
    astray = replica < 0
    everywhere = [np.sort(times[astray]) for times in (begin, end)]
    stays = RowsOf(replica)
    for number in runs.replicas:
        mine = slice(int(runs.bounds[number]), int(runs.bounds[number + 1]))
        here = stays.of(number)
        at = runs.start[mine]
        for begins, ends in ((np.sort(begin[here]), np.sort(end[here])), everywhere):
            for some in parts(len(at), 8) if len(begins) else ():
                come, gone = (np.searchsorted(edges, at[some], side="right") for edges in (begins, ends))
                found[mine][some] += come - gone
    return found


def as_present(reading: Reading) -> Finding:
    """Judge how many requests steps say that wait and run."""
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    waiting, running = runs.column("waiting"), runs.column("running")
    if waiting is None or running is None or pieces is None or reading.history.facts is None:
        return NOTHING
    waits, runs_then = _stays(reading, pieces)
    both = [stays.counts(runs) for stays in (waits, runs_then)]
    told = [waiting, running]
    words = ["wait", "run"]
    told_apart = waits.is_exact and runs_then.is_exact
    if not (
        told_apart or reading.declared.down or reading.history.hands_over
    ):  # whoever leaves and may still run waits if not
        together = both[0][0] + both[1][1]
        both, told, words = [*both, (together, together)], [*told, waiting + running], [*words, "wait or run"]
    return merged(*(
        judged(
            len(runs), (said < least) | (said > most), Rows(runs),
            Rows(_WORDS, (least == most).astype(np.int64)), FIX, told=said, word=word, least=least, most=most,
        )
        for word, said, (least, most) in zip(words, told, both, strict=True)
    ))  # fmt: skip


def _stays(reading: Reading, pieces: Pieces) -> tuple[Stays, Stays]:
    """Return when requests wait, and when they run."""
    history, facts = reading.history, reading.history.facts
    assert facts is not None
    kind, time = facts["kind"], facts["time_ns"].astype(np.int64, copy=False)
    order = reading.residency
    if history.hands_over or reading.declared.down:
        later = np.full(len(kind), 3)
        for one, turn in _TURN:
            later[kind == one] = turn
        pool = facts["replica"] >= history.pools[1].first_replica if history.hands_over else np.zeros(len(kind), bool)
        order = Residency({"request": facts["request"].astype(np.int64) * 2 + pool, "time_ns": time}, later)
    follows = order.after(kind != REUSED)

    def until(rows: Int64Array) -> Int64Array:
        return np.where(follows[rows] < 0, NEVER, time[follows[rows]])

    run = _running(reading, pieces, until, np.where(follows < 0, NONE, kind[follows]))
    return _waiting(reading, until, run), run[0]


def _running(
    reading: Reading, pieces: Pieces, until: Until, then: Int64Array
) -> tuple[Stays, dict[tuple[int, int], tuple[int, int, int]]]:
    """Return when requests run; and of those that are swapped out, by request and instant, from when on they wait.

    That is: from when they may, from when they surely do, and until when.
    """
    history, facts = reading.history, reading.history.facts
    assert facts is not None
    begins = is_any(facts["kind"], (ADMITTED, RECEIVED, SWAPPED_IN))
    begins[reading.hand_overs.reserved] = False
    rows = np.flatnonzero(begins)
    kind, early, replica, request = (facts[n][rows].astype(np.int64) for n in ("kind", "time_ns", "replica", "request"))
    begin, late = early.copy(), until(rows)
    end = late.copy()
    open_ended = then[rows] == SWAPPED_OUT
    if history.hands_over:
        goes_on = np.ones(len(rows), bool) if reading.outputs is None else reading.outputs[request] > 1
        at_first = goes_on & (replica < history.pools[1].first_replica)
        open_ended |= at_first
    some = np.flatnonzero(open_ended)
    if len(some):
        end[some] = _last_step(pieces, request[some], replica[some], early[some], late[some])
    if history.hands_over:
        told = at_first & (then[rows] == HANDED_OVER) & (end > early)
        late[told] = end[told]
    away: dict[tuple[int, int], tuple[int, int, int]] = {}
    moves, places = history.moves, {(int(request[at]), int(early[at])): at for at in np.flatnonzero(kind == SWAPPED_IN)}
    outward = {(int(request[at]), int(late[at])): at for at in np.flatnonzero(then[rows] == SWAPPED_OUT)}
    for swap in reading.swaps if moves is not None else ():
        assert moves is not None
        at, back = outward.get((swap.request, swap.out_at)), places.get((swap.request, swap.in_at))
        if back is not None:  # of a copy that was cut off not all parts have ended, and it has not run again
            whole = 0 < len(swap.out) <= len(swap.back)
            early[back] = begin[back] = int(moves["end_ns"][swap.back].max()) if whole else late[back]
        if at is not None and swap.out:
            late[at] = max(int(moves["start_ns"][swap.out].min()), int(end[at]))
        if at is not None:
            away[swap.request, swap.out_at] = int(end[at]), int(late[at]), NONE if back is None else int(begin[back])
    return Stays(replica=replica, begin=begin, end=end, early=early, late=late), away


def _last_step(
    pieces: Pieces, request: Int64Array, replica: Int64Array, begin: Int64Array, until: Int64Array
) -> Int64Array:
    """Return when the last step that carried each request on a replica between two instants ended; else the first."""
    if not len(pieces):
        return begin
    times, rank = np.unique(np.concatenate((pieces.begin, begin, until)), return_inverse=True)
    many, count, width = len(pieces), len(request), len(times) + 1
    key = pieces.request * width + rank[:many]
    order = np.argsort(key, kind="stable")
    at = np.searchsorted(key[order], request * width + rank[many + count :]) - 1
    last = np.append(order, NONE)[at]  # of −1 the one behind the last
    found = (last >= 0) & (pieces.request[last] == request) & (pieces.replica[last] == replica)
    found &= pieces.begin[last] >= begin
    return np.where(found, np.minimum(pieces.end[last], until), begin)


def _waiting(
    reading: Reading,
    until: Until,
    ran: tuple[Stays, dict[tuple[int, int], tuple[int, int, int]]],
) -> Stays:
    """Return when requests wait: to be admitted, or in host memory and on the way there and back."""
    facts, down = reading.history.facts, reading.declared.down
    assert facts is not None
    kind = facts["kind"]
    waits = is_any(kind, (ARRIVED, PREEMPTED, SWAPPED_OUT))
    if reading.hand_overs.reservations is not None:
        waits[reading.hand_overs.reservations.vain] = False
    rows = np.flatnonzero(waits)
    kind, begin, replica, request = (facts[n][rows].astype(np.int64) for n in ("kind", "time_ns", "replica", "request"))
    early, end = begin.copy(), until(rows)
    for at in np.flatnonzero(kind == SWAPPED_OUT).tolist():
        if (found := ran[1].get((int(request[at]), int(begin[at])))) is not None:
            early[at], begin[at], back = found
            end[at] = end[at] if back == NONE else back
    if not down:
        return Stays(replica=replica, begin=begin, end=end, early=early, late=end)
    own = facts["time_ns"].astype(np.int64)
    follows = reading.residency.after(facts["kind"] != REUSED)[rows]
    late = np.where(follows < 0, NEVER, own[follows])
    fails = np.full(len(rows), NEVER)
    for failed, since, back in down:
        until_ns = NEVER if back is None else back
        hit = (replica == failed) & (begin <= until_ns) & (since <= end)  # as it comes back, requests turn again
        fails = np.where(hit, np.minimum(fails, np.maximum(since, begin)), fails)
    if reading.history.hands_over:
        fails = np.where(kind == PREEMPTED, begin, fails)
    moved = fails < NEVER
    sure = np.where(moved, np.minimum(end, fails), end)
    elsewhere = np.flatnonzero(moved)
    none = np.zeros(len(elsewhere), np.int64)
    return Stays(
        replica=np.concatenate((replica, none - 1)),
        begin=np.concatenate((begin, none)), end=np.concatenate((sure, none)),
        early=np.concatenate((early, fails[elsewhere])),
        late=np.concatenate((sure, np.maximum(late, end)[elsewhere])),
    )  # fmt: skip
