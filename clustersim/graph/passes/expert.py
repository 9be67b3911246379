"""The expert pass: experts spread over the ranks of a stage, tokens dispatched to them and combined again.

Before the experts every rank holds the tokens of its SP segment, replicated over TP; each TP rank dispatches its
1/tp slice of them to the ranks of the chosen experts (to all that share an expert's tensors), the experts run, and
the combine brings results back to the slices, which are gathered over TP again. That is the sequence
gate → dispatch → expert → combine → aggregate of rule EP-4 (Lepikhin et al., "GShard", 2020, section 3).

Where experts are visited unevenly (``plan.ep.routing``), each rank's experts take the rows that they are expected to
get, shared evenly by those experts, and all ranks wait in the combine for the one that has most.
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import Blueprint, Body, BodyBuilder, Node, Terms, Unit
from clustersim.graph.operators import scaled
from clustersim.plan.experts import rank_loads
from clustersim.plan.parallel import ParallelPlan

Loads = tuple[float, ...] | None
"""Visits of each EP rank over their mean; None: all alike."""


def expert_pass(blueprint: Blueprint, plan: ParallelPlan, precision: Precision) -> Blueprint:
    """Spread the experts of every MoE body over the stage; at ep 1, or without MoE, the identity.

    Layers whose EP ranks are visited differently get bodies of their own.
    """
    if plan.ep.degree == 1:
        return blueprint
    act = precision.activation_bytes
    made: dict[tuple[int, Loads], Body] = {}
    stages: list[tuple[Unit, ...]] = []
    moe_layer = 0
    for stage in blueprint.stages:
        units = []
        for unit in stage:
            if unit.body.name == "moe":
                up = _expert_up(unit.body)
                loads = rank_loads(up.num_experts, up.top_k, plan.ep, moe_layer)
                moe_layer += 1
                key = (id(unit.body), loads)
                if key not in made:
                    made[key] = _spread(unit.body, plan, loads, act)
                units.append(replace(unit, body=made[key]))
            else:
                units.append(unit)
        stages.append(tuple(units))
    return replace(blueprint, stages=tuple(stages))


def _expert_up(body: Body) -> Node:
    return next(node for node in body.nodes if node.name == "expert_up")


def _spread(body: Body, plan: ParallelPlan, loads: Loads, act: float) -> Body:
    build = BodyBuilder(body.name)
    moved = {-1: -1}
    top_k = _expert_up(body).amount[0][1]
    for position, node in enumerate(body.nodes):
        sources = [edge for edge in body.edges if edge.target == position]
        for new in _replacements(node, plan, top_k, loads, act):
            at = build.add(new)
            if position not in moved:
                for edge in sources:
                    build.edge(moved[edge.source], at, edge.kind)
            else:
                build.edge(moved[position], at, "data")
            moved[position] = at
    return build.build(moved[body.exit])


def _replacements(node: Node, plan: ParallelPlan, top_k: float, loads: Loads, act: float) -> list[Node]:
    """Return the nodes that take the place of ``node``, each fed by the one before it."""
    ep, tp, expert_tp = plan.ep.degree, plan.tp, plan.expert_tp
    slice_bytes = top_k * node.width * act / tp
    here = (("stage_tokens", top_k / ep),)
    uneven = loads or ()
    most = max(uneven, default=0.0) * top_k / ep * node.width * act
    match node.name:
        case "dispatch":
            return [_sent(node, plan, slice_bytes * expert_tp, most)]
        case "expert_up" | "expert_down":
            held = (node.experts + plan.ep.redundant) // ep
            return [replace(node, amount=here, loads=uneven, experts=held, where="all")]
        case "expert_act":
            coefficient = node.amount[0][1] / top_k  # bytes per routed token on this rank
            return [replace(node, amount=scaled(here, coefficient), loads=uneven, where="all")]
        case "expert_down_all_reduce":
            return [replace(node, amount=scaled(here, node.width * act), loads=uneven, where="all")]
        case "combine":
            return [_sent(node, plan, slice_bytes, most / expert_tp)]
        case "aggregate":
            own = replace(node, amount=scaled(node.amount, 1 / tp), copies=1)
            if tp == 1:
                return [own]
            gather = Node(
                name="aggregate_all_gather", op="all_gather", module="moe",
                amount=(("tokens", node.width * act),), width=node.width, axis="tp", where=node.where, stream="comm",
            )  # fmt: skip
            return [own, gather]
        case _:
            return [node]


def _sent(node: Node, plan: ParallelPlan, outer: float, inner: float) -> Node:
    """Return the all-to-all that takes the place of a permutation in memory.

    It is as long as its most loaded rank needs: the one whose tokens are most, at ``outer`` bytes each, or the one
    whose experts are visited most, at ``inner`` bytes for each token of the stage. Visited evenly, no rank's experts
    get more than some rank's tokens bring.
    """
    payload: Terms = (("peak_tokens", outer),)
    least: Terms = ()
    if plan.sp.degree == 1:  # one segment is all tokens
        payload = (("peak_tokens", max(outer, inner)),)
    elif inner:
        least = (("stage_tokens", inner),)
    return replace(
        node, op="all_to_all", amount=payload, least=least, axis="stage", stream="comm", copies=1, included=False
    )
