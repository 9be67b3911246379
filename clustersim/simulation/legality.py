"""Whether a scenario is legal before it runs: its plan, and what that expands to; messages at file:line:column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, Final

from clustersim.cost.precision import Precision, formats_of
from clustersim.errors import InputError, Problem
from clustersim.legality.check import check_plan
from clustersim.legality.deployment import Deployment, ServingLimits
from clustersim.legality.layout import Layout, layout_of
from clustersim.legality.plan_rules.data import fits
from clustersim.legality.rule import Level, Verdict, Violation, together
from clustersim.model.architecture import ModelSpec
from clustersim.plan.memory import RankMemory, kv_pool_blocks, stage_memory
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.segments import segments
from clustersim.plan.stages import stage_layers
from clustersim.scenario.scenario import Pool, Scenario
from clustersim.simulation.graph_legality import check_steps, graph_headline, violation_line
from clustersim.simulation.pools import apart, in_each_pool
from clustersim.units import plural

MOST_KEPT: Final = 64
"""Verdicts on step graphs that are kept: of a suite of tests, or a search, many have one plan."""

JUDGED: Final[Mapping[Level, str]] = {"P": "the plan", "G": "the step graphs"}
"""What is checked of a scenario before it runs."""


def check_scenario(scenario: Scenario) -> Verdict:
    """Check a scenario before it runs: its plan (level P) and, where that is legal, its step graphs (level G)."""
    plan = check_scenario_plan(scenario)
    if plan.violations:
        return plan
    return together((plan, in_each_pool(scenario, lambda one, _: _check_steps(one.model, one.plan, one.precision))))


@lru_cache(maxsize=MOST_KEPT)
def _check_steps(model: ModelSpec, plan: ParallelPlan, precision: Precision) -> Verdict:
    """Check step graphs; it takes up to a second where a stage has a hundred ranks."""
    return check_steps(model, plan, precision)


def check_scenario_plan(scenario: Scenario) -> Verdict:
    """Check the plan of a scenario against every rule of level P.

    A plan that is legal is checked once more with the stages, segments, weights and K/V pool that the simulator
    derives from it, so that what runs is what was checked.
    """
    ranks = sum(pool.plan.world for pool in scenario.pools)

    def check(one: Scenario, pool: Pool) -> Verdict:
        return _check_one(one, None) if pool.is_placed else _check_packed(one, ranks - pool.plan.world)

    return in_each_pool(scenario, check, tuple(apart(scenario)))


def _check_one(scenario: Scenario, devices: int | None) -> Verdict:
    """Check a plan of one pool, on so many devices instead of those of the topology."""
    numbers = _numbers(scenario)
    if devices is not None:
        numbers["num_devices"] = devices
    verdict = check_plan(**numbers)
    if verdict.verdict != "legal":
        return verdict
    memory = scenario_memory(scenario)
    layout = _simulated_layout(scenario, layout_of(deployment_of(scenario)), memory)
    limits = replace(numbers["limits"], kv_blocks=max(1, pool_blocks(scenario, memory)))
    return check_plan(**numbers | {"limits": limits}, layout=layout)


def _check_packed(scenario: Scenario, beside: int) -> Verdict:
    """Check a pool that is packed, as if it had the devices that another one leaves for itself.

    So what is advised fits beside that. Where both have too few devices, which is told once, it has all.
    """
    devices = len(scenario.topology.devices)
    left = devices - beside
    plan = replace(scenario.plan, placement=None)
    return _check_one(scenario.with_entry(plan=plan), left if 0 < plan.world <= left else devices)


def scenario_memory(scenario: Scenario) -> tuple[RankMemory, ...]:
    """Return what the simulator takes a rank of each stage to keep."""
    serving, precision = scenario.serving, scenario.precision
    return stage_memory(
        scenario.model,
        scenario.plan,
        format_of=formats_of(precision, scenario.model),
        activation_bytes=precision.activation_bytes,
        kv_bytes=precision.kv_bytes,
        max_batch_tokens=serving.max_batch_tokens,
        max_batch_requests=serving.max_batch_requests,
        rule=scenario.engine.pool,
    )


def pool_blocks(scenario: Scenario, memory: tuple[RankMemory, ...]) -> int:
    """Return the blocks of each K/V pool: as given, or what memory leaves (below 1: it leaves no room)."""
    serving = scenario.serving
    if serving.kv_blocks is not None:
        return serving.kv_blocks
    return kv_pool_blocks(
        memory,
        device_bytes=scenario.topology.device.memory_bytes,
        utilization=serving.memory_utilization,
        block_tokens=serving.kv_block_tokens,
        rule=scenario.engine.pool,
    )


def memory_blocks(scenario: Scenario, share: float | None = None) -> int:
    """Return how many blocks memory leaves each owner of K/V, at a share of it or at that of the scenario."""
    serving = replace(scenario.serving, kv_blocks=None)
    serving = serving if share is None else replace(serving, memory_utilization=share)
    one = scenario.with_entry(serving=serving)
    return pool_blocks(one, scenario_memory(one))


def _numbers(scenario: Scenario) -> dict[str, Any]:
    serving = scenario.serving
    return {
        "plan": scenario.plan,
        "model": scenario.model,
        "num_devices": len(scenario.topology.devices),
        "memory_bytes": scenario.topology.device.memory_bytes,
        "precision": scenario.precision,
        "limits": ServingLimits(
            kv_block_tokens=serving.kv_block_tokens,
            memory_utilization=serving.memory_utilization,
            max_batch_tokens=serving.max_batch_tokens,
            max_batch_requests=serving.max_batch_requests,
            kv_blocks=serving.kv_blocks,
        ),
        "pool": scenario.engine.pool,
        "cluster": _cluster_words(scenario),
        "decodes_only": scenario.decodes_only,
    }


def _cluster_words(scenario: Scenario) -> str:
    """Return what a cluster is called, and the key that makes it larger where it has one."""
    nodes = scenario.document.get("topology", {}).get("nodes")
    name = scenario.topology.name
    return name if nodes is None else f"{name} of {plural(nodes, 'node')} (topology.nodes)"


def deployment_of(scenario: Scenario) -> Deployment:
    """Return what the rules of level P look at of a scenario."""
    return Deployment(**_numbers(scenario))


def deployed(scenario: Scenario, deployment: Deployment) -> Scenario:
    """Return a scenario of one pool with what a deployment has otherwise; the opposite of :func:`deployment_of`."""
    serving = replace(scenario.serving, **asdict(deployment.limits))
    return replace(scenario.with_entry(plan=deployment.plan, serving=serving), precision=deployment.precision)


def _simulated_layout(scenario: Scenario, own: Layout, memory: tuple[RankMemory, ...]) -> Layout:
    """Return the layout with what the simulator takes stages, segments and weights to be."""
    plan, model = scenario.plan, scenario.model
    inner = stage_layers(model, plan)
    first, last = (own.stages[0][0],), (own.stages[-1][-1],)
    stages = [
        (first if stage == 0 else ()) + modules + (last if stage == plan.pp - 1 else ())
        for stage, modules in enumerate(inner)
    ]
    changed = replace(own, stages=tuple(stages))
    if plan.sp.partition is not None:
        partition = plan.sp.partition
        split = {tokens: tuple(segments(tokens, plan.sp.degree, partition)) for tokens in own.segments}
        changed = replace(changed, segments=split)
    return replace(changed, weight_bytes=tuple(rank.weights_bytes for rank in memory))


def refuse_if_too_large(scenario: Scenario) -> None:
    """Refuse a plan with more ranks than the cluster has devices: it can't be simulated.

    Raises
    ------
    InputError
        At the degree to blame, with the numbers and the nearest legal choice.
    """
    devices = len(scenario.topology.devices)
    if not any(apart(scenario)) and all(fits(one.plan, devices) is None for one in scenario.each_pool()):
        return
    verdict = check_scenario_plan(scenario)
    raise InputError([problem(scenario, found, named=False) for found in verdict.violations if found.rule == "DP-1"])


def problem(scenario: Scenario, violation: Violation, *, named: bool = True) -> Problem:
    """Return a violation as a problem, placed at the offending value; ``named`` adds the rule's id."""
    text = f"{violation.message}; {violation.fix}"
    degree = f"{violation.where}.degree"  # where a degree is written out, it is the value to point at
    placed = scenario.problem(degree, f"{text} [{violation.rule}]" if named else text)
    return replace(placed, path=violation.where)


