"""What K/V blocks a run lacked: how many are enough that nobody waits for one, by replays of the same requests.

What replicas hold at most where they have plenty is what is tried; where some still wait with that (a scheduler that
sets blocks aside, owners that are not alike), twice as many. No number is told that was not replayed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np

from clustersim.report.metrics.faults import MOST_STEPS, all_met
from clustersim.report.metrics.latencies import summarise
from clustersim.report.metrics.preempted import preempted
from clustersim.simulation.legality import memory_blocks
from clustersim.simulation.simulate import RunResult, with_blocks

PLENTY: Final = 16
"""Times the blocks of a run."""
LEADS: Final = 0.5
"""Share of a latency that went to waiting for what a run lacked, from which on it is replayed."""
LATENCIES: Final = ("ttft_ms", "tpot_ms", "e2e_ms")


def enough_blocks(result: RunResult, causes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``enough_blocks`` of ``summary.json``.

    None where K/V blocks are no cause of half of a latency, every target is met, more than ``MOST_STEPS`` steps ran, or
    requests wait with ``PLENTY`` times as many, too. Otherwise ``kv_blocks`` of each owner of K/V (a list, of each pool
    in order), how many there is memory for (``memory_blocks``, which may be fewer), and ``ttft_ms``, ``tpot_ms`` and
    ``e2e_ms`` of the same requests with them.

    Parameters
    ----------
    result : RunResult
    causes : mapping
        ``causes`` of its summary.
    """
    if not lead(causes, ("blocks_wait", "preempted")) or all_met(result) or result.timeline.num_steps > MOST_STEPS:
        return None
    pools = result.input.pools
    most = [PLENTY * pool.kv_blocks for pool in pools]
    roomy = with_blocks(result, most)
    blocks = [max(pool.kv_blocks, held) for pool, held in zip(pools, _held(roomy), strict=True)]
    while any(some < limit for some, limit in zip(blocks, most, strict=True)):
        found = with_blocks(result, blocks)
        if not _waits(found):
            told = summarise(found.columns, found.token_gaps)
            room = [memory_blocks(one) for one in result.scenario.each_pool()]
            return {"kv_blocks": blocks, "memory_blocks": room, **{name: told[name] for name in LATENCIES}}
        blocks = [min(2 * some, limit) for some, limit in zip(blocks, most, strict=True)]
    return None


def lead(causes: Mapping[str, Any], some: Collection[str]) -> bool:
    """Return whether at least ``LEADS`` of a latency, of all requests or of the slowest, went to some causes."""
    shares = [of[which] for of in (causes.get("ttft"), causes.get("tpot")) if of for which in ("mean", "slowest")]
    return any(math.fsum(one.get(cause, 0.0) for cause in some) >= LEADS for one in shares)


def _held(result: RunResult) -> list[int]:
    """Return how many blocks an owner of K/V of each pool held at most, if those of a replica are alike."""
    rows, pools = result.step_rows.kv_rows, result.input.pools
    of = result.timeline.layout.of_replica(rows["replica"])
    most = [int(rows["kv_blocks_used"][of == number].max(initial=0)) for number in range(len(pools))]
    return [math.ceil(one / pool.owners) for one, pool in zip(most, pools, strict=True)]


def _waits(result: RunResult) -> bool:
    """Tell whether a request waited for blocks, or lost its own for want of some."""
    waited = np.ma.filled(result.table["blocks_wait_ns"], 0)
    return bool(waited.any()) or any(preempted(result.timeline)[key] for key in ("recomputed", "swapped"))
