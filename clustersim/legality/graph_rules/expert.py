"""EP-2, EP-6 and EP-7 on the step graph: every token to k experts, experts in one place, attention as it was."""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.census import complete
from clustersim.legality.graph_rules.finding import judged, layer_name, operator
from clustersim.legality.graph_rules.traits import handles_every_token, routes_as_the_model, rows_of_experts
from clustersim.legality.graph_rules.views.exchange import copies_sent
from clustersim.legality.graph_rules.views.graph import DATA, BoolArray, GraphView
from clustersim.legality.graph_rules.views.tokens import carried
from clustersim.legality.prices.exchange import copy_bytes
from clustersim.model.architecture import Moe
from clustersim.plan.parallel import ParallelPlan


def routes_all(view: GraphView) -> Finding:
    """EP-2: per layer and step, what is dispatched, computed and combined is tokens × k."""
    plan, model = view.plan, view.model
    if plan is None or model is None:
        return NOTHING
    tokens = carried(view, plan).tokens
    top_k = np.array([layer.ffn.top_k if isinstance(layer.ffn, Moe) else 0 for layer in model.layers] + [0], np.int64)
    nodes = np.flatnonzero(view.named("expert_up", "expert_down") & ~np.isnan(view.amount))
    present = complete(view, "EP-2")
    if not len(nodes):
        return present
    k = top_k[view.layer[nodes]]
    step = view.step[nodes]
    expected: FloatArray
    if plan.ep.degree == 1:
        expected = (tokens[step, view.s_of(view.rank[nodes])] * k).astype(np.float64)
    else:
        expected = (tokens[step].sum(axis=1) * k / plan.ep.degree).astype(np.float64)
    found: FloatArray = view.amount[nodes]
    even = view.evenly_routed and plan.ep.routing is None and not plan.ep.redundant
    if not even:
        replica = view.replica_of(view.rank[nodes])
        cell = np.stack([step, view.layer[nodes], view.name[nodes], replica])
        which = np.unique(cell, axis=1, return_inverse=True)[1].ravel()
        found = np.bincount(which, weights=found)[which].astype(np.float64)
        expected = np.bincount(which, weights=expected)[which].astype(np.float64)
    told = even | (_tellers(view)[nodes] == _tellers(view, among=nodes)[nodes])
    wrong = np.flatnonzero(told & (np.abs(found - expected) > 1e-6 * np.maximum(expected, 1)))

    def message(at: int) -> str:
        return f"{operator(view, int(nodes[at]))} takes {found[at]:g} routed tokens, where {expected[at]:g} were chosen"

    fix = "let every token visit its top-k experts once each, and no other"
    counted = judged(view, len(nodes), wrong, message, fix, nodes)
    chosen = routes_as_the_model(view, model, "top_k", fix)
    acts = handles_every_token(view, plan, view.named("expert_act"), rows_of_experts(view), fix)
    return merged(present, counted, chosen, acts, _carries_all(view, plan, top_k, fix), _sends_apart(view, plan, fix))


def _sends_apart(view: GraphView, plan: ParallelPlan, fix: str) -> Finding:
    """Dispatch and combine give each rank its own tokens, or the plan's all-gather all, and its reduce-scatter sums."""
    if plan.ep.degree == 1:
        return NOTHING
    gathers = plan.ep.exchange == "all_gather"
    due = {"dispatch": "all_gather", "combine": "reduce_scatter"} if gathers else {}
    alike = view.named("dispatch", "combine") & view.mask(lambda node: node.op in COLLECTIVE_OPS)
    alike &= view.mask(lambda node: node.op != due.get(node.name, "all_to_all"))

    def message(node: int) -> str:
        found = view.symbols[int(view.symbol[node])]
        if gathers:
            return f"{operator(view, node)} is {found.op}, where the plan's exchange is {due[found.name]}"
        return f"{operator(view, node)} is {found.op}, which gives all ranks the same"

    return judged(view, 0, np.flatnonzero(alike), message, fix, np.arange(len(view)))


def _tellers(view: GraphView, among: Int64Array | None = None) -> Int64Array:
    """Return per node how many (of some) nodes are the same operator of its layer, step and replica."""
    cell = np.stack([view.step, view.layer, view.name, view.replica_of(view.rank)])
    which = np.unique(cell, axis=1, return_inverse=True)[1].ravel()
    counts: Int64Array = np.bincount(which if among is None else which[among], minlength=len(view))[which]
    return counts


