"""RUN-5: where not all that can decode find a place in a step, those do that came first.

With stages a step decodes an even share of all that decode, and with any plan as many as the budget of a step. They are
taken in the order in which they joined: were admitted, received, or came back from host memory. Who is left out can
decode while no step carries it: between two of its steps. Where it lacks a block those that came after it give way, or,
where some are swapped or in flight, it may wait: who has room in its last block need not. Judged where nothing fails,
and the queue is in order of arrival.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ADMITTED, CANCELLED, PREEMPTED, RECEIVED, SWAPPED_OUT, Declared
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
    lacked = full.any() or reading.facts_of(PREEMPTED, SWAPPED_OUT).size > 0
    if not lacked and all(pool.pp == 1 for pool in policies.pools):
        return NOTHING  # every step had a place, and blocks, for all
    ready = policies.can_decode()
    stages = policies.each(lambda declared, _: declared.pp)[runs.replica]
    budget = policies.each(lambda declared, _: declared.max_batch_tokens)[runs.replica]
    known = np.full(len(runs), NEVER) if ready is None else ready - steps_beside(runs, decodes)
    places = np.zeros(len(runs), np.int64) if ready is None else np.minimum(-(-ready // stages), budget)
    left_out = (decodes > 0) & (known > decodes)
    return merged(
        *(_of_pool(reading, pool, left_out, known, places) for pool in policies.pools if _is_told(reading, pool))
    )


def _is_told(reading: Reading, pool: Declared) -> bool:
    policy = pool.policy
    named = policy is not None and policy.scheduler is not None and policy.order == "arrival"
    told = not reading.swaps or (reading.history.moves is not None and not reading.history.hands_over)
    return named and told and not pool.down and not keeps_whole(pool) and pool.block_tokens is not None


def _of_pool(reading: Reading, pool: Declared, left_out: BoolArray, known: Int64Array, places: Int64Array) -> Finding:
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    here = (runs.replica >= pool.first_replica) & (runs.replica < pool.first_replica + pool.dp)
    rows = np.flatnonzero(left_out & here)
    rows = rows[:: max(1, len(rows) // MOST)]
    turn, chosen, (idle, of, room) = _turns(reading), _chosen(reading, rows), _idle(reading, pool, rows)
    some = room if reading.swaps else np.ones(len(room), bool)
    (last, who), (first, other) = _last(turn, *chosen, len(rows)), _first(turn, idle[some], of[some], len(rows))
    late = judged(
        len(rows), first < last, Rows(runs, rows),
        "decodes request {who}, and leaves out request {other}, which was admitted before it and could decode", FIX,
        who=pieces.request[who], other=pieces.request[other],
    )  # fmt: skip
    every, within = np.concatenate((chosen[0], idle)), np.concatenate((chosen[1], of))
    order = np.lexsort((turn[every], within))
    many = np.bincount(within, minlength=len(rows))
    place = np.empty(len(every), np.int64)
    place[order] = within_each(many)
    all_known = (many == known[rows]) & ~_gives_way(reading, rows)
    due = all_known[of] & room & (place[len(chosen[0]) :] < places[rows[of]])
    return merged(late, judged(
        0, due, Rows(runs, rows[of]),
        "leaves out request {out}, which could decode, has room in its last block, and comes at place {place:,} of "
        "{places:,}",
        FIX, out=pieces.request[idle], place=place[len(chosen[0]) :] + 1, places=places[rows[of]],
    ))  # fmt: skip


def _gives_way(reading: Reading, rows: Int64Array) -> BoolArray:
    """Return whether somebody gave way on its replica when a run of steps was decided: until then it had a place."""
    facts, runs, gone = reading.history.facts, reading.runs, reading.facts_of(PREEMPTED)
    assert facts is not None
    assert runs is not None
    instants = {*zip(facts["replica"][gone].tolist(), facts["time_ns"][gone].tolist(), strict=True)}
    mine = zip(runs.replica[rows].tolist(), runs.start[rows].tolist(), strict=True)
    return np.array([one in instants for one in mine], bool)


def _turns(reading: Reading) -> Int64Array:
    """Return for each piece when its request joined last before it, as a place among all that ever joined."""
    facts, pieces = reading.history.facts, reading.pieces
    assert facts is not None
    assert pieces is not None
    rows = np.sort(reading.facts_of(ADMITTED, RECEIVED))
    back, _, came = _back(reading)
    request = np.concatenate((back, facts["request"][rows].astype(np.int64)))
    time = np.concatenate((came, facts["time_ns"][rows].astype(np.int64)))
    order = np.lexsort((np.arange(len(time)), time))  # copies end before anything is decided at that instant
    return last_before(request[order], time[order], pieces.request, pieces.begin)


def _back(reading: Reading) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return who came back from host memory, since when it had been there, and when its copies had ended."""
    moves, found = reading.history.moves, []
    for swap in reading.swaps:
        ends = [int(moves["end_ns"][row]) for row in swap.back] if moves is not None else []
        found.append((swap.request, swap.out_at, max(ends, default=NEVER)))
    request, out, came = np.array(sorted(found), np.int64).reshape(-1, 3).T
    return request, out, came


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


