"""RUN-5: a replica has as many steps in flight as it has stages, and begins one as soon as it can.

::

    stage 0   │ step 4 │ step 5 │        │ step 6 │      step 6 could begin when step 5 has left stage 0, and, with two
    stage 1            │ step 4    │ step 5 │            stages, step 4 has left the last one, if its work was there

What a step carries tells that there was work: a sequence whose step before has ended, or a request that had come.
Only where it surely fits is that judged: decodes with a block free, prompts with blocks for all tokens of a step.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.history import ADMITTED, ARRIVED, FINISHED, SWAPPED_OUT, Declared
from clustersim.legality.timeline_rules.policy.declared import NEVER, Policies, keeps_whole
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.runs import Runs

FIX: Final = "let as many steps be in flight as there are stages, and begin one as soon as the first stage is free"


def as_many_as_stages(reading: Reading, policies: Policies) -> Finding:
    """Judge how many steps are in flight on replicas with stages, and when each begins."""
    runs = reading.runs
    if runs is None or reading.history.folded is None or all(pool.pp == 1 for pool in policies.pools):
        return NOTHING
    stages = policies.each(lambda declared, _: declared.pp)[runs.replica]
    others = steps_beside(runs, np.ones(len(runs), np.int64))
    crowded = judged(
        int((stages > 1).sum()), (stages > 1) & (others >= stages), Rows(runs),
        "begins at {start:,} ns, when {others:,} steps are in flight on {stages} stages", FIX, others=others,
        stages=stages,
    )  # fmt: skip
    found = [_begun(reading, policies, pool) for pool in policies.pools if pool.pp > 1]
    return merged(crowded, *found)


def steps_beside(runs: Runs, each: Int64Array) -> Int64Array:
    """Return what steps in flight sum up to when each run of steps of their replica begins, without itself."""
    found = np.zeros(len(runs), np.int64)
    for low, high in zip(runs.bounds[:-1].tolist(), runs.bounds[1:].tolist(), strict=True):
        mine = slice(low, high)
        order = np.argsort(runs.end[mine], kind="stable")
        ended = np.append(0, np.cumsum(each[mine][order]))
        before = np.searchsorted(runs.end[mine][order], runs.start[mine], side="right")
        found[mine] = np.cumsum(each[mine]) - each[mine] - ended[before]
    return found


def _begun(reading: Reading, policies: Policies, declared: Declared) -> Finding:
    """Judge whether steps of a pool begin as soon as there is work for them, and room in the pipeline."""
    if why := _unknown(reading, declared):
        return lacking(f"whether steps begin as soon as they can ({why})")
    runs = reading.runs
    assert runs is not None
    since = np.maximum(_room_since(reading, runs, declared), _work_since(reading, policies, declared))
    return judged(
        len(runs), runs.start > since, Rows(runs),
        "begins at {start:,} ns, and could at {since:,} ns, when its work was there and a stage for it", FIX,
        since=since,
    )  # fmt: skip


def _unknown(reading: Reading, declared: Declared) -> str:
    """Return why it does not follow when steps of a pool could begin; empty where it does."""
    folded, policy = reading.history.folded, declared.policy
    if reading.pieces is None or folded is None or reading.passes is None:
        return "in two pools" if reading.history.hands_over else "what steps carry was not recorded"
    reasons = {
        "replicas take each step together": folded.lockstep > 1,
        "something fails": bool(declared.down),
        "by a scheduler of its own": policy is None or policy.scheduler is None,
        "some are swapped": len(reading.facts_of(SWAPPED_OUT)) > 0,
        "some request changes replicas, or is in two steps at once": not reading.plain.all(),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _room_since(reading: Reading, runs: Runs, declared: Declared) -> Int64Array:
    """Return since when the first stage could take each step, and fewer are in flight than there are stages."""
    passes = reading.passes
    assert passes is not None
    first = np.flatnonzero(passes.stage == 0)
    left = np.full(len(runs), -1)
    at = runs.at(passes.replica[first], passes.step[first])
    np.maximum.at(left, at[at >= 0], passes.end[first][at >= 0])
    found = np.full(len(runs), -1)
    for back, ends in ((1, left), (declared.pp, runs.end)):
        before = np.arange(len(runs)) - back
        there = (before >= 0) & (runs.replica[np.maximum(before, 0)] == runs.replica)
        found = np.where(there, np.maximum(found, ends[np.maximum(before, 0)]), found)
    return found


def _work_since(reading: Reading, policies: Policies, declared: Declared) -> Int64Array:
    """Return since when some of what each step carries was there and surely fitted; never where that is not known."""
    runs, pieces = reading.runs, reading.pieces
    assert runs is not None
    assert pieces is not None
    found = np.full(len(runs), NEVER)
    before = np.arange(len(pieces)) - 1
    goes_on = pieces.follows & ~pieces.restarts
    grows, takes, free = _fits(policies, declared)
    of_chunks = np.flatnonzero(goes_on & pieces.is_chunk)
    of_chunks = of_chunks[takes[pieces.first_run[of_chunks]]]
    np.minimum.at(found, pieces.first_run[of_chunks], pieces.end[before[of_chunks]])
    of_decodes = np.flatnonzero(goes_on & ~pieces.is_chunk)
    of_decodes = of_decodes[grows[pieces.first_run[of_decodes]]]
    np.minimum.at(found, pieces.first_run[of_decodes], pieces.end[before[of_decodes]])
    one, other = _in_episodes(runs, pieces.first_run[~pieces.is_chunk], pieces.last_run[~pieces.is_chunk])
    some = grows[other]
    np.minimum.at(found, other[some], runs.end[one[some]])
    came = _came(reading, declared)
    opening = np.flatnonzero(~pieces.follows & pieces.is_chunk)
    opening = opening[takes[pieces.first_run[opening]]]
    run = pieces.first_run[opening]
    opening = opening[_has_room(reading, declared, pieces.request[opening], run, free[run])]
    np.minimum.at(found, pieces.first_run[opening], came[pieces.request[opening]])
    here = (runs.replica >= declared.first_replica) & (runs.replica < declared.first_replica + declared.dp)
    return np.where(here, found, NEVER)


def _in_episodes(runs: Runs, first: Int64Array, last: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return runs of steps that follow each other in episodes of decoding: the earlier and the later ones."""
    through = np.zeros(len(runs.slotted) + 1, np.int64)
    np.add.at(through, runs.rank_in_slots[first], 1)
    np.add.at(through, runs.rank_in_slots[last], -1)
    goes_on = np.cumsum(through[:-1])[:-1] > 0
    return runs.slotted[:-1][goes_on], runs.slotted[1:][goes_on]


