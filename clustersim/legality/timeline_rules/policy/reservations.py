"""RUN-5: a decode replica sets blocks aside for what was computed as soon as it decides while it has room.

It decides when a step begins. The first of those that were sent to it and wait gets blocks then, unless some are
missing, all places are taken, or somebody who was preempted there waits. What a step takes, it takes afterwards: what
is free beside a step that has begun was free before. Not looked at where something fails, clients give up, or sequences
are swapped, and on SP ranks that keep whole sequences.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ADMITTED, CANCELLED, RECEIVED, Declared
from clustersim.legality.timeline_rules.policy.declared import Policies, keeps_whole
from clustersim.legality.timeline_rules.views.grouping import without
from clustersim.legality.timeline_rules.views.reading import Reading


def as_soon_as_room(reading: Reading, policies: Policies) -> Finding:
    """Judge whether what waits for blocks got them when a step began that left enough free."""
    if not reading.history.hands_over or reading.declared.down or reading.whereabouts is None:
        return NOTHING
    turns = _in_turn(reading)
    if reading.facts_of(CANCELLED).size:
        return turns
    pool = policies.pools[1]
    policy, sized = pool.policy, None not in (pool.block_tokens, pool.pool_blocks, pool.max_batch_requests)
    if policy is None or policy.swaps or not sized or keeps_whole(pool):
        return turns
    if policy.scheduler not in ("continuous", "chunked_prefill"):
        return turns
    return merged(turns, *(_of_replica(reading, pool, pool.first_replica + one) for one in range(pool.dp)))


def _in_turn(reading: Reading) -> Finding:
    """Judge whether who left first gets blocks first; of several at an instant, by the order of their requests.

    Layer by layer a step that starts lets others leave later at that instant, so that nothing is said of these.
    """
    facts, found = reading.history.facts, reading.whereabouts
    assert facts is not None
    assert found is not None
    row, since = np.array([one for one in found.aside if one[1] >= 0], np.int64).reshape(-1, 2).T
    replica, time, request = (facts[name][row].astype(np.int64) for name in ("replica", "time_ns", "request"))
    order = np.lexsort((row, time, replica))
    one, other = order[:-1], order[1:]
    early = (since[other] < since[one]) | (
        (since[other] == since[one]) & (request[other] < request[one]) & (not reading.history.layerwise)
    )
    return judged(
        len(row), early & (replica[one] == replica[other]), "replica {fact.replica}, request {fact.request}",
        "blocks are set aside for it at {fact.time_ns:,} ns behind those of request {before.request}, but left first",
        "set blocks aside in the order in which requests leave what computes their prompts",
        fact=Rows(facts, row[other]), before=Rows(facts, row[one]),
    )  # fmt: skip


def _of_replica(reading: Reading, pool: Declared, replica: int) -> Finding:
    runs, facts, found = reading.runs, reading.history.facts, reading.whereabouts
    assert found is not None
    if runs is None or facts is None or replica >= len(runs.bounds) - 1:
        return NOTHING
    columns = [runs.column(name) for name in ("kv_blocks_used", "waiting", "running")]
    if any(column is None for column in columns):
        return NOTHING
    mine = slice(int(runs.bounds[replica]), int(runs.bounds[replica + 1]))
    starts, (used, waiting, running) = runs.start[mine], (one[mine] for one in columns if one is not None)
    since, until, row = _waits(reading, replica)
    ahead = np.append(-1, np.maximum.accumulate(until)[:-1])[: len(until)]
    coming = _coming(reading, replica, starts)
    taken = without(reading.facts_of(ADMITTED), reading.hand_overs.reserved)
    back = facts["time_ns"][taken[facts["replica"][taken] == replica]]  # who waited until then comes before
    room = ~np.isin(starts, back) & (running + coming < (pool.max_batch_requests or 0)) & (waiting == 0)
    free = np.where(room, (pool.pool_blocks or 0) - used, -1)
    first, last = np.maximum(np.searchsorted(starts, since, "right"), np.searchsorted(starts, ahead)), until
    late, at = np.zeros(len(row), bool), np.zeros(len(row), np.int64)
    needs = -(-np.append(facts["value"], 0)[row].astype(np.int64) // (pool.block_tokens or 1))
    for one in np.flatnonzero((row >= 0) & (first < np.searchsorted(starts, last))).tolist():
        here = slice(int(first[one]), int(np.searchsorted(starts, last[one])))
        enough = np.flatnonzero(free[here] >= needs[one])
        late[one], at[one] = bool(len(enough)), here.start + (enough[0] if len(enough) else 0)
    return judged(
        int((row >= 0).sum()), late, "replica {replica}, request {fact.request}",
        "blocks are set aside for it at {fact.time_ns:,} ns, and a step that began at {began:,} ns left {free:,} of "
        "them free",
        "set blocks aside for what was computed, as soon as there are some", replica=replica, fact=Rows(facts, row),
        began=Rows(starts, at), free=Rows(free, at),
    )  # fmt: skip


def _waits(reading: Reading, replica: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return since and until when requests wait for blocks, first come first, and the fact that sets them aside."""
    found, facts = reading.whereabouts, reading.history.facts
    assert found is not None
    assert facts is not None
    rows = np.array([row for row, _ in found.aside], np.int64)
    rows = rows[facts["replica"][rows] == replica]
    row_of = {(int(facts["request"][row]), int(facts["time_ns"][row])): row for row in rows.tolist()}
    waits = sorted((one.since, one.until, one.request) for one in found.waits if one.replica == replica)
    columns = [(since, until, row_of.get((who, until), -1)) for since, until, who in waits]
    since, until, row = np.array(columns, np.int64).reshape(-1, 3).T
    return since, until, row


def _coming(reading: Reading, replica: int, at: Int64Array) -> Int64Array:
    """Return how many have blocks on a replica at instants, and have not been received."""
    facts = reading.history.facts
    assert facts is not None
    begins, ends = (
        np.sort(facts["time_ns"][rows[facts["replica"][rows] == replica]])
        for rows in (reading.hand_overs.reserved, reading.facts_of(RECEIVED))
    )
    found: Int64Array = np.searchsorted(begins, at, side="right") - np.searchsorted(ends, at, side="right")
    return found
