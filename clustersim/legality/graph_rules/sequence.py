"""SP-1, SP-3 and SP-6 on the step graph: how tokens are split, in prefill only, and the same all the way."""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.finding import judged, operator
from clustersim.legality.graph_rules.shares import TOKEN_WISE
from clustersim.legality.graph_rules.traits import handles_every_token
from clustersim.legality.graph_rules.views.graph import ORDER, BoolArray, GraphView
from clustersim.legality.graph_rules.views.layouts import CAPS
from clustersim.legality.graph_rules.views.tokens import carried, chunk_segments, read_keys
from clustersim.plan.parallel import ParallelPlan

RESHARDS = ("all_to_all", "reduce_scatter")
"""Collectives after which other ranks have the tokens."""


def splits_tokens(view: GraphView) -> bool:
    """Whether the plan splits sequences; replicas in lockstep have whole ones."""
    return view.plan is not None and view.plan.sp.degree > 1 and not view.plan.sp.whole


def sp_collectives(view: GraphView) -> BoolArray:
    """Return which nodes are collectives over SP ranks, the move of K/V before the boundary excepted."""
    return view.mask(lambda node: node.op in COLLECTIVE_OPS and node.axis == "sp" and node.name != "kv_move")


def at_attention(view: GraphView) -> BoolArray:
    """Return which nodes belong to attention; of a node that does not say where it belongs it is taken as given."""
    return view.mask(lambda node: node.module == "attention") | ~view.says("module")


def prefills(view: GraphView) -> BoolArray:
    """Return which nodes are of steps that prefill."""
    return view.of_steps(lambda step: bool(step.chunks))


def partitions(view: GraphView) -> Finding:
    """SP-1: the segments that the ranks work on are disjoint and cover the prompt."""
    plan = view.plan
    if plan is None or not splits_tokens(view):
        return NOTHING
    node = _first_products(view)
    if not len(node):
        return NOTHING
    tokens = carried(view, plan).tokens
    expected = tokens[view.step[node], view.s_of(view.rank[node])].astype(np.float64)
    if not view.in_features:  # of a graph from outside, which ranks have the longer segments is its own affair
        cell = view.step[node] * max(1, view.num_ranks) + view.stage[node] * plan.tp + view.rank[node] % plan.tp
        _, which = np.unique(cell, return_inverse=True)
        total, wanted = (np.bincount(which, weights=part)[which] for part in (view.amount[node], expected))
        whole = np.bincount(which)[which] == plan.sp.degree  # else a rank does not say how many tokens it has
        expected = np.where(whole | (total > wanted), view.amount[node] + wanted - total, view.amount[node])
    wrong = np.flatnonzero(np.abs(view.amount[node] - expected) > 1e-6)

    def message(at: int) -> str:
        found = view.amount[node][at]
        what = "a token is in two segments" if found > expected[at] else "a token is in no segment"
        return f"the rank works on {found:g} tokens, where its segment has {expected[at]:g}: {what}"

    return judged(view, len(node), wrong, message, "put every token of the prompt into exactly one segment", node)


def _first_products(view: GraphView) -> Int64Array:
    """Return of each rank and prefill step the first product that has a row per token."""
    node = np.flatnonzero(view.named(*TOKEN_WISE) & prefills(view) & ~np.isnan(view.amount))
    _, first = np.unique(view.step[node] * max(1, view.num_ranks) + view.rank[node], return_index=True)
    return node[first]


