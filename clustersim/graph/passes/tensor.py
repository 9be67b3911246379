"""The tensor pass: splits operators inside a layer, and inserts the collectives that put them together again.

Every value has a layout along TP: ``full`` (each rank has all of it), ``split`` (each rank has a slice of its
features), or ``partial`` (each rank has a term of a sum). A rule per operator says which layout it takes and makes;
where the layout at hand is another, a collective is inserted right after the producer:

=========  =========  ======================================================
made       wanted     inserted
=========  =========  ======================================================
split      full       all_gather
partial    full       all_reduce
partial    split      reduce_scatter
full       split      nothing: a rank reads its slice
=========  =========  ======================================================

That is the algebra of ``Y = X·W`` split by columns or by rows (Shoeybi et al., "Megatron-LM", 2019, section 3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import INPUT, Axis, Blueprint, Body, BodyBuilder, Node
from clustersim.graph.operators import scaled
from clustersim.plan.parallel import ParallelPlan, TensorSplit

Layout = Literal["full", "split", "partial"]

_COLLECTIVE: Final[dict[tuple[Layout, Layout], str]] = {
    ("split", "full"): "all_gather",
    ("partial", "full"): "all_reduce",
    ("partial", "split"): "reduce_scatter",
}


def tensor_pass(blueprint: Blueprint, plan: ParallelPlan, precision: Precision) -> Blueprint:
    """Split every operator over the TP ranks; at tp 1 (and expert TP 1) the identity."""
    expert_tp = plan.expert_tp
    if plan.tp == 1 and expert_tp == 1:
        return blueprint
    act = precision.activation_bytes
    changed = blueprint.map_bodies(lambda body: _Split(body, plan, act).run())
    return replace(changed, tp=plan.tp, expert_tp=expert_tp)


def _linear_rule(rule: str, split: TensorSplit) -> str:
    """Turn a rule that the plan decides into ``columns`` or ``rows``."""
    match rule:
        case "attention_out":
            return split.attention_out
        case "ffn_up":
            return split.ffn_up
        case "ffn_down":
            return split.ffn_down
        case "lm_head":
            return "columns" if split.lm_head == "vocab" else "rows"
        case _:
            return rule


class _Split:
    """Splits one body; positions of the old body map to positions of the new one."""

    def __init__(self, body: Body, plan: ParallelPlan, act_bytes: float) -> None:
        self.body = body
        self.plan = plan
        self.act_bytes = act_bytes
        self.build = BodyBuilder(body.name)
        self.moved: dict[int, int] = {INPUT: INPUT}
        self.layout: dict[int, Layout] = {INPUT: "full"}
        self.converted: dict[tuple[int, Layout], int] = {}

    def run(self) -> Body:
        for position, node in enumerate(self.body.nodes):
            sources = [edge for edge in self.body.edges if edge.target == position]
            data = [edge.source for edge in sources if edge.kind == "data"]
            made = [self.layout[source] for source in data]
            after, wanted, layout = self._apply(node, made)
            ready = [self._convert(source, wanted, after.axis_tp) for source in data]
            new = self.build.add(after.node, *ready)
            for edge in sources:
                if edge.kind != "data":
                    self.build.edge(self.moved[edge.source], new, edge.kind)
            self.moved[position], self.layout[position] = new, layout
        last = self._convert(self.body.exit, "full", "tp")
        return self.build.build(last)

    def _convert(self, source: int, wanted: Layout | None, axis: Axis) -> int:
        """Return the new position of ``source`` in the wanted layout, inserting a collective at most once."""
        made = self.layout[source]
        op = _COLLECTIVE.get((made, wanted)) if wanted is not None else None
        if op is None or (axis == "tp" and self.plan.tp == 1):  # a group of one has nothing to put together
            return self.moved[source]
        key = (source, wanted or "full")
        if key not in self.converted:
            old = self.body.nodes[source]
            rows = tuple((feature, 1.0) for feature, _ in old.amount) if old.op == "memory" else old.amount
            node = Node(
                name=f"{old.name}_{op}",
                op=op,
                module=old.module,
                amount=scaled(rows, old.width * self.act_bytes),
                width=old.width,
                axis=axis,
                stream="comm",
            )
            self.converted[key] = self.build.add(node, self.moved[source])
        return self.converted[key]

    def _apply(self, node: Node, made: list[Layout]) -> tuple[_Applied, Layout | None, Layout]:
        """Return the split node, the layout that it wants of its inputs (None: any), and the one it makes."""
        rule = _linear_rule(node.rule, self.plan.split)
        tp, expert_tp = self.plan.tp, self.plan.expert_tp
        expert_axis: Axis = "tp" if self.plan.ep.degree == 1 else "expert_tp"
        match rule:
            case "columns" | "qkv" | "heads_columns":
                wanted: Layout = "full" if rule != "heads_columns" else "split"
                split = _split_qkv(node, tp) if rule == "qkv" else replace(node, n=node.n // tp)
                return _Applied(split), wanted, "split"
            case "rows":
                return _Applied(replace(node, k=node.k // tp)), "split", "partial"
            case "embedding":
                if self.plan.split.embedding == "vocab":
                    return _Applied(node), "full", "partial"
                return _Applied(replace(node, amount=scaled(node.amount, 1 / tp))), "full", "split"
            case "heads" | "latent_heads":
                return _Applied(_split_heads(node, tp)), "split", "split"
            case "elementwise":
                if "split" in made or "partial" in made:
                    return _Applied(replace(node, amount=scaled(node.amount, 1 / tp))), "split", "split"
                return _Applied(replace(node, copies=node.copies * tp)), None, "full"
            case "dispatch":
                return _Applied(replace(node, copies=node.copies * tp)), "full", "full"
            case "expert_up":
                return _Applied(replace(node, n=node.n // expert_tp), expert_axis), "full", "split"
            case "expert_act":
                return (
                    _Applied(replace(node, amount=scaled(node.amount, 1 / expert_tp)), expert_axis),
                    None,
                    "split",
                )
            case "expert_down":
                has_some = self.plan.ep.degree > 1 and not self.plan.ep.sends  # a rank adds its own experts only
                made_layout: Layout = "partial" if expert_tp > 1 or has_some else "full"
                return _Applied(replace(node, k=node.k // expert_tp), expert_axis), None, made_layout
            case "combine":
                if self.plan.ep.sends:
                    return _Applied(node, expert_axis), "full", "full"
                return _Applied(replace(node, copies=node.copies * tp)), None, _sum_layout(made)
            case "linear":
                layout = _sum_layout(made)
                wanted_sum: Layout | None = None if layout == "partial" and "full" not in made else "full"
                copies = replace(node, copies=node.copies * tp)
                return _Applied(copies), wanted_sum, layout if wanted_sum is None else "full"
            case _:
                structural = node.is_structural
                copies = node if structural else replace(node, copies=node.copies * tp)
                return _Applied(copies), None if structural else "full", "full"


class _Applied:
    """A split node, and the axis of a collective that converts its inputs."""

    def __init__(self, node: Node, axis_tp: Axis = "tp") -> None:
        self.node = node
        self.axis_tp = axis_tp


def _sum_layout(made: list[Layout]) -> Layout:
    return "partial" if "partial" in made else "full"


def kv_heads_per_rank(kv_heads: int, ranks: int) -> int:
    """K/V heads that one rank holds: kv_heads / ranks, or one replicated head when ranks exceed them."""
    return max(1, kv_heads // ranks)


def _split_qkv(node: Node, tp: int) -> Node:
    heads, kv = node.heads // tp, kv_heads_per_rank(node.kv_heads, tp)
    width = heads * node.qk_dim + kv * (node.qk_dim + node.v_dim)
    return replace(node, n=width, heads=heads, kv_heads=kv)


def _split_heads(node: Node, tp: int) -> Node:
    """Split work that is local to heads; K/V heads are replicated where tp exceeds them."""
    heads, kv = node.heads // tp, kv_heads_per_rank(node.kv_heads, tp)
    if node.op != "memory":
        return replace(node, heads=heads, kv_heads=kv)
    if node.name == "kv_write":
        return replace(
            node, amount=scaled(node.amount, kv / node.kv_heads), heads=heads, kv_heads=kv,
            copies=node.copies * (kv * tp // node.kv_heads),
        )  # fmt: skip
    whole = (node.heads + node.kv_heads) * node.qk_dim
    part = (heads + kv) * node.qk_dim
    return replace(node, amount=scaled(node.amount, part / whole), heads=heads, kv_heads=kv)
