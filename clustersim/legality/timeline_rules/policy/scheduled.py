"""RUN-5: what a step carries is what the declared scheduler lets it carry.

``continuous`` and ``static`` prefill whole prompts, and decode where there is nothing to prefill; a prompt that is
longer than the budget of a step is prefilled alone, in chunks of the budget. ``chunked_prefill`` decodes first, and
fills the rest of the budget with chunks, each as long as it can be and at most ``long_prompt_tokens``. All of them
carry every sequence that can decode (with stages, an even share of these), unless it lacks a K/V block, or a step in
flight carries it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.history import PREEMPTED
from clustersim.legality.timeline_rules.policy.declared import WHOLE, Policies, keeps_whole
from clustersim.legality.timeline_rules.policy.overlap import steps_beside
from clustersim.legality.timeline_rules.requests.batches import carried
from clustersim.legality.timeline_rules.requests.phases import gaps
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading

FIX: Final = "let each step carry what the declared scheduler lets it carry"


def as_scheduled(reading: Reading, policies: Policies) -> Finding:
    """Judge what steps carry by the scheduler that was declared."""
    pieces, runs = reading.pieces, reading.runs
    if pieces is None or runs is None or pieces.astray:
        return NOTHING
    own = [pool.policy is not None and pool.policy.scheduler is None for pool in policies.pools]
    told = (
        lacking("what steps carry, and who is taken up and preempted (by a scheduler of its own)")
        if any(own)
        else NOTHING
    )
    chunks, decodes = carried(reading)
    whole = policies.each(lambda _, policy: policy.scheduler in WHOLE)[runs.replica] > 0
    mixed = judged(
        int(whole.sum()), whole & (chunks > 0) & (decodes > 0), Rows(runs),
        "prefills {chunks:,} prompts and decodes {decodes:,} sequences, and the declared scheduler does one or the "
        "other",
        FIX, chunks=chunks, decodes=decodes,
    )  # fmt: skip
    return merged(told, mixed, _chunks(reading, policies, chunks), _decodes(reading, policies, chunks, decodes))


def _chunks(reading: Reading, policies: Policies, chunks: Int64Array) -> Finding:
    """Judge how long chunks are: no longer than declared, and no shorter than prompt, limit and budget let them be."""
    pieces, runs, known = reading.pieces, reading.runs, reading.known
    assert pieces is not None
    assert runs is not None
    prefills, decodes = runs.column("prefill_tokens"), runs.column("decode_tokens")
    if known is None or prefills is None or decodes is None:
        return lacking("whether steps carry as much of a prompt as they may (lengths or tokens were not recorded)")
    named = policies.each(lambda _, policy: policy.scheduler is not None) > 0
    some = np.flatnonzero(pieces.is_chunk & reading.plain & ~gaps(reading) & named[pieces.replica])
    replica, run, count = pieces.replica[some], pieces.first_run[some], pieces.count[some]
    left = known[some] - pieces.computed[some]
    total = (prefills + decodes)[run]
    budget = policies.each(lambda declared, _: declared.max_batch_tokens)[replica]
    limit = policies.each(lambda _, policy: policy.long_prompt_tokens)[replica]
    whole = policies.each(lambda _, policy: policy.scheduler in WHOLE)[replica] > 0
    opens = pieces.computed[some] == pieces.reused[some]
    alone = (left > budget) & (chunks[run] == 1)

    def say(broken: object, message: str, looked: int = 0) -> Finding:
        return judged(
            looked, broken, Rows(pieces, some), "prefills {count:,} of {left:,} tokens, " + message, FIX,
            count=count, left=left, limit=limit, budget=budget, total=total,
        )  # fmt: skip

    long = ~whole & (count > limit)
    part = count < np.minimum(left, limit)
    return merged(
        say(long, "where long_prompt_tokens is {limit:,}", len(some)),
        say(
            part & (total < budget),
            "though its step, which has {total:,} tokens, could carry {budget:,}",
        ),
        say(part & whole & opens & ~alone & (total >= budget), "and the declared scheduler takes whole prompts"),
    )


def _decodes(reading: Reading, policies: Policies, chunks: Int64Array, decodes: Int64Array) -> Finding:
    """Judge whether steps decode all that can decode, or with stages no more than an even share of it."""
    runs, facts = reading.runs, reading.history.facts
    assert runs is not None
    used, total = runs.column("kv_blocks_used"), runs.column("kv_blocks_total")
    ready = policies.can_decode()
    if facts is None or ready is None or used is None or total is None:
        return lacking(
            "whether steps carry all that can decode (facts do not tell while some are swapped or handed over)"
        )
    stages = policies.each(lambda declared, _: declared.pp)[runs.replica]
    budget = policies.each(lambda declared, _: declared.max_batch_tokens)[runs.replica]
    named = policies.each(lambda _, policy: policy.scheduler is not None)[runs.replica] > 0
    whole = policies.each(lambda _, policy: policy.scheduler in WHOLE)[runs.replica] > 0
    share = np.minimum(-(-ready // np.maximum(stages, 1)), budget)
    gone = reading.facts_of(PREEMPTED)
    instants = {*zip(facts["replica"][gone].tolist(), facts["time_ns"][gone].tolist(), strict=True)}
    evicts = np.isin(runs.start, facts["time_ns"][gone])
    for at in np.flatnonzero(evicts).tolist():
        evicts[at] = (int(runs.replica[at]), int(runs.start[at])) in instants
    least = _even_share(reading, policies, ready, share, decodes)
    fewer = (decodes < least) & ~(whole & (chunks > 0)) & ~evicts
    fewer &= _room(reading, policies, used < total)

    running = runs.column("running")
    if running is not None:  # one that takes over all but its last token decodes, whatever it is called
        most = np.where(policies.each(lambda declared, _: declared.prefix_caching)[runs.replica] > 0, running, ready)
        share = np.minimum(-(-most // np.maximum(stages, 1)), budget)
    can = "decodes {decodes:,} sequences, and {ready:,} could when it started"
    return judged(
        int(named.sum()), named & (fewer | ((decodes > share) & ~evicts)), Rows(runs),
        Rows((can + ", of which {stages} stages take even shares", can), stages == 1), FIX,
        decodes=decodes, ready=ready, stages=stages,
    )  # fmt: skip


def _even_share(
    reading: Reading, policies: Policies, ready: Int64Array, share: Int64Array, decodes: Int64Array
) -> Int64Array:
    """Return how many sequences each run of steps is to decode: of its share those that no step in flight carries."""
    runs = reading.runs
    assert runs is not None
    if all(declared.pp == 1 for declared in policies.pools):
        return share
    others = steps_beside(runs, decodes)
    alone = policies.each(lambda declared, _: declared.decode_overlap == "none")[runs.replica] > 0
    stages = policies.each(lambda declared, _: declared.pp)[runs.replica]
    least = np.where(alone & (others > 0), 0, np.minimum(share, ready - others))
    return np.where(stages == 1, share, least if reading.history.folded is not None else 0)


def _room(reading: Reading, policies: Policies, room: BoolArray) -> BoolArray:
    """Return in which runs of steps no decode can lack a block: some are free, on each SP rank that keeps sequences."""
    runs = reading.runs
    assert runs is not None
    for number, declared in enumerate(policies.pools):
        if not keeps_whole(declared):
            continue
        mine = policies.pool_at[runs.replica] == number
        free = policies.free_at_runs(declared)
        room = room & ~mine if free is None else np.where(mine, (free > 0).all(axis=1), room)
    return room
