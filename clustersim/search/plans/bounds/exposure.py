"""What SP ranks exchange before they attend, and how often they do: added to the steps of one of them.

An exchange of K/V, or of tokens for heads, is waited for by all ranks. Shifts of a ring run under attention, and the
move of what a step wrote under the end of its stage: they are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray
from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import Node
from clustersim.graph.expand import blueprint_of
from clustersim.graph.prices.table import attention_shape
from clustersim.model.architecture import ModelSpec
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.bounds.columns import Columns, least_cost
from clustersim.simulation.priced import Priced

_WAITED_FOR: Final = ("all_gather", "all_to_all")
_SCHEMES: Final = 512
"""Degrees and schemes whose exchange is kept: it is the same for any number of stages."""
_SPARE_NS: Final = 1.0
"""Of each operator: durations are rounded."""


def exposed(columns: Columns, plan: ParallelPlan, scenario: Scenario, found: Priced, alone: Sequence[int]) -> Columns:
    """Return columns of one of a plan's SP ranks with what it exchanges in steps that have prompts.

    Parameters
    ----------
    columns : Columns
        Of that rank by itself.
    plan : ParallelPlan
    scenario : Scenario
    found : Priced
        What prices it.
    alone : sequence of int
        How often each stage of that rank by itself attends in a step with prompts.
    """
    prompt, at = np.unique(columns.least_prompt, return_inverse=True)
    extra = [each[at] for each in exposures(prompt, plan, scenario, found, alone)]
    ends = [extra[stage] for stage in sorted({0, plan.pp - 1})]
    return replace(
        columns, stage_ns=columns.stage_ns + np.array(ends), latency_ns=columns.latency_ns + np.sum(extra, axis=0)
    )


def exposures(
    prompt: FloatArray, plan: ParallelPlan, scenario: Scenario, found: Priced, alone: Sequence[int]
) -> list[FloatArray]:
    """Return the nanoseconds by stage that ranks exchange in steps of which one has so many prompt tokens.

    Parameters
    ----------
    prompt : array
    plan, scenario, found, alone
        See :func:`exposed`.
    """
    ((blueprints, pricer),) = found.pools
    waited = _waited_for(scenario.model, replace(plan, pp=1, stages=None), scenario.precision)
    mesh, extra = Mesh(plan=plan), []
    for stage, (units, attends) in enumerate(zip(blueprints["prefill"].stages, alone, strict=True)):
        nodes = Counter[Node]()
        for body, times in Counter(waited[one.layer] for one in units if one.body.name == "attention").items():
            nodes.update({node: many * times for node, many in body})
        devices = mesh.stage_devices(0, stage)[:: plan.tp]
        total = np.zeros_like(prompt)
        for node, times in nodes.items():
            if node.op in _WAITED_FOR:
                number = found.comm.number(node.op, devices)
                each = found.comm.each_seconds(number, _amount(node, plan.sp.degree) * prompt)
                total += times * ((each + pricer.engine.collective_launch_s) * NS_PER_S - _SPARE_NS)
            else:
                shape = {**attention_shape(node), "queries": 0.0, "keys": 0.0, "pairs": 0.0}
                least = float(least_cost(pricer.cost).seconds("attention_prefill", shape)) + pricer.gap_s(graph=False)
                total += max(0, times - attends) * (least * NS_PER_S - _SPARE_NS)
                attends = max(0, attends - times)
        extra.append(np.where(prompt > 0, total, 0.0))
    return extra


@lru_cache(maxsize=_SCHEMES)
def _waited_for(model: ModelSpec, plan: ParallelPlan, precision: Precision) -> dict[int, tuple[tuple[Node, int], ...]]:
    """Return by layer what its attention has of a step's prompts that ranks wait for, and how often: that of one stage
    is the same as that of any."""
    (units,) = blueprint_of(model, plan, precision, "prefill").stages
    known: dict[int, tuple[tuple[Node, int], ...]] = {}
    found = {}
    for unit in units:
        if unit.body.name == "attention":
            if id(unit.body) not in known:
                mine = (node for node in unit.body.nodes if _counts(node))
                known[id(unit.body)] = tuple(Counter(mine).items())
            found[unit.layer] = known[id(unit.body)]
    return found


def attentions(scenario: Scenario) -> list[int]:
    """Return how often each stage of a plan attends in a step with prompts."""
    stages = blueprint_of(scenario.model, scenario.plan, scenario.precision, "prefill").stages
    return [sum(node.op == "attention_prefill" for unit in units for node in unit.body.nodes) for units in stages]


def _counts(node: Node) -> bool:
    return node.op == "attention_prefill" or (node.axis == "sp" and node.op in _WAITED_FOR)


def _amount(node: Node, ranks: int) -> float:
    """Return the payload of each prompt token of the rank with most; the others have no more."""
    return sum(each * (ranks if name == "exposed_tokens" else 1.0) for name, each in node.amount if name in _OF_PROMPTS)


_OF_PROMPTS: Final = ("exposed_tokens", "segment_tokens")
