"""``summary.json``: what a run found, as one object of plain data."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from clustersim import __version__
from clustersim.clock import NS_PER_MS, to_ns
from clustersim.legality.rule import Verdict
from clustersim.memory import let_go
from clustersim.plan.mesh import Mesh
from clustersim.report.metrics.batch import enough_batch
from clustersim.report.metrics.blocks import enough_blocks
from clustersim.report.metrics.experts import expert_balance
from clustersim.report.metrics.faults import fault_costs
from clustersim.report.metrics.latencies import kv_peak, reasons, summarise, targets_ns
from clustersim.report.metrics.measures import measures
from clustersim.report.metrics.preempted import preempted
from clustersim.report.metrics.priorities import by_priority
from clustersim.report.metrics.service import service_summary
from clustersim.report.metrics.steady import steady_rates
from clustersim.scenario.confidence import confidence_of
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.simulate import RunResult

ALSO: Final = ("without_faults", "enough_blocks", "enough_batch")
"""What takes replays of the same requests with something else."""


def legality_of(verdict: Verdict | None) -> dict[str, Any]:
    """Return what a summary says of legality: ``legal``, and what each level answered that was asked."""
    if verdict is None:
        return {"legal": None, "legality": {}}
    return {"legal": verdict.verdict == "legal", "legality": dict(verdict.levels)}


def devices_of(scenario: Scenario) -> list[str]:
    """Return the name of the device of every rank, pool by pool."""
    return [
        scenario.topology.devices[Mesh(plan=pool.plan).device(rank)]
        for pool in scenario.each_pool()
        for rank in range(pool.plan.world)
    ]


def _pools(result: RunResult) -> dict[str, Any]:
    """Return ``pools``, where there are two: what each has, and the largest share of its K/V blocks in use."""
    scenario, steps, layout = result.scenario, result.step_rows.kv_rows, result.timeline.layout
    found = []
    for number, pool in enumerate(scenario.pools if scenario.hands_over else ()):
        mine = np.flatnonzero(layout.of_replica(steps["replica"]) == number)
        peak = kv_peak({name: steps[name][mine] for name in ("kv_blocks_used", "kv_blocks_total")})
        found.append(
            {
                "name": pool.name,
                "replicas": pool.plan.dp,
                "ranks": pool.plan.world,
                "kv_blocks": result.input.pools[number].replica_blocks,
                "kv_peak": peak,
                "experts": expert_balance(scenario.model, pool.plan),
            }
        )
    return {"pools": found} if found else {}


def summary_of(result: RunResult, verdict: Verdict | None = None, *, also: Collection[str] = ()) -> dict[str, Any]:
    """Return the object of the contract; without wall times, so that it is the same on every machine.

    Parameters
    ----------
    result : RunResult
    verdict : Verdict, optional
        Of the legality rules, at the levels that were asked; without it, that is not known.
    also : collection of str
        Of ``ALSO``: what to tell that takes replays of the same requests with something else.
    """
    scenario, timeline = result.scenario, result.timeline
    requests = result.columns
    found, causes = summarise(requests, result.token_gaps), result.cause_shares
    limits_ns = targets_ns(scenario.targets)
    let_go()
    return {
        "name": scenario.name,
        "digest": scenario.digest,
        "seed": scenario.seed,
        "version": __version__,
        "requests": found["requests"],
        "reasons": reasons(requests),
        "ttft_ms": found["ttft_ms"],
        "tpot_ms": found["tpot_ms"],
        "itl_ms": found["itl_ms"],
        "e2e_ms": found["e2e_ms"],
        "front_end_ms": to_ns(scenario.engine.front_end_s) / NS_PER_MS,
        "priorities": by_priority(requests, result.input.requests.priorities),
        "causes": causes,
        **({"without_faults": fault_costs(result)} if "without_faults" in also else {}),
        **({"enough_blocks": enough_blocks(result, causes)} if "enough_blocks" in also else {}),
        **({"enough_batch": enough_batch(result, causes)} if "enough_batch" in also else {}),
        "throughput": found["throughput"],
        "steady": steady_rates(requests),
        "makespan_s": found["makespan_s"],
        "steps": timeline.num_steps,
        "spans": timeline.num_spans,
        "timeline_digest": timeline.digest,
        **legality_of(verdict),
        **service_summary(requests, result.step_rows.rows, result.step_rows.kv_rows, limits_ns),
        **measures(result),
        "preemptions": int(requests["preemptions"].sum()),
        "preempted": preempted(timeline),
        "kv_blocks": result.input.entry.kv_blocks,
        "prefix_cache": result.prefix_cache,
        "experts": None if scenario.hands_over else expert_balance(scenario.model, scenario.plan),
        "targets": dict(scenario.targets),
        "confidence": confidence_of(scenario),
        "not_simulated": list(scenario.not_simulated(_longest(result))),
        "scenario": scenario.portable,
        "devices": devices_of(scenario),
        **_pools(result),
    }


def _longest(result: RunResult) -> int:
    """Return the tokens of the longest request."""
    requests = result.input.requests
    return int((requests.prompt_tokens + requests.output_tokens).max(initial=0))