def verdict_lines(scenario: Scenario, verdict: Verdict) -> Iterator[str]:
    """Yield, of each level that was asked, the verdict and each violation as a line of text."""
    yield from headlines(scenario, verdict)
    yield from violation_lines(scenario, verdict)


def violation_lines(scenario: Scenario, verdict: Verdict) -> Iterator[str]:
    """Yield a line per violation: at its place in the scenario, or in its step graphs."""
    for violation in verdict.violations:
        yield str(problem(scenario, violation)) if violation.level == "P" else violation_line(violation)


def headlines(scenario: Scenario, verdict: Verdict) -> Iterator[str]:
    """Yield a line per level that was asked: ``illegal: the plan of NAME breaks 2 rules at 3 places``."""
    for level, what in JUDGED.items():
        if level in verdict.levels:
            yield graph_headline(f"{what} of {scenario.name}", verdict.of_level(level))


def verdict_json(scenario: Scenario, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as ``check --json`` prints it: each violation with where its value is written, if it is."""
    violations = [_violation_json(scenario, violation) for violation in verdict.violations]
    return verdict.as_json() | {"violations": violations}


def _violation_json(scenario: Scenario, violation: Violation) -> dict[str, Any]:
    placed = problem(scenario, violation) if violation.level == "P" else None
    place = {name: getattr(placed, name, None) for name in ("file", "line", "column")}
    return violation.as_json() | place | {"node": None}
