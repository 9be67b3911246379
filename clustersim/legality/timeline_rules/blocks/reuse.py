"""KV-5 where prefixes are shared: what a sequence takes over is full, equal, computed before, and still there."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.timeline_rules.blocks.origins import were_there
from clustersim.legality.timeline_rules.views.reading import Reading

_FIX: Final = "take over full blocks of an equal start that a step of this replica has computed, and compute the rest"


def taken_over(reading: Reading) -> Finding:
    """Judge every fact that says that a sequence takes tokens over from the prefix cache."""
    reused, declared, size = reading.prefixes.reused, reading.declared, reading.declared.block_tokens
    pieces, known, contents = reading.pieces, reading.known, reading.prefixes.contents
    if reused is None or not len(reused.row):
        return NOTHING
    if declared.prefix_caching is False:
        every = np.ones(len(reused.row), bool)
        return judged(
            len(every), every, "replica {reuse.replica}, request {reuse.request}",
            "takes {reuse.tokens:,} tokens over, but prefixes are not shared",
            "compute every prompt in full, or set prefix_caching: true", reuse=Rows(reused),
        )  # fmt: skip
    if pieces is None or known is None or contents is None or size is None:
        why = "whether what is taken over is equal (no hashes of prompts, lengths or steps were recorded)"
        return merged(were_there(reading), lacking(why))
    equal = contents.blocks[reused.request] * size
    carried = reused.piece >= 0
    exists = known[reused.piece] if len(pieces) else np.zeros(len(carried), np.int64)
    sharing = reading.prefixes.sharing
    unknown = np.zeros(len(carried), bool) if sharing is None else sharing.unknown
    whole = reused.tokens % size == 0
    within = reused.tokens <= equal

    def say(broken: object, message: str, looked: int = 0) -> Finding:
        return judged(
            looked, broken, "replica {reuse.replica}, request {reuse.request}",
            "takes over {reuse.tokens:,} tokens at {reuse.time:,} ns, " + message, _FIX, reuse=Rows(reused),
        )  # fmt: skip

    there = np.ones(len(carried), bool) if reading.prefixes.caches is None else reading.prefixes.caches[reused.replica]
    findings = [
        say(~there, "on a replica that keeps no prefixes"),
        say(~whole, f"and a block of {size} tokens only in part", len(reused.row)),
        say(whole & ~within, "more than full blocks of its prompt that are declared to be equal to others"),
        say(carried & (reused.tokens >= exists), "and computes none: the next one can't be sampled"),
        say(whole & within & unknown, "among them blocks that no step of this replica had computed by then"),
    ]
    if declared.horizon_ns is None:
        ends = np.full(len(carried), np.iinfo(np.int64).max)
        cut = reading.failed_between(reused.replica, reused.time, ends)
        findings.append(say(~carried & ~cut, "and no step carries it from then on"))
    return merged(*findings, _stayed(reading))


def _stayed(reading: Reading) -> Finding:
    """Judge whether all blocks that are taken over later can have stayed: with those in use, they fit the pool."""
    runs, use, sharing, pool = reading.runs, reading.use, reading.prefixes.sharing, reading.declared.pool_blocks
    if runs is None or use is None or sharing is None or pool is None:
        return lacking("whether blocks that are taken over can have stayed (blocks in use do not follow)")
    kept = sharing.changes.at_runs(runs)[1]
    total = np.where(reading.sound[runs.replica], use.at_last + kept, 0)
    return judged(
        int(reading.sound[runs.replica].sum()), (total > pool) & (kept > 0), Rows(runs),
        "{use.at_last:,} blocks are in use, and {kept:,} that nobody holds are taken over later, but the pool has "
        "{pool:,}: some were given to others in between",
        "forget what a block holds when another sequence takes it", use=Rows(use), kept=kept, pool=pool,
    )  # fmt: skip
