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

FIX: Final = "let those decode first that were admitted first"
MOST: Final = 256
"""About so many steps of a pool that leave somebody out are looked at, evenly spread."""


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
    turn, leaves = _turns(reading), _leaves(reading)
    last, first, who, other = (np.full(len(rows), -1) for _ in range(4))
    for number, run in enumerate(rows.tolist()):
        chosen, idle = _chosen_and_idle(reading, run, leaves)
        if len(chosen) and len(idle):
            latest, earliest = chosen[turn[chosen].argmax()], idle[turn[idle].argmin()]
            last[number], first[number] = turn[latest], turn[earliest]
            who[number], other[number] = pieces.request[latest], pieces.request[earliest]
    return judged(
        len(rows), first < last, Rows(runs, rows),
        "decodes request {who}, and leaves out request {other}, which was admitted before it and could decode", FIX,
        who=who, other=other,
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


def _chosen_and_idle(reading: Reading, run: int, leaves: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the pieces that a run of steps goes on with, and those that it could have gone on with."""
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    now, here = runs.start[run], pieces.replica == runs.replica[run]
    decodes = here & ~pieces.is_chunk & (pieces.begin <= now)
    place = runs.rank_in_slots[run]
    low, high = runs.rank_in_slots[pieces.first_run], runs.rank_in_slots[pieces.last_run]
    chosen = np.flatnonzero(
        decodes & (low <= place) & (place <= high) & (runs.slot[pieces.first_run] == runs.slot[run])
    )
    before = np.arange(len(pieces)) - 1
    between = here & ~pieces.is_chunk & pieces.follows & ~pieces.restarts & (pieces.begin > now)
    between &= pieces.end[before] <= now
    between |= here & ~pieces.is_chunk & (pieces.end <= now) & (leaves > now)
    within = np.flatnonzero(decodes & (runs.start[pieces.last_run] > now))
    within = within[~np.isin(within, chosen)]
    idle = [one for one in within.tolist() if _waits(reading, int(low[one]), int(high[one]), int(now))]
    return chosen, np.append(np.flatnonzero(between), np.array(idle, np.int64))


def _waits(reading: Reading, low: int, high: int, now: int) -> bool:
    """Return whether the last of the steps of a slot that had begun by an instant has ended, and none begins then."""
    runs = reading.runs
    assert runs is not None
    mine = runs.slotted[low : high + 1]
    last = mine[int(np.searchsorted(runs.start[mine], now, side="right")) - 1]
    return bool(runs.end[last] <= now and runs.start[last] < now)
