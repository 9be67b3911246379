"""The expert pass: experts spread over the ranks of a stage, tokens dispatched to them and combined again.

Before the experts every rank holds the tokens of its SP segment, replicated over TP; each TP rank dispatches its
1/tp slice of them to the ranks of the chosen experts (to all that share an expert's tensors), the experts run, and
the combine brings results back to the slices, which are gathered over TP again. That is the sequence
gate → dispatch → expert → combine → aggregate of rule EP-4 (Lepikhin et al., "GShard", 2020, section 3).

Where experts are visited unevenly (``plan.ep.routing``), each rank's experts take the rows that they are expected to
get and read the weights of those that are expected to get any, and all ranks wait in the combine for the one that has
most rows.

With ``plan.ep.exchange: all_reduce`` tokens stay: each rank takes those of its experts out of all that its TP group
has, and what it made of them is a term of the sum that the tensor pass puts behind the layer.

With ``all_gather`` all ranks get all tokens, and a reduce-scatter sums what they made of them.

DeepEP's exchanges dispatch in a format of their own, the normal one only a copy for each rank
that has any of the chosen experts (:mod:`clustersim.plan.exchange`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import Blueprint, Body, BodyBuilder, Node, Terms, Unit
from clustersim.graph.operators import scaled
from clustersim.model.architecture import Moe
from clustersim.plan.exchange import DEEPEP, MESSAGE_BYTES, Exchange, visited_as_often
from clustersim.plan.experts import Visits, rank_loads, rank_visits
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

Loads = tuple[float, ...] | None
"""Visits of each EP rank over their mean; None: all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Carried:
    """What an exchange carries: copies of a token to all EP ranks, to the one that gets most, and bytes of a copy."""

    copies: float
    most: float
    bytes: float
    exchange: Exchange | None = None


def expert_pass(blueprint: Blueprint, plan: ParallelPlan, precision: Precision, moes: Sequence[Moe]) -> Blueprint:
    """Spread the experts of every MoE body over the stage; at ep 1 only say how often they are visited.

    Layers whose experts are visited differently get bodies of their own.

    Parameters
    ----------
    blueprint, plan, precision
    moes : sequence of Moe
        Of the layers that have experts, in order.
    """
    if plan.ep.degree == 1 and plan.ep.routing is None:
        return blueprint
    made: dict[tuple[int, Visits | None], Body] = {}
    stages: list[tuple[Unit, ...]] = []
    moe_layer = 0
    for stage in blueprint.stages:
        units = []
        for unit in stage:
            if unit.body.name == "moe":
                up = _expert_up(unit.body)
                which = up.num_experts, up.top_k, plan.ep, moe_layer
                loads, often, moe = rank_loads(*which), rank_visits(*which), moes[moe_layer]
                moe_layer += 1
                key = (id(unit.body), often)
                if key not in made:
                    body = unit.body if plan.ep.degree == 1 else _spread(unit.body, plan, loads, precision, moe)
                    made[key] = _visited(body, often or ())
                units.append(replace(unit, body=made[key]))
            else:
                units.append(unit)
        stages.append(tuple(units))
    return replace(blueprint, stages=tuple(stages))


def _expert_up(body: Body) -> Node:
    return next(node for node in body.nodes if node.name == "expert_up")


def _visited(body: Body, often: Visits) -> Body:
    """Return a body whose experts know how often they are visited."""
    nodes = (replace(node, visits=often) if node.op == "grouped_gemm" else node for node in body.nodes)
    return replace(body, nodes=tuple(nodes)) if often else body


def _spread(body: Body, plan: ParallelPlan, loads: Loads, precision: Precision, moe: Moe) -> Body:
    build = BodyBuilder(body.name)
    moved = {-1: -1}
    top_k = _expert_up(body).amount[0][1]
    for position, node in enumerate(body.nodes):
        sources = [edge for edge in body.edges if edge.target == position]
        for new in _replacements(node, plan, top_k, loads, precision, moe):
            at = build.add(new)
            if position not in moved:
                for edge in sources:
                    build.edge(moved[edge.source], at, edge.kind)
            else:
                build.edge(moved[position], at, "data")
            moved[position] = at
    return build.build(moved[body.exit])


