"""K/V blocks in use over time, as they follow from what was computed: ceil(entries / block size) per sequence.

A step takes the blocks that its new tokens need when it is decided; the end or the preemption of a sequence gives all
of its blocks back at that instant, and so does a swap to its host, which takes as many again when it comes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import (
    ADMITTED,
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    PREEMPTED,
    RECEIVED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
    History,
)
from clustersim.legality.timeline_rules.views.grouping import without
from clustersim.legality.timeline_rules.views.hand_overs import HandOvers
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.legality.timeline_rules.views.swaps import at_rest, held_at
from clustersim.timeline.columns import is_any
from clustersim.timeline.passes import blocks, parts, within
from clustersim.timeline.rows_of import RowsOf, in_order
from clustersim.timeline.tables import Table
from clustersim.values import dataclass

MEMBERS: Final = (ADMITTED, RECEIVED, PREEMPTED, FINISHED, CANCELLED, HANDED_OVER, SWAPPED_OUT, SWAPPED_IN)
"""Facts by which a sequence comes to run, or no longer does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Use:
    """Blocks in use as they follow from the pieces.

    Parameters
    ----------
    at_run : int64 array of shape (runs,)
        When the first step of each run was decided.
    at_last : int64 array of shape (runs,)
        When the last step of each run was decided.
    ends : int64 array of shape (ends,)
        Rows of facts that end a request, that say one was swapped out, or the last that preempts one at an instant.
    at_end : int64 array of shape (ends,)
        Right after each.
    most : int64 array of shape (ends,)
        Right after it at most: a preemption is decided together with a step, whose blocks may be taken before or after.
    certain : bool array of shape (ends,)
        Whether no step that the record lacks, because it was in flight at the horizon or when something failed, can
        have taken blocks before.
    others, least, greatest : int64 arrays of shape (others,)
        Rows of further facts, and what can be in use right after each: it is decided at one instant with others.
    """

    at_run: Int64Array
    at_last: Int64Array
    ends: Int64Array
    at_end: Int64Array
    most: Int64Array
    certain: BoolArray
    others: Int64Array
    least: Int64Array
    greatest: Int64Array


