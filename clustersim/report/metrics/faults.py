"""What the faults of a run cost: the same requests once more without them, and what each took from replicas.

Latencies without faults are those of a replay without them, as exact as the run; nothing else tells how much of a wait
is theirs. What a fault took is counted from the record: the time in which a replica is down, and the time that passes
on slow devices or over weak links take above the cost of their operators (and what else they wait for on these links).
Not here: what sends and transfers of K/V take longer; the replay without faults has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.cluster.fault import Fault
from clustersim.replay.prepared import Prepared
from clustersim.report.metrics.latencies import summarise, target_met, targets_ns
from clustersim.simulation.simulate import RunResult, without_faults
from clustersim.timeline.passes import Passes
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.timeline import Timeline

MOST_STEPS: Final = 200_000
"""Of a run up to which it is replayed again: some ten seconds where stages are many."""
_LATENCIES: Final = ("ttft_ms", "tpot_ms", "e2e_ms")


def fault_costs(result: RunResult) -> dict[str, Any] | None:
    """Return ``without_faults`` of ``summary.json``.

    None where nothing fails, every target is met, or more than ``MOST_STEPS`` steps ran. Otherwise ``ttft_ms``,
    ``tpot_ms`` and ``e2e_ms`` of the same requests without any fault, ``finished``, how many of them do, and
    ``faults``, those that took most first: each with its ``key``, its ``name``, ``what`` it does, ``at_s``,
    ``until_s`` (None: to the end), ``lost_s`` (seconds of replicas that were down, and that passes took longer; a pass
    that several slow down counts for each) and ``share`` (of the time of the passes that it slowed down, what was
    above their cost; None where it slowed none down).
    """
    faults = result.input.faults
    if not faults or all_met(result) or result.timeline.num_steps > MOST_STEPS:
        return None
    without = without_faults(result)
    found = summarise(without.columns, without.token_gaps)
    costs = [one | _named(fault, number) for number, (fault, one) in enumerate(zip(faults, _lost(result), strict=True))]
    return {
        **{name: found[name] for name in _LATENCIES},
        "finished": found["requests"]["finished"],
        "faults": sorted(costs, key=lambda one: -one["lost_s"]),
    }


def all_met(result: RunResult) -> bool:
    """Return whether a run has targets, and p99 of every latency is within its own."""
    limits = targets_ns(result.scenario.targets)
    found = summarise(result.columns, result.token_gaps)
    latencies = {name: found[f"{name}_ms"] for name in limits}
    return bool(limits) and all(one is not None and target_met(one, limits[name]) for name, one in latencies.items())


def _named(fault: Fault, number: int) -> dict[str, Any]:
    if fault.fails:
        what = "is down"
    elif fault.slowdown is not None:
        what = f"is {fault.slowdown:g} times as slow"
    else:
        what = f"has {100 * fault.share:.3g}% of its capacity"
    until = None if fault.until_ns is None else fault.until_ns / NS_PER_S
    return {
        "key": f"faults[{number}]", "name": fault.name, "what": what, "at_s": fault.at_ns / NS_PER_S, "until_s": until,
    }  # fmt: skip


def _lost(result: RunResult) -> Iterator[dict[str, Any]]:
    """Yield what each fault took."""
    prepared, end = Prepared(result.input), result.timeline.end_ns
    stages = [one for pool in prepared.pools for one in pool.programs]  # of replicas in lockstep the first has all
    slowdowns = {replica: prepared.slowdowns(replica) for replica, _ in stages}
    passes = list(_longer(result.timeline))
    for fault in result.input.faults:
        if fault.fails:
            alone = Prepared(replace(result.input, faults=(fault,))).outages
            down = sum(max(0, min(end if one.until_ns is None else one.until_ns, end) - one.at_ns) for one in alone)
            yield {"lost_s": down / NS_PER_S, "share": None}
            continue
        hit = {
            (replica, stage)
            for replica, stage in stages
            if (found := slowdowns[replica]) is not None and fault in found.by_stage[stage]
        }
        mine = [one for one in passes if one[0] in hit and fault.covers(one[1])]
        lost, whole = sum(one[2] for one in mine), sum(one[3] for one in mine)
        yield {"lost_s": lost / NS_PER_S, "share": lost / whole if whole else None}


def _longer(timeline: Timeline) -> Iterator[tuple[tuple[int, int], int, int, int]]:
    """Yield replica and stage, and start of each pass that took longer, with what was above its cost, and its time."""
    passes, table = Passes(timeline), timeline.passes
    for run in np.flatnonzero(table["irregular"] >= 0).tolist():
        replica, stage, number, begin = (int(table[name][run]) for name in ("replica", "stage", "template", "start_ns"))
        (block,) = passes.blocks(np.array([run]))
        cost = int(timeline.templates[number].pass_times(passes.durations(block, number)[0])[0])
        found = timeline.irregular[int(table["irregular"][run])]
        lost = found.lost_ns if isinstance(found, Stretch) else int(found[1].max()) - cost
        yield (replica, stage), begin, lost, cost + lost
