"""Level P: whether a plan is legal for a model on so many devices, before anything runs.

Every rule looks at plan and architecture anew and knows nothing of the code that expands, prices or runs plans.
Every fix that is offered has been applied and checked by the same rules: with all else as it is, none finds anything.
Where no single change does that, the fix says what mends its place by its rule alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from clustersim.cost.precision import Precision
from clustersim.legality.deployment import Deployment, ServingLimits
from clustersim.legality.layout import Layout, layout_of
from clustersim.legality.plan_rules import cache, data, expert, memory, pipeline, sequence, tensor
from clustersim.legality.repair.candidates import Fault, Finding, Repair, degree_change
from clustersim.legality.repair.mending import mended
from clustersim.legality.rule import LookedAt, Verdict
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.pool import PoolRule

MOST_JUDGED_RANKS: Final = 100_000
"""A plan with more ranks than that and than there are devices is judged by DP-1 alone: rules look at every rank."""

PlanCheck = Callable[[Deployment, Layout], Finding]

PLAN_CHECKS: Final[Mapping[str, PlanCheck]] = {
    "KV-4": cache.shards,
    "KV-6": memory.fills,
    "TP-1": tensor.divides,
    "TP-9": tensor.conserves,
    "SP-1": sequence.segments,
    "SP-3": sequence.prefill_only,
    "SP-7": sequence.within_sequence,
    "SP-9": sequence.full_weights,
    "PP-1": pipeline.covers,
    "EP-1": expert.covers,
    "EP-6": expert.groups,
    "EP-8": expert.exchanges,
    "DP-1": data.complete,
}
"""Rule → the function that checks it at level P."""


def check_plan(
    *,
    plan: ParallelPlan,
    model: ModelSpec,
    num_devices: int,
    memory_bytes: int,
    precision: Precision | None = None,
    limits: ServingLimits | None = None,
    pool: PoolRule | None = None,
    cluster: str = "the cluster",
    decodes_only: bool = False,
    layout: Layout | None = None,
) -> Verdict:
    """Check every rule of level P; all violations at once, each with a fix.

    Parameters
    ----------
    plan, model
        What is to run.
    num_devices, memory_bytes : int
        Devices of the topology, and the memory of one in bytes.
    precision : Precision, optional
        Number formats; by default bf16.
    limits : ServingLimits, optional
        What serving asks of memory.
    pool : PoolRule, optional
        What the engine takes the K/V pool to be a share of; by default all memory.
    cluster : str
        Name of the topology, for messages.
    decodes_only : bool
        Whether it is a pool that goes on with prompts that another one has prefilled.
    layout : Layout, optional
        Who holds what, where somebody else than the rules says so; by default derived from the plan.
    """
    deployment = Deployment(
        plan=plan,
        model=model,
        num_devices=num_devices,
        memory_bytes=memory_bytes,
        precision=precision or Precision(),
        limits=limits or ServingLimits(),
        pool=pool or PoolRule(),
        cluster=cluster,
        decodes_only=decodes_only,
    )
    findings = examine(deployment, layout)
    rules = [LookedAt(id=rule, level="P", looked_at=finding.looked_at) for rule, finding in findings.items()]
    return Verdict(violations=tuple(mended(deployment, findings, examine)), rules=tuple(rules))


def examine(deployment: Deployment, layout: Layout | None = None) -> dict[str, Finding]:
    """Return what every rule finds; degrees below 1, or absurdly large, leave nothing else to look at."""
    impossible = dict(_degree_faults(deployment))
    if impossible:
        return {rule: Finding(looked_at=rule in impossible, faults=impossible.get(rule, ())) for rule in PLAN_CHECKS}
    if max(MOST_JUDGED_RANKS, deployment.num_devices) < deployment.plan.world:
        alone = {"DP-1": data.placed(deployment)}
        return {rule: alone.get(rule, Finding(looked_at=0)) for rule in PLAN_CHECKS}
    held = layout_of(deployment) if layout is None else layout
    return {rule: check(deployment, held) for rule, check in PLAN_CHECKS.items()}


def _degree_faults(deployment: Deployment) -> Iterator[tuple[str, tuple[Fault, ...]]]:
    plan = deployment.plan
    degrees = {
        ("TP-1", "tp"): plan.tp,
        ("SP-1", "sp"): plan.sp.degree,
        ("PP-1", "pp"): plan.pp,
        ("EP-1", "ep"): plan.ep.degree,
        ("DP-1", "dp"): plan.dp,
    }
    for (rule, name), degree in degrees.items():
        if degree < 1:
            repair = Repair(text="1", change=degree_change(deployment, **{name: 1}))
            message = f"a degree must be at least 1, not {degree}"
            yield rule, (Fault(where=f"plan.{name}", message=message, advice="use 1", repairs=_just(repair)),)


def _just(repair: Repair) -> Callable[[], tuple[Repair, ...]]:
    return lambda: (repair,)