def _replacements(
    node: Node, plan: ParallelPlan, top_k: float, loads: Loads, precision: Precision, moe: Moe
) -> list[Node]:
    """Return the nodes that take the place of ``node``, each fed by the one before it."""
    ep, tp, expert_tp, act = plan.ep.degree, plan.tp, plan.expert_tp, precision.activation_bytes
    here = (("stage_tokens", top_k / ep),)
    uneven = loads or ()
    match node.name:
        case "dispatch" | "combine" if not plan.ep.sends:
            return [replace(node, amount=scaled(node.amount, 1 / ep), copies=expert_tp)]
        case "aggregate" if not plan.ep.sends:
            return [node]
        case "dispatch" | "combine" if plan.ep.exchange == "all_gather":
            return [_gathered(node, act)]
        case "dispatch":
            carried = _carried(node, plan, uneven, precision, moe)
            return [_sent(node, plan, carried, tp / expert_tp, 1)]
        case "expert_up" | "expert_down":
            held = (node.experts + plan.ep.redundant) // ep
            return [replace(node, amount=here, loads=uneven, experts=held, where="all")]
        case "expert_act":
            coefficient = node.amount[0][1] / top_k  # bytes per routed token on this rank
            return [replace(node, amount=scaled(here, coefficient), loads=uneven, where="all")]
        case "expert_down_all_reduce":
            return [replace(node, amount=scaled(here, node.width * act), loads=uneven, where="all")]
        case "combine":
            return [_sent(node, plan, _carried(node, plan, uneven, precision, moe), tp, expert_tp)]
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


def _carried(node: Node, plan: ParallelPlan, loads: tuple[float, ...], precision: Precision, moe: Moe) -> _Carried:
    """Return what the dispatch or combine of a body carries."""
    ep, top_k = plan.ep, moe.top_k
    dispatches, most = node.name == "dispatch", max(loads, default=0.0) * top_k / ep.degree
    if ep.exchange not in DEEPEP:
        return _Carried(copies=top_k, most=most, bytes=node.width * precision.activation_bytes)
    exchange = Exchange(
        way=ep.exchange, towards="experts" if dispatches else "tokens", num_experts=moe.num_experts, top_k=top_k,
        groups=moe.groups, groups_per_token=moe.groups_per_token, ranks=ep.degree,
        placement="contiguous" if ep.redundant else ep.placement,
    )  # fmt: skip
    element = precision.dispatch_bytes(ep.dispatch) if dispatches else precision.activation_bytes
    if ep.exchange == "deepep_low_latency":
        each = node.width * element + (MESSAGE_BYTES if dispatches else 0)
        return _Carried(copies=top_k, most=most, bytes=each, exchange=exchange)
    reached = [exchange.reached([rank]) for rank in range(ep.degree)]
    if loads:
        reached = [visited_as_often(share, load) for share, load in zip(reached, loads, strict=True)]
    most = max(reached) if len(set(reached)) > 1 else 0.0
    return _Carried(copies=fsum(reached), most=most, bytes=node.width * element, exchange=exchange)


def _gathered(node: Node, element: float) -> Node:
    """Return what takes the place of a permutation where all ranks have all tokens between dispatch and combine."""
    return replace(
        node, op="all_gather" if node.name == "dispatch" else "reduce_scatter",
        amount=(("stage_tokens", node.width * element),), axis="stage", stream="comm", copies=1, included=False,
    )  # fmt: skip


def _sent(node: Node, plan: ParallelPlan, carried: _Carried, senders: float, parts: float) -> Node:
    """Return the all-to-all that takes the place of a permutation in memory.

    It is as long as its most loaded rank needs: the one whose tokens are most, which it shares with ``senders``, or the
    one whose experts are visited most, which sends one of ``parts`` of what they are. Visited evenly, no rank's experts
    get more than some rank's tokens bring.
    """
    outer, inner = carried.copies * carried.bytes / senders, carried.most * carried.bytes / parts
    payload: Terms = (("peak_tokens", outer),)
    least: Terms = ()
    if plan.sp.degree == 1:  # one segment is all tokens
        payload = (("peak_tokens", max(outer, inner)),)
    elif inner:
        least = (("stage_tokens", inner),)
    return replace(
        node, op="all_to_all", amount=payload, least=least, axis="stage", stream="comm", copies=1, included=False,
        exchange=carried.exchange,
    )  # fmt: skip
