"""The expert pass: experts spread over the ranks of a stage, tokens dispatched to them and combined again.

Before the experts every rank holds the tokens of its SP segment, replicated over TP; each TP rank dispatches its
1/tp slice of them to the ranks of the chosen experts (to all that share an expert's tensors), the experts run, and
the combine brings results back to the slices, which are gathered over TP again. That is the sequence
gate → dispatch → expert → combine → aggregate of rule EP-4 (Lepikhin et al., "GShard", 2020, section 3).
"""

from __future__ import annotations

from dataclasses import replace

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import Blueprint, Body, BodyBuilder, Node, Terms
from clustersim.graph.operators import scaled
from clustersim.plan.parallel import ParallelPlan


def expert_pass(blueprint: Blueprint, plan: ParallelPlan, precision: Precision) -> Blueprint:
    """Spread the experts of every MoE body over the stage; at ep 1, or without MoE, the identity."""
    if plan.ep.degree == 1:
        return blueprint
    act = precision.activation_bytes
    return blueprint.map_bodies(lambda body: _spread(body, plan, act) if body.name == "moe" else body)


def _spread(body: Body, plan: ParallelPlan, act: float) -> Body:
    build = BodyBuilder(body.name)
    moved = {-1: -1}
    up = next(node for node in body.nodes if node.name == "expert_up")
    top_k = up.amount[0][1]
    for position, node in enumerate(body.nodes):
        sources = [edge for edge in body.edges if edge.target == position]
        for new in _replacements(node, plan, top_k, act):
            at = build.add(new)
            if position not in moved:
                for edge in sources:
                    build.edge(moved[edge.source], at, edge.kind)
            else:
                build.edge(moved[position], at, "data")
            moved[position] = at
    return build.build(moved[body.exit])


def _replacements(node: Node, plan: ParallelPlan, top_k: float, act: float) -> list[Node]:
    """Return the nodes that take the place of ``node``, each fed by the one before it."""
    ep, tp, expert_tp = plan.ep.degree, plan.tp, plan.expert_tp
    slice_bytes = top_k * node.width * act / tp
    here = (("stage_tokens", top_k / ep),)
    match node.name:
        case "dispatch":
            payload = (("peak_tokens", slice_bytes * expert_tp),)
            return [_sent(node, payload)]
        case "expert_up" | "expert_down":
            return [replace(node, amount=here, experts=node.experts // ep, where="all")]
        case "expert_act":
            coefficient = node.amount[0][1] / top_k  # bytes per routed token on this rank
            return [replace(node, amount=scaled(here, coefficient), where="all")]
        case "expert_down_all_reduce":
            return [replace(node, amount=scaled(here, node.width * act), where="all")]
        case "combine":
            payload = (("peak_tokens", slice_bytes),)
            return [_sent(node, payload)]
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


def _sent(node: Node, payload: Terms) -> Node:
    """Return the all-to-all that takes the place of a permutation in memory."""
    return replace(node, op="all_to_all", amount=payload, axis="stage", stream="comm", copies=1, included=False)
