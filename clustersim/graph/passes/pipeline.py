"""The pipeline pass: which modules each stage holds, and the sends and receives at the cuts."""

from __future__ import annotations

from dataclasses import replace

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import INPUT, Blueprint, Body, BodyBuilder, Node, Unit
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.stages import stage_cuts


def pipeline_pass(blueprint: Blueprint, plan: ParallelPlan, model: ModelSpec, precision: Precision) -> Blueprint:
    """Cut the units into stages and join neighbours by send and receive; at pp 1 the identity.

    The payload of a cut is tokens × hidden × activation bytes (rule PP-2), sent by every rank of the stage to the
    rank with the same coordinates in the next one.
    """
    if plan.pp == 1:
        return blueprint
    (units,) = blueprint.stages
    starts = {(cut.layer, cut.before): index + 1 for index, cut in enumerate(stage_cuts(model, plan))}
    stages: list[list[Unit]] = [[]]
    for unit in units:
        module = "attention" if unit.body.name == "attention" else "ffn"
        if unit.layer >= 0 and (unit.layer, module) in starts:
            stages.append([])
        stages[-1].append(unit)
    payload = (("tokens", float(model.hidden * precision.activation_bytes)),)
    send = _transfer("send", payload, model.hidden)
    recv = _transfer("recv", payload, model.hidden)
    joined = []
    for index, stage in enumerate(stages):
        first = [Unit(body=recv, layer=-1)] if index > 0 else []
        last = [Unit(body=send, layer=-1)] if index < len(stages) - 1 else []
        joined.append(tuple(first + stage + last))
    return replace(blueprint, stages=tuple(joined))


def _transfer(name: str, payload: tuple[tuple[str, float], ...], width: int) -> Body:
    build = BodyBuilder(name)
    node = Node(name=name, op=name, module="pipeline", amount=payload, width=width, stream=name)
    return build.build(build.add(node, INPUT))