def use_of(history: History, pieces: Pieces, runs: Runs, facts: Table, size: int, hand_overs: HandOvers) -> Use:
    """Return the blocks in use.

    Parameters
    ----------
    history : History
    pieces, runs, facts
        Of this history.
    size : int
        Tokens per block.
    hand_overs : HandOvers
        Of this history.
    """
    first_takes, takes = _takes(pieces, runs, size)
    before, first_taken = (np.concatenate((np.zeros(1, np.int64), np.cumsum(each))) for each in (takes, first_takes))
    rows, _, given_back = returns(history, pieces, size, hand_overs)
    replica, time = (facts[name][rows].astype(np.int64, copy=False) for name in ("replica", "time_ns"))
    at_run, at_fact, together = (np.zeros(many, np.int64) for many in (len(runs), len(rows), len(rows)))
    certain = np.ones(len(rows), bool)
    others = np.flatnonzero(is_any(facts["kind"], (ADMITTED, REUSED, PREEMPTED, RECEIVED, SWAPPED_IN)))
    least, greatest, sure = np.zeros(len(others), np.int64), np.zeros(len(others), np.int64), np.ones(len(others), bool)
    before_any = np.isin(others, np.concatenate((hand_overs.reserved, hand_overs.in_vain)))
    before_any |= facts["kind"][others] == RECEIVED  # at their instant these come before a step is decided
    place = _places(facts) if before_any.any() else None
    gives, asks = RowsOf(replica), RowsOf(facts["replica"][others])
    declared = history.declared
    at = RowsOf(facts["replica"]) if declared.down or declared.horizon_ns is not None else None
    for number in range(len(runs.bounds) - 1):
        low, high = int(runs.bounds[number]), int(runs.bounds[number + 1])
        mine, every = gives.of(number), asks.of(number)
        if not (high > low or len(mine) or len(every)):  # of a range of replicas, most have nothing
            continue
        returned, back = (
            np.concatenate((np.zeros(1, np.int64), np.cumsum(each)))
            for each in (given_back[mine], np.maximum(given_back[mine], 0))
        )
        starts, times = runs.start[low:high], time[mine]
        for some in parts(high - low, 8):
            of = slice(low + some.start, low + some.stop)
            gone = np.searchsorted(times, runs.start[of], side="right")
            at_run[of] = before[of] - before[low] + first_takes[of] - returned[gone]
        decided = low + np.searchsorted(starts, times, side="left")
        at_fact[mine] = before[decided] - before[low] - returned[1:]
        together[mine] = first_taken[low + np.searchsorted(starts, times, side="right")] - first_taken[decided]
        cuts = [] if at is None else [*_cut_off(history, runs, facts, number, at.of(number), hand_overs)]
        for since, first_cut in cuts:  # by then a step may have begun
            certain[mine] &= (times <= first_cut) | (times > since)
        for some in parts(len(every), 4):
            here = every[some]
            when = facts["time_ns"][others[here]].astype(np.int64, copy=False)
            first, past = (low + np.searchsorted(starts, when, side=side) for side in ("left", "right"))
            begin, until = (np.searchsorted(times, when, side=side) for side in ("left", "right"))
            use = before[first] - before[low] - returned[begin]
            change = returned[until] - returned[begin]
            least[here] = use - (back[until] - back[begin])
            greatest[here] = use + first_taken[past] - first_taken[first] + (back[until] - back[begin]) - change
            sure[here] = past > first  # the step for which it is decided was recorded, or it is for none
            before_steps = before_any[here]
            sure[here] |= before_steps
            told = before_steps & ((facts["kind"][others[here]] != RECEIVED) | (history.folded is not None))
            aside = here[told]
            if len(aside) and place is not None:
                so_far = np.searchsorted(place[rows[mine]], place[others[aside]], side="right")
                least[aside] = greatest[aside] = before[first[told]] - before[low] - returned[so_far]
            for since, first_cut in cuts:
                clear = (when < first_cut) | (before_steps & (when == first_cut))
                sure[here] &= clear | (when > since) | (past > first)
    preempted = facts["kind"][rows] == PREEMPTED
    last = np.append((replica[1:] != replica[:-1]) | (time[1:] != time[:-1]) | ~preempted[1:], True)[: len(rows)]
    # Where sequences are handed over or share blocks, blocks are also taken at no step.
    last &= preempted & (facts["kind"] <= FINISHED).all()
    ends = np.flatnonzero(is_any(facts["kind"][rows], (FINISHED, CANCELLED, SWAPPED_OUT, HANDED_OVER)) | last)
    return Use(
        at_run=at_run,
        at_last=at_run - first_takes + takes,
        ends=rows[ends],
        at_end=at_fact[ends],
        most=(at_fact + np.where(preempted, together, 0))[ends],
        certain=certain[ends],
        others=others[sure],
        least=least[sure],
        greatest=greatest[sure],
    )


def _places(facts: Table) -> Int64Array:
    """Return where each fact is among those of all replicas, each in the order of time."""
    place = np.empty(len(facts["kind"]), np.int64)
    place[in_order(facts["replica"], facts["time_ns"])] = np.arange(len(place))
    return place