def _has_room(
    reading: Reading, declared: Declared, request: Int64Array, run: Int64Array, free: Int64Array
) -> BoolArray:
    """Return for which requests there surely was room at the decision before a run of steps: for all they will hold.

    Where first chunks admit, a request needs no more than its own takes, and elsewhere no more than all that it will
    hold is ``free``, unless room is kept for those that run. Where each SP rank keeps whole sequences in a pool of its
    own, all may be on the one that takes it up.
    """
    facts, requests, runs = reading.history.facts, reading.history.requests, reading.runs
    if declared.policy is None or declared.policy.first_chunk:
        return np.ones(len(request), bool)
    if facts is None or requests is None or runs is None or not declared.block_tokens or not declared.pool_blocks:
        return np.zeros(len(request), bool)
    holds = -(-(requests["prompt_tokens"] + requests["output_tokens"]) // declared.block_tokens)
    if not declared.policy.keeps_room:
        fits: BoolArray = holds[request] <= free
        return fits
    rows = reading.facts_of(ADMITTED, FINISHED)
    rows = rows[np.lexsort((rows, facts["time_ns"][rows], facts["replica"][rows]))]
    change = np.where(facts["kind"][rows] == ADMITTED, 1, -1) * holds[facts["request"][rows]]
    promised = np.append(0, np.cumsum(change))
    before, replica = np.maximum(run - 1, 0), runs.replica[run]
    decided = np.where(runs.replica[before] == replica, runs.start[before], -1)
    first, last = (np.searchsorted(facts["replica"][rows], replica, side) for side in ("left", "right"))
    times = facts["time_ns"][rows]
    of_one = declared.pool_blocks // (declared.sp if keeps_whole(declared) else 1)
    each = zip(first.tolist(), last.tolist(), decided.tolist(), strict=True)
    at = np.array([low + np.searchsorted(times[low:high], time, "right") for low, high, time in each], np.int64)
    found: BoolArray = promised[at] - promised[first] + holds[request] <= of_one
    return found


def _came(reading: Reading, declared: Declared) -> Int64Array:
    """Return when each request arrived, never where it did not in this pool's queues, or waits for its batch."""
    facts, requests = reading.history.facts, reading.history.requests
    found = np.full(0 if requests is None else len(requests["prompt_tokens"]), NEVER)
    if facts is None or declared.policy is None or declared.policy.scheduler == "static":
        return found
    rows = reading.facts_of(ARRIVED)
    found[facts["request"][rows]] = facts["time_ns"][rows]
    return found


def _fits(policies: Policies, declared: Declared) -> tuple[BoolArray, BoolArray, Int64Array]:
    """Return before which runs of steps decodes surely find a block, prompts blocks and a place, and how many are free.

    Blocks are free from the decision before on: until the next one they only come back.
    """
    runs = policies.reading.runs
    assert runs is not None
    used, running = runs.column("kv_blocks_used"), runs.column("running")
    unknown = np.zeros(len(runs), bool), np.zeros(len(runs), bool), np.zeros(len(runs), np.int64)
    sized = declared.pool_blocks is not None and declared.block_tokens is not None
    if used is None or running is None or not sized or declared.max_batch_tokens is None:
        return unknown
    assert declared.pool_blocks is not None
    assert declared.block_tokens is not None
    apart = policies.free_at_runs(declared) if keeps_whole(declared) else declared.pool_blocks - used[:, None]
    if apart is None:
        return unknown
    least = apart.min(axis=1)
    before = np.arange(len(runs)) - 1
    there = (before >= 0) & (runs.replica[np.maximum(before, 0)] == runs.replica)
    free = np.where(there, least[before], declared.pool_blocks // apart.shape[1])
    places = np.where(there, running[before], 0) < (declared.max_batch_requests or 0)
    overlaps = declared.decode_overlap != "none"
    enough = free > -(-declared.max_batch_tokens // declared.block_tokens)
    return (free > 0) & overlaps, enough & places & (not policies.reading.prefixes.may_share(declared)), free
