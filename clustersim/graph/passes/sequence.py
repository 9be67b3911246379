"""The sequence pass: tokens of a prompt split over SP ranks in prefill, their K/V exposed at attention.

Schemes, per attention of a prefill or mixed step:

- ``all_gather``: every SP rank receives the K/V of all segments (and of the context), then attends.
- ``ring``: K/V segments travel around the SP ranks; attention works on one segment while the next one travels
  (Liu et al., "Ring Attention", 2023, arXiv:2310.01889).
- ``all_to_all``: queries, keys and values are re-split from tokens to heads and back (Jacobs et al., "DeepSpeed
  Ulysses", 2023, arXiv:2309.14509).

After the last layer of a stage the K/V that the step wrote moves to the rank that will decode the sequence
(``kv_move``, rule SP-8), and only then comes the phase boundary of that stage. Decode steps carry no SP partition:
other ranks idle, or own whole sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import INPUT, Blueprint, Body, BodyBuilder, EdgeKind, Node, Terms, Unit
from clustersim.graph.operators import boundary_node, scaled
from clustersim.plan.parallel import ParallelPlan

Inputs = Sequence[tuple[int, EdgeKind]]
"""Positions of the new body that a node needs, with the kind of edge."""

EXPERT_NODES = ("dispatch", "expert_up", "expert_act", "expert_down", "combine")


def sequence_pass(blueprint: Blueprint, plan: ParallelPlan, precision: Precision) -> Blueprint:
    """Split prefill tokens over the SP ranks; at sp 1 the identity."""
    sp = plan.sp.degree
    if sp == 1:
        return blueprint
    if plan.sp.whole:
        return replace(blueprint, sp=sp)
    if blueprint.kind == "decode":
        changed = blueprint if plan.sp.decode == "dp" else blueprint.map_bodies(lambda b: _idle(b, plan))
        return replace(changed, sp=sp)
    expose = _Exposure(plan, precision)
    changed = blueprint.map_bodies(lambda b: expose.body(b) if b.name == "attention" else b)
    if plan.sp.decode == "idle":
        changed = changed.map_bodies(_decode_on_first)
    stages = []
    for stage in changed.stages:
        written = math.fsum(_cache_bytes(unit.body, precision.kv_bytes) for unit in stage)
        if written == 0:
            stages.append(stage)
            continue
        move = _move(written, plan)
        *inner, last = stage
        if last.body.name == "send":
            stages.append((*inner, Unit(body=_moving(move), layer=-1), last))
        else:
            stages.append((*inner, replace(last, body=_moving_beside(last.body, move))))
    return replace(changed, stages=tuple(stages), sp=sp)


def _idle(body: Body, plan: ParallelPlan) -> Body:
    """Keep only SP rank 0 busy, except where experts live on every rank of the stage."""
    spread = plan.ep.sends
    nodes = tuple(
        node if spread and node.name.startswith(EXPERT_NODES) else replace(node, where="s0") for node in body.nodes
    )
    return replace(body, nodes=nodes)


def _decode_on_first(body: Body) -> Body:
    """In a mixed step with idle decode, decode work sits on SP rank 0 alone."""
    decode = ("attention_decode", "q_absorb", "v_absorb")
    nodes = tuple(replace(node, where="s0") if node.name.startswith(decode) else node for node in body.nodes)
    return replace(body, nodes=nodes)


def kv_entry_elements(write: Node) -> int:
    """Elements of one token's K/V (or latent) that a ``kv_write`` node appends on one rank."""
    return write.kv_heads * (write.qk_dim + write.v_dim) if write.kv_heads else write.width


def _cache_bytes(body: Body, kv_dtype_bytes: float) -> float:
    """Bytes of K/V per token that this body writes on one rank."""
    return math.fsum(kv_entry_elements(node) * kv_dtype_bytes for node in body.nodes if node.name == "kv_write")


def _move(bytes_per_token: float, plan: ParallelPlan) -> Node:
    # The payload of a gather is what its owner has at the end; that of an all-to-all is what one rank has before.
    op, moved = ("gather", "all_prefill_tokens") if plan.sp.decode == "idle" else ("all_to_all", "segment_tokens")
    return Node(name="kv_move", op=op, module="attention", amount=((moved, bytes_per_token),), axis="sp", stream="comm")


def _moving(move: Node) -> Body:
    """Return the body that moves K/V of an inner stage, up to a phase boundary of its own."""
    build = BodyBuilder("kv_move")
    build.add(boundary_node(), build.add(move, INPUT, kind="kv"), kind="boundary")
    return build.build(INPUT)


def _moving_beside(head: Body, move: Node) -> Body:
    """Return the head of the last stage with the move beside it; its phase boundary waits for both."""
    build = BodyBuilder(head.name)
    moved = build.add(move, INPUT, kind="kv")
    at = {INPUT: INPUT} | {position: build.add(node) for position, node in enumerate(head.nodes)}
    for edge in head.edges:
        build.edge(at[edge.source], at[edge.target], edge.kind)
    (boundary,) = (at[position] for position, node in enumerate(head.nodes) if node.op == "boundary")
    build.edge(moved, boundary, "boundary")
    return build.build(at[head.exit])