def same_partition(view: GraphView) -> Finding:
    """SP-6: a rank has the same tokens in every product of a step, and nothing deals them out anew."""
    plan = view.plan
    if plan is None or not splits_tokens(view):
        return NOTHING
    first = _first_products(view)
    width = max(1, view.num_ranks)
    rows = np.zeros(len(view.steps) * width)
    rows[view.step[first] * width + view.rank[first]] = view.amount[first]
    node = np.flatnonzero(view.named(*TOKEN_WISE) & prefills(view) & ~np.isnan(view.amount))
    expected = rows[view.step[node] * width + view.rank[node]]
    wrong = np.flatnonzero(np.abs(view.amount[node] - expected) > 1e-6)

    def message(at: int) -> str:
        found = view.amount[node][at]
        return f"the rank works on {found:g} tokens here, and on {expected[at]:g} in the first product of the step"

    fix = "keep the partition of tokens through all projections and layers"
    reshards = np.flatnonzero(sp_collectives(view) & view.mask(lambda node: node.op in RESHARDS) & ~at_attention(view))
    dealt = judged(
        view, 0, reshards, lambda at: f"{operator(view, at)} deals tokens out anew", fix, np.arange(len(view))
    )
    by_rank = rows.reshape(len(view.steps), width)
    asked = _asked(view, plan, by_rank, fix)
    tokens = carried(view, plan).tokens[view.step, view.s_of(view.rank)]
    own = tokens if view.in_features else by_rank[view.step, view.rank]
    own = np.where(view.named("final_norm", *CAPS), _sampled_on(view, plan), own).astype(np.float64)
    moved = handles_every_token(view, plan, prefills(view) & ~view.named("expert_act"), own, fix)
    moved = merged(moved, _expanded(view, plan, fix))
    same = judged(view, len(node), wrong, message, fix, node)
    return merged(same, dealt, asked, moved, _sampled_where_computed(view, plan, fix))


def _expanded(view: GraphView, plan: ParallelPlan, fix: str) -> Finding:
    """The keys and values that a rank's prompt attends to are expanded from latents, and no others."""
    if not view.in_features:
        return NOTHING
    node = np.flatnonzero(view.named("kv_b_proj") & ~np.isnan(view.amount))
    expected = read_keys(view, plan)[view.step[node], view.s_of(view.rank[node])]
    wrong = np.flatnonzero(np.abs(view.amount[node] - expected) > 1e-6)

    def message(at: int) -> str:
        return f"the rank expands {view.amount[node][at]:g} latents, where its tokens attend to {expected[at]}"

    return judged(view, 0, wrong, message, fix, node)


def _sampled_on(view: GraphView, plan: ParallelPlan) -> FloatArray:
    """Return per node the tokens of its rank that are sampled: those that it decodes, and the last one of a chunk."""
    expected = carried(view, plan).decode.astype(np.float64)
    for at, step in enumerate(view.steps):
        for chunk in step.chunks:
            for s, runs in enumerate(chunk_segments(chunk, plan)):
                expected[at, s] += any(chunk.count - 1 in range(*run) for run in runs)
    found: FloatArray = expected[view.step, view.s_of(view.rank)]
    return found


def _asked(view: GraphView, plan: ParallelPlan, rows: FloatArray, fix: str) -> Finding:
    """Attention has a query per token of a prompt that its rank has, or, by heads, per token of all ranks."""
    numbers = carried(view, plan)
    node = np.flatnonzero(view.mask(lambda node: node.op == "attention_prefill") & ~np.isnan(view.amount))
    node = node[rows[view.step[node], view.rank[node]] > 0]
    step, rank = view.step[node], view.rank[node]
    if plan.sp.scheme == "all_to_all":
        expected = numbers.prefill.sum(axis=1)[step].astype(np.float64)
    else:
        expected = rows[step, rank] - numbers.decode[step, view.s_of(rank)]
    wrong = np.flatnonzero(np.abs(view.amount[node] - expected) > 1e-6)

    def message(at: int) -> str:
        return f"{view.amount[node][at]:g} tokens attend, where the rank has {expected[at]:g} of the prompt"

    return judged(view, 0, wrong, message, fix, node)


def _sampled_where_computed(view: GraphView, plan: ParallelPlan, fix: str) -> Finding:
    """The LM head works on a rank's own tokens: those that it decodes, and the last one of a chunk if it has that."""
    node = np.flatnonzero(view.named("lm_head") & prefills(view) & ~np.isnan(view.amount))
    if not view.in_features:  # a graph from outside may compute logits of more tokens, and on other ranks
        return _enough_logits(view, plan, node, carried(view, plan).decode.sum(axis=1).astype(np.float64))
    rows = _sampled_on(view, plan)[node]
    wrong = np.flatnonzero(np.abs(view.amount[node] - rows) > 1e-6)

    def message(at: int) -> str:
        return f"the rank makes logits of {view.amount[node][at]:g} tokens, and has {rows[at]:g} that are sampled"

    return judged(view, len(node), wrong, message, fix, node)