def _carries_all(view: GraphView, plan: ParallelPlan, top_k: Int64Array, fix: str) -> Finding:
    """Dispatch and combine carry what the experts take, in bytes.

    A rank sends its 1/tp slice of its segment's tokens, k times each, to all ranks that share an expert; where tokens
    stay, and without EP, a permutation in memory reads and writes them, of each rank those of its experts. Where the
    experts of some rank get more than any rank sends, their rows count: all of them arrive there, and each of the ranks
    that share an expert sends its part of the results. DeepEP dispatches in a format of its own, and its normal kernels
    a token once to each EP rank that it reaches. An all-gather carries all tokens once, a reduce-scatter sums of them.
    """
    model, precision = view.model, view.precision
    if model is None or precision is None:
        return NOTHING
    tokens = carried(view, plan).tokens
    nodes = np.flatnonzero(view.named("dispatch", "combine") & ~np.isnan(view.amount))
    step, k = view.step[nodes], top_k[view.layer[nodes]]
    if not plan.ep.sends:
        moved = k * model.hidden * precision.activation_bytes
        expected = 2.0 * tokens[step, view.s_of(view.rank[nodes])] * moved / plan.ep.degree
    else:
        dispatches = view.named("dispatch")[nodes]
        share = np.where(dispatches, plan.expert_tp, 1) / plan.tp
        part = np.where(dispatches, 1, plan.expert_tp)
        copies, most = copies_sent(view, plan, nodes, tokens[step].sum(axis=1))
        each = np.array([copy_bytes(name, plan.ep, precision, model.hidden) for name in ("combine", "dispatch")])
        moved = each[dispatches.astype(np.int64)]
        expected = np.maximum(tokens[step].max(axis=1) * copies * moved * share, most * moved / part)
        if plan.ep.exchange == "all_gather":
            expected = tokens[step].sum(axis=1) * moved
    wrong = np.flatnonzero(np.abs(view.amount[nodes] - expected) > 1e-6 * np.maximum(expected, 1))

    def message(at: int) -> str:
        found, due = view.amount[nodes][at], _copies(plan, int(k[at]))
        return f"{operator(view, int(nodes[at]))} carries {found:,.0f} bytes, where {due} are {expected[at]:,.0f}"

    return judged(view, len(nodes), wrong, message, fix, nodes)


def _copies(plan: ParallelPlan, top_k: int) -> str:
    if plan.ep.exchange == "all_gather":
        return "all tokens, once each,"
    if plan.ep.exchange == "deepep_normal":
        return "a copy of each token for each EP rank that it reaches"
    return f"tokens × {top_k}" + ("" if plan.ep.exchange == "all_to_all" else ", as DeepEP sends them,")


def one_map(view: GraphView) -> Finding:
    """EP-6: all ranks hold the experts that the one map gives them, and TP inside an expert stays in its group."""
    plan, model = view.plan, view.model
    if plan is None or model is None:
        return NOTHING
    nodes = np.flatnonzero(view.mask(lambda node: node.op == "grouped_gemm") & (view.layer >= 0))
    total = np.array([layer.ffn.num_experts if isinstance(layer.ffn, Moe) else 0 for layer in model.layers], np.int64)
    expected = (total[view.layer[nodes]] + plan.ep.redundant) // plan.ep.degree
    found = view.column("experts")[nodes]
    wrong = np.flatnonzero((found != expected) & view.says("experts")[nodes])

    def message(at: int) -> str:
        return f"the rank holds {found[at]} experts, where the map of all ranks gives it {expected[at]}"

    held = judged(view, len(nodes), wrong, message, "let all ranks have one map from experts to ranks", nodes)
    total_told = routes_as_the_model(view, model, "num_experts", "let all ranks have one map from experts to ranks")
    held = merged(held, total_told, complete(view, "EP-6"))
    if plan.ep.degree == 1:
        return held
    share = plan.expert_tp
    inner = view.mask(lambda node: node.axis == "expert_tp") | _sums_experts(view)
    member = inner[view.member_node]
    node, rank = view.member_node[member], view.member_rank[member]
    astray = inner & (view.size != share)
    astray[node[rank // share != view.rank[node] // share]] = True
    across = judged(
        view, 0, np.flatnonzero(astray), lambda node: f"{operator(view, node)} joins ranks of different experts",
        f"join the {share} ranks that share an expert's tensors", np.arange(len(view)),
    )  # fmt: skip
    return merged(held, across)


def _sums_experts(view: GraphView) -> BoolArray:
    """Return which collectives put parts of experts together: they take them from the experts themselves."""
    expert = view.mask(lambda node: node.op == "grouped_gemm")
    found = np.zeros(len(view), bool)
    found[view.target[(view.kind == DATA) & view.within_step & expert[view.source]]] = True
    found &= view.mask(lambda node: node.op in COLLECTIVE_OPS and node.op != "all_to_all")
    return found & ~view.named("dispatch", "combine")


def leaves_attention(view: GraphView) -> Finding:
    """EP-7: attention and K/V know nothing of EP: no collective of expert ranks stands among them."""
    plan = view.plan
    if plan is None or plan.ep.degree == 1:
        return NOTHING
    inner = view.mask(lambda node: node.module == "attention")
    joins = view.mask(lambda node: node.op in COLLECTIVE_OPS and node.axis in ("stage", "expert_tp"))
    bad = np.flatnonzero(inner & joins)

    def message(node: int) -> str:
        return f"{operator(view, node)} joins expert ranks inside the attention of {layer_name(view, node)}"

    fix = "spread experts, and leave attention and its K/V as without EP"
    return judged(view, int(inner.sum()), bad, message, fix, np.arange(len(view)))