class _Exposure:
    """Rewrites the prefill attention of one body for the chosen scheme."""

    def __init__(self, plan: ParallelPlan, precision: Precision) -> None:
        self.sp = plan.sp.degree
        self.scheme = plan.sp.scheme
        self.act = precision.activation_bytes

    def body(self, body: Body) -> Body:
        build = BodyBuilder(body.name)
        moved = {INPUT: INPUT}
        write = next(node for node in body.nodes if node.name == "kv_write")
        entry = kv_entry_elements(write)
        for position, node in enumerate(body.nodes):
            sources = [edge for edge in body.edges if edge.target == position]
            if node.name != "attention_prefill" and node.name != "kv_b_proj":
                moved[position] = build.add(node)
                for edge in sources:
                    build.edge(moved[edge.source], moved[position], edge.kind)
                continue
            inputs = [(moved[edge.source], edge.kind) for edge in sources]
            if node.name == "kv_b_proj" or self.scheme == "all_gather":
                moved[position] = self._gathered(build, node, inputs, entry, body)
            elif self.scheme == "ring":
                moved[position] = self._ring(build, node, inputs, entry)
            else:
                moved[position] = self._by_heads(build, node, inputs)
        return build.build(moved[body.exit])

    def _exposure(self, name: str, op: str, feature: str, elements: float) -> Node:
        return Node(
            name=name, op=op, module="attention", amount=((feature, elements * self.act),), axis="sp", stream="comm",
            width=round(elements),
        )  # fmt: skip

    def _gathered(self, build: BodyBuilder, node: Node, inputs: Inputs, entry: int, body: Body) -> int:
        latent = any(n.name == "kv_b_proj" for n in body.nodes)
        if latent and node.name == "attention_prefill":
            position = build.add(node)
        else:
            gather = build.add(self._exposure("kv_all_gather", "all_gather", "exposed_tokens", entry))
            for source, kind in inputs:
                if kind == "data" or build.nodes[source].name == "kv_read":
                    build.edge(source, gather, "data" if kind == "data" else "kv")
            position = build.add(node, gather, kind="kv")
        for source, kind in inputs:
            build.edge(source, position, "kv" if kind == "kv" else "data")
        return position

    def _ring(self, build: BodyBuilder, node: Node, inputs: Inputs, entry: int) -> int:
        data = [source for source, kind in inputs if kind == "data"]
        previous_shift = -2
        attended = -2
        shifts = []
        for step in range(1, self.sp):
            shift = build.add(self._exposure(f"kv_ring_{step}", "ring_shift", "ring_tokens", entry))
            for source in data if step == 1 else [previous_shift]:
                build.edge(source, shift, "data" if step == 1 else "kv")
            if step == 1:
                for source, kind in inputs:
                    if kind == "kv" and build.nodes[source].name == "kv_read":
                        build.edge(source, shift, "kv")
            shifts.append(shift)
            previous_shift = shift
        for step in range(self.sp):
            part = replace(node, name=f"attention_prefill_{step}", variant=replace(node.variant, hop=step))
            position = build.add(part)
            for source, kind in inputs:
                build.edge(source, position, "kv" if kind == "kv" else "data")
            if step > 0:
                build.edge(shifts[step - 1], position, "kv")
                build.edge(attended, position, "data")
            attended = position
        return attended

    def _by_heads(self, build: BodyBuilder, node: Node, inputs: Inputs) -> int:
        needed = _kv_heads_needed(node.heads, node.kv_heads, self.sp)
        entry = sum(needed) * (node.qk_dim + node.v_dim)
        scatter = self._exposure("qkv_all_to_all", "all_to_all", "segment_tokens", node.heads * node.qk_dim + entry)
        context = scaled((("context_tokens", 1.0),), entry * self.act)
        amount: Terms = scatter.amount + context
        first = build.add(replace(scatter, amount=amount))
        for source, kind in inputs:
            if kind == "data" or build.nodes[source].name == "kv_read":
                build.edge(source, first, "data" if kind == "data" else "kv")
        core = replace(
            node, heads=node.heads // self.sp, kv_heads=max(needed), variant=replace(node.variant, by_heads=True),
            amount=(("all_prefill_tokens", 1.0),),
        )  # fmt: skip
        position = build.add(core, first, kind="kv")
        for source, kind in inputs:
            if kind == "kv":
                build.edge(source, position, "kv")
        back = self._exposure("out_all_to_all", "all_to_all", "segment_tokens", node.heads * node.v_dim)
        return build.add(back, position)


def _kv_heads_needed(heads: int, kv_heads: int, sp: int) -> list[int]:
    """Return for each SP rank the K/V heads that its run of query heads attends with; neighbours may share one."""
    each, group = heads // sp, heads // kv_heads
    return [-(-(s + 1) * each // group) - s * each // group for s in range(sp)]