def _idle(reading: Reading, pool: Declared, rows: Int64Array) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Return the pieces that runs of steps could have gone on with, the row of each, and which have room in a block."""
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    span = int(max(runs.end.max(initial=0), runs.start.max(initial=0))) + 2
    base, instants, decodes = pieces.replica * span, runs.replica[rows] * span + runs.start[rows], ~pieces.is_chunk
    follows, goes = np.flatnonzero(decodes & pieces.follows & ~pieces.restarts), np.flatnonzero(decodes)
    since = base[follows] + np.minimum(_since(reading, follows), span - 1)
    within, of = _crossed(
        goes, base[goes] + pieces.begin[goes], base[goes] + runs.start[pieces.last_run[goes]], instants
    )
    done, waits = _waits(runs, pieces.first_run[within], rows[of], span)
    found: list[tuple[Int64Array, Int64Array, Any]] = [
        (*_crossed(follows, since, base[follows] + pieces.begin[follows], instants), 0),
        (within[waits], of[waits], done[waits]),
    ]
    if not reading.swaps:
        leaves = _leaves(reading)
        ended = np.flatnonzero(decodes & (leaves > pieces.end))
        until = base[ended] + np.minimum(leaves[ended], span - 1)
        left, at = _crossed(ended, base[ended] + pieces.end[ended], until, instants)
        found.append((left, at, pieces.count[left]))
    piece, row = (np.concatenate([one[which] for one in found]) for which in (0, 1))
    entries = pieces.computed[piece] + np.concatenate([np.zeros(len(one[0]), np.int64) + one[2] for one in found])
    return piece, row, entries % (pool.block_tokens or 1) > 0


def _since(reading: Reading, follows: Int64Array) -> Int64Array:
    """Return since when pieces that follow others could go on: these had ended, K/V was there, and is back."""
    facts, pieces = reading.history.facts, reading.pieces
    assert facts is not None
    assert pieces is not None
    found, request, begin = pieces.end[follows - 1], pieces.request[follows], pieces.begin[follows]
    rows = reading.facts_of(RECEIVED)
    who, when = (facts[name][rows].astype(np.int64) for name in ("request", "time_ns"))
    at = last_before(who, when, request, begin)
    moved = pieces.replica[follows] != pieces.replica[follows - 1]
    found = np.where(moved, np.where(at >= 0, np.append(when, NEVER)[at], NEVER), found)
    who, out, came = _back(reading)
    at = last_before(who, out, request, begin)
    return np.where((at >= 0) & (np.append(out, -1)[at] > found), np.append(came, -1)[at], found)


def _crossed(
    which: Int64Array, since: Int64Array, until: Int64Array, instants: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return which intervals [since, until) instants lie in, as pairs of interval and number of the instant."""
    order = np.argsort(instants, kind="stable")
    first, last = (np.searchsorted(instants[order], edges) for edges in (since, until))
    many = np.maximum(last - first, 0)
    return np.repeat(which, many), order[np.repeat(first, many) + within_each(many)]


def _waits(runs: Runs, opens: Int64Array, rows: Int64Array, span: int) -> tuple[Int64Array, BoolArray]:
    """Return how many steps of a slot had begun when others do, and whether these have ended and none begins then."""
    rank, slotted = runs.rank_in_slots, runs.slotted
    slot = np.append(False, np.diff(runs.replica[slotted]) | np.diff(runs.slot[slotted])).astype(bool).cumsum()
    begun = np.searchsorted(slot * span + runs.start[slotted], slot[rank[opens]] * span + runs.start[rows], "right") - 1
    last, now = slotted[begun], runs.start[rows]
    done = runs.place[last] + runs.count[last] - runs.place[opens]
    found: BoolArray = (runs.end[last] <= now) & (runs.start[last] < now)
    return done, found
