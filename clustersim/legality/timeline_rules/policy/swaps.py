"""RUN-5: sequences in host memory come back as soon as a replica decides while it has room for the first of them.

It decides when a step begins, and where nothing runs when the last copy out, or step, has ended. Room is a place, and
blocks for the next token besides one in a hundred that stay free while others run. Not looked at while a copy out is
under way, whose blocks somebody may wait for; where something fails; or where SP ranks keep whole sequences.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.legality.declared.policy import Policy
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ARRIVED, PREEMPTED, SWAPPED_IN, Declared
from clustersim.legality.timeline_rules.policy.declared import Policies, keeps_whole
from clustersim.legality.timeline_rules.policy.queues import Rank, rank_of
from clustersim.legality.timeline_rules.views.copies import away, until
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.swaps import Swap

SPARE: Final = 100
"""One in so many blocks stays free when a sequence comes back while others run (the watermark of vLLM 0.6)."""
FIX: Final = "let sequences come back from host memory as soon as there is room, and not before"


def as_soon_as_they_fit(reading: Reading, policies: Policies) -> Finding:
    """Judge whether swapped sequences came back when there was room, and only then."""
    return merged(*(_of_pool(reading, pool) for pool in policies.pools if _is_told(reading, pool)))


def _is_told(reading: Reading, pool: Declared) -> bool:
    sized = None not in (pool.block_tokens, pool.pool_blocks, pool.max_batch_requests)
    named = pool.policy is not None and pool.policy.scheduler in ("continuous", "chunked_prefill")
    recorded = None not in (reading.pieces, reading.history.moves, reading.history.folded)
    return bool(reading.swaps) and recorded and sized and named and not pool.down and not keeps_whole(pool)


def _of_pool(reading: Reading, pool: Declared) -> Finding:
    here = range(pool.first_replica, pool.first_replica + pool.dp)
    return merged(*(_of_replica(reading, pool, number) for number in here), _early(reading, pool, here))


def _of_replica(reading: Reading, pool: Declared, replica: int) -> Finding:
    """Judge whether steps of a replica began while the first sequence in its host's memory had room."""
    runs, facts = reading.runs, reading.history.facts
    swaps, policy = [swap for swap in reading.swaps if swap.replica == replica], pool.policy
    assert policy is not None
    if runs is None or facts is None or not swaps or replica >= len(runs.bounds) - 1:
        return NOTHING
    columns = [runs.column(name) for name in ("kv_blocks_used", "running", "prefill_tokens")]
    if any(column is None for column in columns):
        return NOTHING
    mine = slice(int(runs.bounds[replica]), int(runs.bounds[replica + 1]))
    starts, (used, running, prefills) = runs.start[mine], (one[mine] for one in columns if one is not None)
    rests = [np.searchsorted(starts, (swap.out_at, until(reading, swap))).tolist() for swap in swaps]
    out, back = away(reading, swaps, starts)
    decided = facts["time_ns"][(facts["replica"] == replica) & (facts["kind"] == PREEMPTED)]
    free = np.where(out | np.isin(starts, decided), -1, (pool.pool_blocks or 0) - used)
    if policy.scheduler == "continuous":  # which prefills before anybody comes back
        free[prefills > 0] = -1
    free[running + back >= (pool.max_batch_requests or 0)] = -1
    first = np.full(len(starts), -1)
    for number in _last_first(reading, policy, swaps):
        first[slice(*rests[number])] = number
    late, at = np.zeros(len(rests), bool), np.zeros(len(rests), np.int64)
    for number, (low, high) in enumerate(rests):
        needed = -(-(swaps[number].held + 1) // (pool.block_tokens or 1)) + (pool.pool_blocks or 0) // SPARE
        enough = low + np.flatnonzero((free[low:high] >= needed) & (first[low:high] == number))
        late[number], at[number] = bool(len(enough)), enough[0] if len(enough) else 0
    return judged(
        len(rests), late, "swap of request {swap.request}, replica {swap.replica}",
        "is left in host memory by a step that began at {began:,} ns with {free:,} blocks free", FIX,
        swap=Rows(swaps), began=Rows(starts, at), free=Rows(free, at),
    )  # fmt: skip


def _last_first(reading: Reading, policy: Policy, swaps: list[Swap]) -> list[int]:
    """Return positions of swaps, who is to come back last before the others."""
    requests = reading.history.requests
    assert requests is not None
    prompt = requests["prompt_tokens"]
    came = reading.residency.first_ns(len(prompt), ARRIVED)
    priority = requests.get("priority", np.zeros(len(prompt), np.int64))

    def rank(number: int) -> Rank:
        request = swaps[number].request
        return rank_of(policy, request, int(came[request]), int(prompt[request]), int(priority[request]))

    return sorted(range(len(swaps)), key=rank, reverse=True)


def _early(reading: Reading, pool: Declared, here: range) -> Finding:
    """Judge whether blocks for the next token, and those that stay free, were free when a sequence came back."""
    facts, runs = reading.history.facts, reading.runs
    assert facts is not None
    rows = reading.facts_of(SWAPPED_IN)
    rows = rows[np.isin(facts["replica"][rows], here)]
    size, blocks = pool.block_tokens or 1, pool.pool_blocks or 0
    value, used = (facts[name][rows].astype(np.int64) for name in ("value", "used"))
    beside = np.zeros(len(rows), bool)
    for one, row in enumerate(rows.tolist() if runs is not None else ()):
        assert runs is not None
        mine = slice(*(int(bound) for bound in runs.bounds[facts["replica"][row] : facts["replica"][row] + 2]))
        beside[one] = bool((runs.start[mine] == facts["time_ns"][row]).any())  # what begins then runs beside it
    due = -(-(value + 1) // size) + (-value // size) + np.where(beside, blocks // SPARE, 0)
    return judged(
        len(rows), blocks - used < due, "replica {fact.replica}, request {fact.request}",
        "comes back from host memory at {fact.time_ns:,} ns and leaves {free:,} blocks free, where {due:,} are to stay",
        FIX, fact=Rows(facts, rows), free=blocks - used, due=due,
    )  # fmt: skip