def _cut_off(
    history: History, runs: Runs, facts: Table, replica: int, rows: Int64Array, hand_overs: HandOvers
) -> Iterator[tuple[int, int]]:
    """Yield when steps of a replica are cut off, by a failure or the horizon, and since when one may have been run.

    It may begin when the last one that was recorded has ended (with several stages, has begun), if anything is there
    then that it can carry; else when the first comes.
    """
    pools, horizon = history.pools, history.declared.horizon_ns
    pool = next((one for one in reversed(pools) if one.first_replica <= replica), pools[0])
    cuts = sorted(since for failed, since, _ in history.declared.down if failed == replica)
    if not cuts and horizon is None:
        return
    mine = without(rows[is_any(facts["kind"][rows], MEMBERS)], hand_overs.reserved)
    mine = mine[np.lexsort((mine, facts["time_ns"][mine]))]
    time, request, comes = (
        facts["time_ns"][mine].tolist(), facts["request"][mine].tolist(),
        is_any(facts["kind"][mine], (ADMITTED, RECEIVED, SWAPPED_IN)).tolist(),
    )  # fmt: skip
    steps = slice(int(runs.bounds[replica]), int(runs.bounds[replica + 1]))
    start, ended = runs.start[steps], (runs.start if pool.pp > 1 else runs.recorded_end)[steps]
    for since in cuts if horizon is None else [*(cut for cut in cuts if cut < horizon), horizon]:
        last = int(ended[start < since].max(initial=-1))
        there: set[int] = set()
        first = since
        for at, who, joins in zip(time, request, comes, strict=True):
            if at > last and (there or at > since):
                break
            if at > last and joins:
                first = min(first, at)
                break
            (there.add if joins else there.discard)(who)
        yield since, last if there else first