def _enough_logits(view: GraphView, plan: ParallelPlan, node: Int64Array, decodes: FloatArray) -> Finding:
    """All ranks together make logits of every sequence that is sampled."""
    cell = view.step[node] * plan.tp + view.rank[node] % plan.tp
    made = np.bincount(cell, weights=view.amount[node], minlength=len(view.steps) * plan.tp)[cell]
    sampled = (decodes + np.array([len(step.chunks) for step in view.steps]))[view.step[node]]
    alone = np.bincount(cell)[cell] < plan.sp.degree  # not every rank says how many it makes
    wrong = np.flatnonzero((made < sampled - 1e-6) & ~alone)
    return judged(
        view, len(node), wrong,
        lambda at: f"all ranks make logits of {made[at]:g} tokens, and {sampled[at]:g} are sampled",
        "make logits of every token that is sampled", node,
    )  # fmt: skip


def prefill_only(view: GraphView) -> Finding:
    """SP-3: no decode is split by tokens, and whole sequences are on the ranks that the plan names."""
    plan = view.plan
    if plan is None or not splits_tokens(view):
        return NOTHING
    decodes = view.of_steps(lambda step: step.kind == "decode")
    over = np.flatnonzero(decodes & view.mask(lambda node: node.axis == "sp" or node.op == "attention_prefill"))
    fix = "let SP ranks idle in decode, or give each whole sequences; a decode step has no tokens to split"
    inside = judged(
        view, int(decodes.sum()), over, lambda _: "a decode step has an operator of SP", fix, np.arange(len(view))
    )
    inside = merged(inside, _exchanged(view, fix), _said_alone(view, fix))
    if plan.sp.decode != "idle":
        return inside
    everywhere = view.of_steps(lambda step: step.kind != "prefill")
    cores = np.flatnonzero(everywhere & view.mask(lambda node: node.op == "attention_decode"))
    busy = np.flatnonzero(view.s_of(view.rank[cores]) > 0)
    idle = judged(
        view, len(cores), busy, lambda _: "the rank decodes, where the plan lets all SP ranks but the first idle",
        fix, cores,
    )  # fmt: skip
    return merged(inside, idle)


def _said_alone(view: GraphView, fix: str) -> Finding:
    """What is said to be on the first SP rank only is nowhere else, and what idle ranks lack is not said of all."""
    cell = np.stack([view.step, view.layer, view.stage, view.name])
    _, which = np.unique(cell, axis=1, return_inverse=True)
    which = which.ravel()
    last = np.zeros(len(view), np.int64)
    np.maximum.at(last, which[view.member_node], view.s_of(view.member_rank))
    alone = view.mask(lambda node: node.where == "s0")
    decodes = view.of_steps(lambda step: step.kind == "decode") & view.mask(lambda node: node.op not in COLLECTIVE_OPS)
    decodes &= (view.size > 0) & (view.plan is not None and view.plan.sp.decode == "idle")
    wrong = np.flatnonzero(view.says("where") & (alone != (last[which] == 0)) & (alone | decodes))
    return judged(
        view, 0, wrong, lambda node: f"it is said to be on {'one' if alone[node] else 'every'} SP rank, and is not",
        fix, np.arange(len(view)),
    )  # fmt: skip


def _exchanged(view: GraphView, fix: str) -> Finding:
    """The attention of new tokens takes nothing from a collective over SP ranks, beside a prompt either."""
    decode = view.mask(lambda node: node.op == "attention_decode")
    edges = np.flatnonzero(sp_collectives(view)[view.source] & decode[view.target] & (view.kind != ORDER))
    return judged(
        view, 0, edges, lambda edge: f"a new token's attention takes K/V from {operator(view, int(view.source[edge]))}",
        fix, view.target,
    )  # fmt: skip
