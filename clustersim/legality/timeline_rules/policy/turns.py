"""RUN-5: where not all that can decode find a place in a step, those do that came first.

With stages a step decodes an even share of all that decode, and with any plan as many as the budget of a step. They are
taken in the order in which they were admitted. Who is left out can decode while no step carries it: between two of its
steps. Where it lacks a block those that came after it give way. Judged where nobody is swapped or handed over, nothing
fails, and the queue is in order of arrival.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ADMITTED, CANCELLED, PREEMPTED, Declared
from clustersim.legality.timeline_rules.policy.declared import Policies, keeps_whole
from clustersim.legality.timeline_rules.policy.overlap import steps_beside
from clustersim.legality.timeline_rules.requests.batches import carried
from clustersim.legality.timeline_rules.views.grouping import last_before
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.passes import within as within_each

FIX: Final = "let those decode first that were admitted first"
MOST: Final = 2_048
"""About so many steps of a pool that leave somebody out are looked at, evenly spread."""
NEVER: Final = 1 << 62


def first_come(reading: Reading, policies: Policies) -> Finding:
    """Judge who decodes in steps that leave out some that could."""
    runs = reading.runs
    if runs is None or reading.pieces is None or reading.pieces.astray or reading.history.folded is None:
        return NOTHING
    _, decodes = carried(reading)
    full = decodes >= policies.each(lambda declared, _: declared.max_batch_tokens)[runs.replica]
    lacked = full.any() or reading.facts_of(PREEMPTED).size > 0
    if not lacked and all(pool.pp == 1 for pool in policies.pools):
        return NOTHING  # every step had a place, and blocks, for all
    ready = policies.can_decode()
    if ready is None:
        return NOTHING
    left_out = (decodes > 0) & (ready - steps_beside(runs, decodes) > decodes)
    return merged(*(_of_pool(reading, pool, left_out) for pool in policies.pools if _is_told(pool)))


def _is_told(pool: Declared) -> bool:
    policy = pool.policy
    named = policy is not None and policy.scheduler is not None and policy.order == "arrival"
    return named and not pool.down and not keeps_whole(pool)


def _of_pool(reading: Reading, pool: Declared, left_out: BoolArray) -> Finding:
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    here = (runs.replica >= pool.first_replica) & (runs.replica < pool.first_replica + pool.dp)
    rows = np.flatnonzero(left_out & here)
    rows = rows[:: max(1, len(rows) // MOST)]
    turn = _turns(reading)
    (last, chosen), (first, idle) = (
        _last(turn, *_chosen(reading, rows), len(rows)),
        _first(turn, *_idle(reading, rows), len(rows)),
    )
    return judged(
        len(rows), first < last, Rows(runs, rows),
        "decodes request {who}, and leaves out request {other}, which was admitted before it and could decode", FIX,
        who=pieces.request[chosen], other=pieces.request[idle],
    )  # fmt: skip


def _turns(reading: Reading) -> Int64Array:
    """Return for each piece when its request was admitted last before it, by the rows of facts."""
    facts, pieces = reading.history.facts, reading.pieces
    assert facts is not None
    assert pieces is not None
    rows = np.flatnonzero(facts["kind"] == ADMITTED)
    rows = rows[np.lexsort((facts["time_ns"][rows], facts["request"][rows]))]
    request, time = (facts[name][rows].astype(np.int64) for name in ("request", "time_ns"))
    at = last_before(request, time, pieces.request, pieces.begin)
    return np.where(at >= 0, np.append(rows, -1)[at], -1)


def _leaves(reading: Reading) -> Int64Array:
    """Return for each piece when its request gave way, or was given up, before it went on; −1 where it was not."""
    facts, pieces = reading.history.facts, reading.pieces
    assert facts is not None
    assert pieces is not None
    rows = reading.facts_of(PREEMPTED, CANCELLED)
    request, time = (facts[name][rows].astype(np.int64) for name in ("request", "time_ns"))
    at = last_before(pieces.request, pieces.end, request, time)
    found = np.full(len(pieces), -1)
    some = np.flatnonzero(at >= 0)[::-1]  # of several the first stays
    found[at[some]] = time[some]
    return found


def _last(turn: Int64Array, piece: Int64Array, row: Int64Array, many: int) -> tuple[Int64Array, Int64Array]:
    """Return the last turn of pieces by row, and the piece that has it; −1 where there is none."""
    order, found = np.lexsort((turn[piece], row)), np.full(many, -1)
    found[row[order]] = piece[order]  # of several the last stays
    return np.where(found >= 0, turn[found], -1), found


def _first(turn: Int64Array, piece: Int64Array, row: Int64Array, many: int) -> tuple[Int64Array, Int64Array]:
    """Return the first turn of pieces by row, and the piece that has it; ``NEVER`` and −1 where there is none."""
    last, found = _last(-turn, piece, row, many)
    return np.where(found >= 0, -last, NEVER), found


def _chosen(reading: Reading, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the pieces that runs of steps go on with, and the row of each: those of its slot that it lies within."""
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    every, rank = np.flatnonzero(~pieces.is_chunk), runs.rank_in_slots
    return _crossed(every, rank[pieces.first_run[every]], rank[pieces.last_run[every]] + 1, rank[rows])


def _idle(reading: Reading, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the pieces that runs of steps could have gone on with, and the row of each."""
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    span = int(max(runs.end.max(initial=0), runs.start.max(initial=0))) + 2
    base, instants, leaves = pieces.replica * span, runs.replica[rows] * span + runs.start[rows], _leaves(reading)
    follows = np.flatnonzero(~pieces.is_chunk & pieces.follows & ~pieces.restarts)
    ended, goes = np.flatnonzero(~pieces.is_chunk & (leaves > pieces.end)), np.flatnonzero(~pieces.is_chunk)
    last_ns = runs.start[pieces.last_run[goes]]
    within, of = _crossed(goes, base[goes] + pieces.begin[goes], base[goes] + last_ns, instants)
    waits = _waits(runs, pieces.first_run[within], rows[of], span)
    found = (
        _crossed(follows, base[follows] + pieces.end[follows - 1], base[follows] + pieces.begin[follows], instants),
        _crossed(ended, base[ended] + pieces.end[ended], base[ended] + np.minimum(leaves[ended], span - 1), instants),
        (within[waits], of[waits]),
    )
    return np.concatenate([one for one, _ in found]), np.concatenate([of for _, of in found])


def _crossed(
    which: Int64Array, since: Int64Array, until: Int64Array, instants: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return which intervals [since, until) instants lie in, as pairs of interval and number of the instant."""
    order = np.argsort(instants, kind="stable")
    first, last = (np.searchsorted(instants[order], edges) for edges in (since, until))
    many = np.maximum(last - first, 0)
    return np.repeat(which, many), order[np.repeat(first, many) + within_each(many)]


def _waits(runs: Runs, opens: Int64Array, rows: Int64Array, span: int) -> BoolArray:
    """Return whether the last step of a slot that had begun when others begin has ended, and none begins then."""
    rank, slotted = runs.rank_in_slots, runs.slotted
    slot = np.append(False, np.diff(runs.replica[slotted]) | np.diff(runs.slot[slotted])).astype(bool).cumsum()
    begun = np.searchsorted(slot * span + runs.start[slotted], slot[rank[opens]] * span + runs.start[rows], "right") - 1
    last, now = slotted[begun], runs.start[rows]
    found: BoolArray = (runs.end[last] <= now) & (runs.start[last] < now)
    return found