def _takes(pieces: Pieces, runs: Runs, size: int) -> tuple[Int64Array, Int64Array]:
    """Return the blocks that the first step of each run takes, and those that all its steps take."""
    first = np.zeros(len(runs), np.int64)
    for some in parts(len(pieces), 8):
        chunk = some.start + np.flatnonzero(pieces.is_chunk[some])
        computed = pieces.computed[chunk]
        held = np.where(pieces.reused[chunk] > 0, 0, -(-computed // size))  # what it takes over, it takes as well
        np.add.at(first, pieces.first_run[chunk], -(-(computed + pieces.count[chunk]) // size) - held)
    takes = first.copy()
    decodes = np.flatnonzero(~pieces.is_chunk)
    offset = -pieces.computed[decodes] % size
    many = np.maximum(0, -(-(pieces.count[decodes] - offset) // size))
    base = runs.place[pieces.first_run[decodes]] + offset
    for some in blocks(many, 1 << 19):
        each = many[some]
        at = np.repeat(base[some], each) + within(each) * size
        run = runs.run_at_place[at]
        for into, which in ((takes, run), (first, run[at == runs.place[run]])):
            low, high = int(which.min(initial=len(runs))), int(which.max(initial=-1))
            if high - low < 8 * len(which):  # what goes on together is of runs near to each other; not so of a fleet
                into[low : high + 1] += np.bincount(which - low)
            else:
                np.add.at(into, which, 1)
    return first, takes


def returns(
    history: History, pieces: Pieces, size: int, hand_overs: HandOvers
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the facts that give blocks back, in order of (replica, record).

    Among them are those that take blocks for entries that are to be received, or to come back from a
    host: they give a negative number.

    Returns
    -------
    rows, turns, blocks : int64 arrays
        Rows of facts, the turn that each ends (``Pieces.turn_of``; −1 where there is none), the blocks that it gives.
    """
    facts = history.facts
    assert facts is not None
    rows = np.flatnonzero(is_any(facts["kind"], (PREEMPTED, FINISHED, CANCELLED, HANDED_OVER)))
    apart, of_apart = _apart(facts, pieces, hand_overs)
    rows = without(rows, apart)
    request = facts["request"][rows].astype(np.int64)
    kind, time = facts["kind"][rows], facts["time_ns"][rows].astype(np.int64)
    # The j-th of these facts of a request gives back what it had at the end of its j-th turn.
    moved = hand_overs.declares(pieces)
    ends = np.flatnonzero(np.append((~pieces.follows | pieces.restarts | moved)[1:], True)[: len(pieces)])
    # What was received and preempted before it ran there had its turn there as well.
    idle = np.flatnonzero(moved & pieces.restarts) - 1
    unmoved = pieces.closes[hand_overs.of(pieces.request[pieces.closes]) >= 0]
    unmoved = unmoved[pieces.replica[unmoved] == hand_overs.source[hand_overs.of(pieces.request[unmoved])]]
    ends = np.sort(np.concatenate((ends, idle, unmoved))) if hand_overs.reservations is None else ends
    held = -(-(pieces.computed[ends] + pieces.count[ends]) // size)
    owner = pieces.request[ends]
    first = np.searchsorted(owner, request)
    by_request = in_order(request, time, kind != PREEMPTED)
    ordered = request[by_request]
    opens = np.flatnonzero(np.concatenate((np.ones(1, bool), ordered[1:] != ordered[:-1]))[: len(ordered)])
    turn = np.empty(len(rows), np.int64)
    sizes = np.diff(np.append(opens, len(ordered)))
    turn[by_request] = within(sizes)
    some = np.ones(len(rows), bool)
    if history.declared.down:  # a turn may have ended before its first step had: it gives nothing back
        ended = pieces.ended_before(ordered, time[by_request])
        before = np.where(within(sizes) > 0, np.append(0, ended)[:-1], 0)
        some[by_request] = ended > before
        gave: Int64Array = np.cumsum(ended > before) - (ended > before)
        turn[by_request] = gave - np.repeat(gave[opens], sizes)
    at = first + turn
    known = some & (at < len(owner)) & (owner[np.minimum(at, len(owner) - 1)] == request) if len(owner) else first < 0
    holds = known & ~(np.isin(kind, (CANCELLED, PREEMPTED)) & at_rest(hand_overs.residency)[rows])  # not in host memory
    amount = np.where(holds, held[np.minimum(at, len(owner) - 1)] if len(owner) else 0, 0)
    reserved = hand_overs.reserved
    last = ends[np.minimum(at, len(ends) - 1)] if len(ends) else at
    turns = np.where(known, pieces.turn_of[last] if len(ends) else 0, -1)
    if len(reserved):
        rows = np.concatenate((rows, reserved, apart))
        turns = np.concatenate((turns, np.full(len(reserved) + len(apart), -1)))
        taken = facts["value"][reserved].astype(np.int64)
        amount = np.concatenate((amount, -taken // size, -(-facts["value"][of_apart].astype(np.int64) // size)))
    swaps, swapped = _swapped(facts, pieces, size)
    rows, amount = np.concatenate((rows, swaps)), np.concatenate((amount, swapped))
    turns = np.concatenate((turns, np.full(len(swaps), -1)))
    order = in_order(facts["replica"][rows], facts["time_ns"][rows], rows)
    return rows[order], turns[order], amount[order]


def _apart(facts: Table, pieces: Pieces, hand_overs: HandOvers) -> tuple[Int64Array, Int64Array]:
    """Return the facts that give back what was set aside on a decode replica, and those that say how much it was.

    The sequence has not come, or no step of it has ended there.
    """
    reservations = hand_overs.reservations
    if reservations is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    request = facts["request"][reservations.ended].astype(np.int64)
    at_end, at_start = (
        pieces.ended_before(request, facts["time_ns"][rows].astype(np.int64))
        for rows in (reservations.ended, reservations.of_ended)
    )
    idle = at_end == at_start
    rows = np.concatenate((reservations.vain, reservations.ended[idle]))
    return rows, np.concatenate((reservations.of_vain, reservations.of_ended[idle]))


def _swapped(facts: Table, pieces: Pieces, size: int) -> tuple[Int64Array, Int64Array]:
    """Return the facts of swaps, and how many blocks each gives back."""
    rows = np.flatnonzero(is_any(facts["kind"], (SWAPPED_OUT, SWAPPED_IN)))
    at = zip(facts["request"][rows].tolist(), facts["time_ns"][rows].tolist(), strict=True)
    held = np.array([held_at(pieces, *one) for one in at], np.int64)
    back = facts["kind"][rows] == SWAPPED_IN
    return rows, np.where(back, -1, 1) * -(-held // size)
