"""TP-8, EP-4 and EP-5: with every group contracted, each rank's dataflow is the single-device one."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS, Node
from clustersim.legality.finding import NOTHING, Fault, Finding, merged
from clustersim.legality.graph_rules.census import all_ranks, complete
from clustersim.legality.graph_rules.finding import fault_at, judged, operator, place
from clustersim.legality.graph_rules.kinds import of_their_kind
from clustersim.legality.graph_rules.views.dataflow import on_one_rank
from clustersim.legality.graph_rules.views.doubted import doubted
from clustersim.legality.graph_rules.views.edges import About, Cells, edges_of
from clustersim.legality.graph_rules.views.graph import ORDER, BoolArray, GraphView
from clustersim.legality.reference import EXPERT_CHAIN
from clustersim.plan.parallel import ParallelPlan

MOE_ENTRY: Final = ("moe_norm",)
CACHE: Final = ("kv_write", "kv_read")
"""What attention needs of these is rule PH-5."""
CORES: Final = ("attention_prefill", "attention_decode")


def keeps_the_graph(view: GraphView) -> Finding:
    """TP-8: with each TP group contracted and its collectives dropped, the graph is that of a single device."""

    def looked_at(needed: str, name: str) -> bool:
        inside = name in EXPERT_CHAIN or (name in MOE_ENTRY and needed == "attention_add")
        return not inside and not (needed in CACHE and name in CORES)

    present = merged(all_ranks(view), complete(view, "TP-8"))
    if view.model is not None:
        present = merged(present, of_their_kind(view, view.model))
    return merged(present, _compared(view, looked_at, "TP keeps it"), _crossing(view))


def chains_experts(view: GraphView) -> Finding:
    """EP-4: gate, dispatch, expert, combine and aggregate follow each other, within one step."""
    inner = view.named(*EXPERT_CHAIN)
    within = _compared(view, lambda _, name: name in EXPERT_CHAIN, "experts come in this order")
    across = ~view.within_step & (inner[view.source] | inner[view.target])
    told = _first(view, np.flatnonzero(across), "crosses from one step into another", "within a step")
    return merged(within, told, complete(view, "EP-4"))


def sees_attention(view: GraphView) -> Finding:
    """EP-5: what routes a token is the output of attention on that token, in that layer and step."""
    entry = view.named(*MOE_ENTRY)
    gates = view.named("gate")
    if not gates.any():
        return NOTHING
    fed = np.zeros(len(view), bool)
    layer, step, recv = view.layer, view.step, view.mask(lambda node: node.op == "recv")
    own = view.named("attention_add")[view.source] & (layer[view.source] == layer[view.target])
    fed[view.target[view.within_step & (view.kind != ORDER) & (own | recv[view.source])]] = True
    own_attention = judged(
        view, int(entry.sum()), np.flatnonzero(entry & ~fed),
        lambda node: f"{operator(view, node)} has no edge from the attention of its layer and step",
        "route a token by the output of its attention in this layer and step", np.arange(len(view)),
    )  # fmt: skip
    across = np.flatnonzero((step[view.source] != step[view.target]) & entry[view.target])
    told = _first(view, across, "feeds experts from another step", "experts only from attention of their own step")
    return merged(own_attention, told)


def _first(view: GraphView, edges: Int64Array, what: str, fix: str) -> Finding:
    return judged(
        view, 0, edges, lambda edge: f"the edge from {place(view, int(view.source[edge]))} {what}", f"keep it {fix}",
        view.target,
    )  # fmt: skip


def _crossing(view: GraphView) -> Finding:
    """Dataflow between operators of two ranks of a stage that no collective carries."""
    plan = view.plan
    if plan is None:
        return NOTHING
    single = view.mask(lambda node: node.op not in COLLECTIVE_OPS)
    source, target = view.source, view.target
    bad = (
        view.within_step
        & single[source]
        & single[target]
        & (view.rank[source] != view.rank[target])
        & (view.rank[source] // plan.stage_ranks == view.rank[target] // plan.stage_ranks)
    )
    bad |= view.within_step & _strangers(view, plan)
    return _first(view, np.flatnonzero(bad), "comes from another rank without a collective", "on one rank")


def _strangers(view: GraphView, plan: ParallelPlan) -> BoolArray:
    """Return which edges join a collective of a whole group to what has no rank in it."""
    sizes = {"tp": plan.tp, "expert_tp": plan.expert_tp, "sp": plan.sp.degree, "stage": plan.stage_ranks}
    size = np.array([sizes.get(symbol.axis or "", 0) for symbol in view.symbols], np.int64)[view.symbol]
    joins = view.mask(lambda node: node.op in COLLECTIVE_OPS) & (view.size == size)
    source, target = view.source, view.target
    same_stage = view.rank[source] // plan.stage_ranks == view.rank[target] // plan.stage_ranks
    found: BoolArray = (joins[source] | joins[target]) & ~on_one_rank(view) & same_stage & (view.size[source] > 0)
    return found & (view.size[target] > 0)


def _is_named(name: str, node: Node) -> bool:
    return node.name == name


def _compared(view: GraphView, looked_at: About, fix: str) -> Finding:
    """Compare the edges into the operators that ``looked_at(needed, name)`` is about with the single-device ones."""
    edges = edges_of(view)
    if edges is None:
        return NOTHING
    found, wanted = edges.found_by(looked_at), edges.wanted_by(looked_at)
    missing = np.setdiff1d(wanted, found, assume_unique=True)
    extra = np.setdiff1d(found, wanted, assume_unique=True)
    faults = []
    through = ", through the collectives between" * bool(view.mask(lambda node: node.op in COLLECTIVE_OPS).any())
    for keys, words in ((missing, "has no edge from"), (extra, "has an edge from")):
        if view.unknown is not None:
            keys = keys[~_in_doubt(view, edges.cells, keys)]
        if len(keys):
            step, layer, rank, needed, name = edges.cells.edge(int(keys[0]))
            others = f" (and {len(keys) - 1:,} more such edges)" if len(keys) > 1 else ""
            here = (view.step == step) & (view.layer == layer) & view.mask(partial(_is_named, name))
            at = np.flatnonzero(here)
            own = at[view.takes_part(at, np.full(len(at), rank))]
            lacks = "" if words == "has no edge from" else ", which the model does not have"
            message = f"on rank {rank} {name} {words} {needed}{lacks}{others}"
            through = (
                ", through the collectives between" if view.mask(lambda node: node.op in COLLECTIVE_OPS).any() else ""
            )
            advice = f"draw the edges of the single-device graph on every rank{through}: {fix}"
            where = f"step {step}, layer {layer}, rank {rank}, {name}"
            missing_one = Fault(where=where, message=message, fix=advice)
            faults.append(fault_at(view, int(own[0]), message, advice) if len(own) else missing_one)
    return Finding(looked_at=len(wanted), faults=tuple(faults))


def _in_doubt(view: GraphView, cells: Cells, keys: Int64Array) -> BoolArray:
    """Return which edges are into an operator that is in doubt."""
    member = doubted(view)[view.member_node]
    node, rank = view.member_node[member], view.member_rank[member]
    names = np.array([(cells.number[name], cells.number[cells.base[name]]) for name in cells.full], np.int64)
    into = cells.cell(view.step[node], view.layer[node], rank)[:, None] * len(cells.names) + names[view.symbol[node]]
    found: BoolArray = np.isin(keys // len(cells.names) ** 2 * len(cells.names) + keys % len(cells.names), into)
    return found
