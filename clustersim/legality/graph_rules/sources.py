"""Parts of SP-2 and SP-5: where the K/V that SP ranks expose comes from, who takes part, and who takes it.

A collective exposes K/V of its own layer, step and stage: those of the rank's new tokens and of the tokens that it has
cached or, later in a ring, those that the shift before it carried.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.finding import Finding, merged
from clustersim.legality.graph_rules.finding import judged, operator, place
from clustersim.legality.graph_rules.kinds import kinds_of
from clustersim.legality.graph_rules.views.dataflow import on_one_rank
from clustersim.legality.graph_rules.views.graph import KV, ORDER, BoolArray, GraphView
from clustersim.legality.reference import attention_inputs
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan

CACHE: Final = ("kv_read", "kv_write")
TAKERS: Final = ("attention_prefill", "kv_b_proj")
FIX: Final = "expose in each layer the keys and values of its own tokens, from every SP rank to every SP rank"


def makers(model: ModelSpec) -> dict[str, None]:
    """Return the operators that make the keys and values of new tokens."""
    layers = dict.fromkeys(model.layers)
    return dict.fromkeys(attention_inputs(layer, prefills=True, decodes=True)["kv_write"][0] for layer in layers)


def entering(view: GraphView, exposes: BoolArray, model: ModelSpec | None) -> BoolArray:
    """Return which edges bring a collective what it may expose: of its layer and step, from a rank that takes part.

    Operators that the model does not have, such as separate projections, may make keys and values as well.
    """
    source, target = view.source, view.target
    alike = view.within_step & (view.layer[source] == view.layer[target]) & (view.stage[source] == view.stage[target])
    alike &= on_one_rank(view) & exposes[target]
    if model is None:
        return np.asarray(alike, bool)
    known = view.named(*kinds_of(model))
    joins = view.mask(lambda node: node.op in COLLECTIVE_OPS)
    made = view.named(*makers(model)) | (~known & ~joins)
    ring = view.mask(lambda node: node.op == "ring_shift")
    later = _later(view, exposes)
    behind = _behind(view, exposes)
    first = (made | view.named(*CACHE))[source] & ~later[target] & ~behind[target]
    passed = exposes[source] & ring[source] & ring[target]
    back = behind[target] & view.named("attention_prefill")[source]
    found: BoolArray = alike & (first | passed | back)
    return found


def _later(view: GraphView, exposes: BoolArray) -> BoolArray:
    """Return which collectives pass on what another one carried: later shifts of a ring."""
    found = np.zeros(len(view), bool)
    found[view.target[exposes[view.source] & exposes[view.target] & (view.kind != ORDER)]] = True
    found &= view.mask(lambda node: node.op == "ring_shift")
    return found


def _behind(view: GraphView, exposes: BoolArray) -> BoolArray:
    """Return which collectives take what attention made: they bring it back to the ranks of its tokens."""
    found = np.zeros(len(view), bool)
    found[view.target[exposes[view.target] & view.named("attention_prefill")[view.source]]] = True
    found &= view.mask(lambda node: node.op == "all_to_all")
    return found


def of_own_layer(view: GraphView, exposes: BoolArray) -> Finding:
    """SP-2: a collective over SP ranks takes nothing but the K/V of its layer, and joins all SP ranks of a TP rank."""
    plan, model = view.plan, view.model
    if plan is None or model is None:
        return Finding(looked_at=0)
    told = exposes & view.says("layer")
    edges = np.flatnonzero(told[view.target] & (view.kind != ORDER) & view.says("layer")[view.source])
    wrong = edges[~entering(view, exposes, model)[edges]]

    def message(edge: int) -> str:
        return f"it exposes what {place(view, int(view.source[edge]))} makes: no K/V of its layer, step and ranks"

    strange = judged(view, 0, wrong, message, FIX, view.target)
    return merged(strange, whole_groups(view, plan, exposes, FIX), _of_scheme(view, plan, model, exposes))


def whole_groups(view: GraphView, plan: ParallelPlan, joins: BoolArray, fix: str) -> Finding:
    """Each of these collectives has every SP rank of one stage and TP rank, and no other rank."""
    member = joins[view.member_node]
    node, rank = view.member_node[member], view.member_rank[member]
    group = rank // plan.stage_ranks * plan.tp + rank % plan.tp
    least = np.full(len(view), np.iinfo(np.int64).max, np.int64)
    most = np.full(len(view), -1, np.int64)
    np.minimum.at(least, node, group)
    np.maximum.at(most, node, group)
    wrong = np.flatnonzero(joins & ((view.size != plan.sp.degree) | (least != most)))

    def message(node: int) -> str:
        found = int(view.size[node])
        if least[node] != most[node]:
            return f"{operator(view, node)} joins ranks of other heads or stages"
        return f"{found} ranks take part, where the plan has {plan.sp.degree} SP ranks"

    return judged(view, 0, wrong, message, fix, np.arange(len(view)))


def _of_scheme(view: GraphView, plan: ParallelPlan, model: ModelSpec, exposes: BoolArray) -> Finding:
    """Collectives are of the kind that the scheme has; latents are gathered under any."""
    op = {"ring": "ring_shift"}.get(plan.sp.scheme or "", plan.sp.scheme)
    latent = np.array([*(layer.attention.kind == "mla" for layer in model.layers), False])[view.layer]
    right = view.mask(lambda node: node.op == op) | (latent & view.mask(lambda node: node.op == "all_gather"))
    wrong = np.flatnonzero(exposes & ~right & (plan.sp.scheme is not None))
    return judged(
        view, 0, wrong, lambda node: f"{operator(view, node)} is {view.symbols[int(view.symbol[node])].op}, where the "
        f"scheme {plan.sp.scheme} has {op}", FIX, np.arange(len(view)),
    )  # fmt: skip


def taken_in_layer(view: GraphView, exposes: BoolArray, fix: str) -> Finding:
    """SP-5: the output of a collective over SP ranks goes to attention of its layer, step and ranks, and nowhere else.

    By heads, a collective takes the output of attention first, and returns it to the ranks of its tokens.
    """
    if view.model is None:
        return Finding(looked_at=0)
    source, target = view.source, view.target
    known = view.named(*kinds_of(view.model))
    joins = view.mask(lambda node: node.op in COLLECTIVE_OPS)
    behind = _behind(view, exposes)
    alike = view.within_step & (view.layer[source] == view.layer[target]) & on_one_rank(view)
    takes = view.named(*TAKERS) | exposes | (~known & ~joins)
    after = view.named("o_proj") | (joins & ~exposes) | (~known & ~joins)
    right = alike & np.where(behind[source], after[target], takes[target])
    edges = exposes[source] & (view.kind != ORDER) & ~view.named("attention_decode")[target]  # that is rule SP-3
    edges &= view.says("layer")[source] & view.says("layer")[target]
    wrong = np.flatnonzero(edges & ~right)

    def message(edge: int) -> str:
        return f"it takes what {place(view, int(source[edge]))} brought, which is for attention of that layer"

    taken = judged(view, 0, wrong, message, fix, target)
    if view.plan is None or view.plan.sp.degree == 1:
        return taken
    if view.plan.sp.scheme == "ring":
        return merged(taken, _part_by_part(view, view.plan, ~known & ~joins, fix))
    return merged(taken, _by_heads(view, known & ~joins, fix)) if view.plan.sp.scheme == "all_to_all" else taken


def _by_heads(view: GraphView, plain: BoolArray, fix: str) -> Finding:
    """What has tokens of one rank and what has heads of one rank meet at collectives over SP ranks alone."""
    source, target = view.source, view.target
    cores = view.mask(lambda node: node.op == "attention_prefill" and node.variant.by_heads)
    data = view.within_step & (view.kind != ORDER)
    past = np.flatnonzero(data & view.named("attention_prefill")[source] & plain[target])
    before = np.flatnonzero(data & (view.kind != KV) & plain[source] & cores[target])
    return merged(
        judged(view, 0, past, lambda edge: (
            f"it takes what {place(view, int(source[edge]))} makes of some heads for tokens of all SP ranks, "
            "past the collective that brings each rank all heads of its own"
        ), fix, target),
        judged(view, 0, before, lambda edge: (
            f"it attends with some heads for tokens of all SP ranks, and takes what {place(view, int(source[edge]))} "
            "makes of its own, past the collective that brings those of all"
        ), fix, target),
    )  # fmt: skip


def ring_part(view: GraphView) -> Int64Array:
    """Return per node the number that its variant has in a ring; 0 where it has none."""
    return np.array([symbol.variant.hop or 0 for symbol in view.symbols], np.int64)[view.symbol]


def ring_parts(view: GraphView, plan: ParallelPlan) -> BoolArray:
    """Return which nodes are parts of a ring that has each of its parts once in a layer of a rank; else PH-5 tells."""
    node = np.flatnonzero(view.mask(lambda node: node.op == "attention_prefill" and node.variant.hop is not None))
    node = node[view.says("variant")[node]]
    cell = np.stack([view.step[node], view.layer[node], view.rank[node]])
    _, which = np.unique(cell, axis=1, return_inverse=True)
    which = which.ravel()
    total = np.zeros((len(node), plan.sp.degree), np.int64)
    np.add.at(total, (which, ring_part(view)[node] % plan.sp.degree), 1)
    found = np.zeros(len(view), bool)
    found[node[(total[which] == 1).all(axis=1)]] = True
    return found


def _part_by_part(view: GraphView, plan: ParallelPlan, other: BoolArray, fix: str) -> Finding:
    """Each part of a ring goes on from the one before it; what the last one made is attention's, and no other's.

    Operators that the model does not have (``other``) may put parts together in their own way.
    """
    source, target = view.source, view.target
    parts = ring_parts(view, plan)
    number = ring_part(view)
    alike = view.within_step & (view.layer[source] == view.layer[target]) & on_one_rank(view) & (view.kind != ORDER)
    goes_on = parts[source] & parts[target] & (number[target] == number[source] + 1)
    ends = ~parts[target] & (number[source] == plan.sp.degree - 1)
    wrong = np.flatnonzero(parts[source] & (view.kind != ORDER) & ~(alike & (goes_on | ends | other[target])))
    fed = parts & (number == 0)
    fed[target[alike & goes_on]] = True
    fed[source[other[target]]] = True
    return merged(
        judged(view, 0, wrong, lambda edge: (
            f"it takes what {place(view, int(source[edge]))} makes, part {number[source[edge]] + 1} of "
            f"{plan.sp.degree} of a ring: that has attended to some segments only"
        ), fix, target),
        judged(view, 0, np.flatnonzero(parts & ~fed), lambda node: (
            f"it does not go on from the part of the ring before it, part {number[node]}"
        ), fix, np.arange(len(view))),
    )  # fmt: skip
