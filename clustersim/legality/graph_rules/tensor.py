"""TP-2 to TP-5 and TP-7 on the step graph: what is split is put together, inside a layer and a step."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.finding import judged, layer_name, operator, place
from clustersim.legality.graph_rules.program import waiting
from clustersim.legality.graph_rules.repeated import repeated
from clustersim.legality.graph_rules.shares import passes_on_all
from clustersim.legality.graph_rules.splits import as_declared
from clustersim.legality.graph_rules.views.graph import DATA, BoolArray, GraphView
from clustersim.legality.graph_rules.views.layouts import (
    ADDS_UP,
    ELEMENTWISE,
    FULL,
    GATHERS,
    INHERITS,
    PARTIAL,
    SPLIT,
    UNKNOWN,
    WORDS,
    filled,
    layouts,
)
from clustersim.legality.graph_rules.views.reach import stuck
from clustersim.plan.parallel import ParallelPlan

HEAD_LOCAL: Final = (
    "qkv_proj", "q_b_proj", "q_absorb", "kv_b_proj", "rope", "qk_norm_rope", "kv_write", "attention_prefill",
    "attention_decode", "v_absorb",
)  # fmt: skip


def is_split(view: GraphView) -> bool:
    """Whether the plan splits any tensor."""
    return view.plan is not None and (view.plan.tp > 1 or view.plan.expert_tp > 1)


def joins(view: GraphView) -> BoolArray:
    """Return which nodes are collectives of TP."""
    return view.mask(lambda node: node.op in COLLECTIVE_OPS and node.axis in ("tp", "expert_tp"))


def recombines(view: GraphView) -> Finding:
    """TP-2: everyone reads what it needs: a whole, a slice, or terms of a sum that are summed."""
    plan, model = view.plan, view.model
    if plan is None or model is None or not is_split(view):
        return NOTHING
    wanted, made = layouts(view, plan, model)
    edges = np.flatnonzero((view.kind == DATA) & view.within_step)
    source, target = view.source[edges], view.target[edges]
    full, mixed = filled(made, source, target)
    want, have = wanted[target], full[source]
    known = (have != UNKNOWN) & (want != UNKNOWN)
    bad = known & (
        ((want == FULL) & (have != FULL))
        | (np.isin(want, (SPLIT, INHERITS)) & (have == PARTIAL))
        | ((want == PARTIAL) & (have != PARTIAL))
        | ((want == GATHERS) & (have != SPLIT))
        | ((want == ADDS_UP) & mixed[target] & (have == PARTIAL))
    )

    def message(at: int) -> str:
        maker, reader = int(source[at]), int(target[at])
        found, needed = WORDS[int(have[at])], {PARTIAL: "terms of a sum", GATHERS: "a slice"}
        return (
            f"{operator(view, reader)} reads {found} of {operator(view, maker)} as if it were "
            f"{needed.get(int(want[at]), 'whole')}"
        )

    fix = "put an all-reduce behind partial sums, an all-gather behind slices, and nothing behind what is whole"
    between = judged(view, int(known.sum()), np.flatnonzero(bad), message, fix, target)
    return merged(between, passes_on_all(view), as_declared(view, plan, made))


def inherits(view: GraphView) -> Finding:
    """TP-3: an element-wise operator takes its producer's partition; only a partial sum is recombined before it."""
    plan, model = view.plan, view.model
    if plan is None or model is None or not is_split(view):
        return NOTHING
    elementwise = view.named(*ELEMENTWISE)
    wanted, made = layouts(view, plan, model)
    joining = joins(view)
    into = elementwise[view.target] & joining[view.source]
    summed = np.zeros(len(view), bool)
    summed[view.target[made[view.source] == PARTIAL]] = True
    silent = (made == UNKNOWN) & ~view.says("n", "k", "layer")
    summed[view.target[silent[view.source]]] = True  # what this left may be a partial sum
    bad = np.flatnonzero(into & ~summed[view.source])

    def message(at: int) -> str:
        return (
            f"the {view.symbols[int(view.symbol[view.source[at]])].op} {operator(view, int(view.source[at]))} stands "
            f"between {operator(view, int(view.target[at]))} and its producer, which left no partial sum"
        )

    fix = "let the element-wise operator take its producer's partition, with no collective between"
    before = judged(view, int(elementwise.sum()), bad, message, fix, view.source)
    return merged(before, _gathered_in_vain(view, elementwise, wanted))


def _gathered_in_vain(view: GraphView, local: BoolArray, wanted: Int64Array) -> Finding:
    """No collective puts slices of operators that are local to a rank together for one that takes a slice."""
    into = local[view.source] & joins(view)[view.target]
    data = view.kind == DATA
    feeds, slices = np.zeros(len(view), bool), np.ones(len(view), bool)
    feeds[view.source[data]] = True
    slices[view.source[data & (wanted[view.target] != SPLIT)]] = False
    vain = np.flatnonzero(into & data & (feeds & slices)[view.target])

    def message(at: int) -> str:
        return (
            f"the {operator(view, int(view.target[at]))} puts slices of {operator(view, int(view.source[at]))} "
            "together for an operator that takes a slice"
        )

    return judged(view, 0, vain, message, "let the next operator take the partition as it is", view.target)


def local_heads(view: GraphView) -> Finding:
    """TP-4: nothing joins TP ranks between the projections into heads and the output projection.

    Behind the attention heads are put together only for an output projection that takes them whole.
    """
    plan, model = view.plan, view.model
    if plan is None or plan.tp == 1:
        return NOTHING
    joining = joins(view) & view.mask(lambda node: node.module == "attention")
    inner = view.named(*HEAD_LOCAL)
    fed = np.zeros(len(view), bool)
    fed[view.source[inner[view.target]]] = True
    bad = np.flatnonzero(joining & fed)
    cores = view.mask(lambda node: node.op in ("attention_prefill", "attention_decode"))

    def message(node: int) -> str:
        what = view.symbols[int(view.symbol[node])].op
        return f"a TP {what} stands inside the attention of {layer_name(view, node)}, whose heads are independent"

    fix = "aggregate at the output projection, where heads meet first"
    inside = judged(view, int(cores.sum()), bad, message, fix, np.arange(len(view)))
    return inside if model is None else merged(inside, _gathered_in_vain(view, inner, layouts(view, plan, model)[0]))


def takes_turns(view: GraphView) -> Finding:
    """TP-5: a TP collective joins one whole TP group, and all its ranks take part in the same order."""
    plan = view.plan
    joining = joins(view)
    if plan is None or not joining.any():
        return NOTHING
    width = np.where(view.mask(lambda node: node.axis == "tp"), plan.tp, plan.expert_tp)
    member = joining[view.member_node]
    node, rank = view.member_node[member], view.member_rank[member]
    torn = np.zeros(len(view), bool)
    torn[node[rank // width[node] != view.rank[node] // width[node]]] = True
    groups = joining & view.mask(lambda node: node.axis == "tp")  # which ranks share an expert is rule EP-6
    wrong = np.flatnonzero(groups & ((view.size != width) | torn))

    def missing(node: int) -> str:
        return f"{int(view.size[node])} ranks take part, where the TP group has {int(width[node])}"

    whole = judged(
        view, int(joining.sum()), wrong, missing, "let every rank of the TP group, and no other, take part once",
        np.arange(len(view)),
    )  # fmt: skip
    order = merged(_same_order(view, member), _turns_agree(view, joining))
    return merged(whole, _of_experts(view, plan), order, repeated(view, joining))


def _of_experts(view: GraphView, plan: ParallelPlan) -> Finding:
    """Axis ``expert_tp`` is that of ranks that share an expert of the plan; what else they join is of axis ``tp``."""
    apart = view.mask(lambda node: node.op in COLLECTIVE_OPS and node.axis == "expert_tp")
    experts = view.mask(lambda node: node.name.startswith("expert_"))
    fed = np.zeros(len(view), bool)
    fed[view.target[experts[view.source]]] = True
    wrong = np.flatnonzero(apart & (~fed | (plan.ep.degree == 1)))
    return judged(
        view, 0, wrong, lambda node: f"{operator(view, node)} is said to join ranks that share an expert, and joins "
        "nothing of experts that are spread", "name the axis whose ranks it joins", np.arange(len(view)),
    )  # fmt: skip


def _turns_agree(view: GraphView, joining: BoolArray) -> Finding:
    """No collective comes, in a rank's program, before another one whose outcome leads to its input the other way."""
    if stuck(len(view), view.source, view.target).any():
        return NOTHING  # the graph itself has a cycle: rule RUN-1
    held = np.flatnonzero(joining & waiting(view, joining))
    return judged(
        view, 0, held, lambda at: f"{operator(view, at)} waits in a rank's program for a collective that waits for it",
        "let every rank come to its collectives in the order in which they need each other", np.arange(len(view)),
    )  # fmt: skip


def _same_order(view: GraphView, member: BoolArray) -> Finding:
    node, rank = view.member_node[member], view.member_rank[member]
    weight = np.zeros(len(view), np.int64)
    np.add.at(weight, node, (rank + 1) * 2654435761 % 4294967291)
    lead = weight[node]  # collectives of one group of ranks have one weight
    order = np.lexsort((view.member_position[member], lead, rank))
    node, rank, lead = node[order], rank[order], lead[order]
    begins = np.concatenate(([True], (rank[1:] != rank[:-1]) | (lead[1:] != lead[:-1])))
    start = np.maximum.accumulate(np.where(begins, np.arange(len(node)), 0))
    turn = np.arange(len(node)) - start
    low, high = np.full(len(view), np.iinfo(np.int64).max), np.full(len(view), -1)
    np.minimum.at(low, node, turn)
    np.maximum.at(high, node, turn)
    bad = np.flatnonzero((high >= 0) & (low != high))

    def message(node: int) -> str:
        return f"on one rank it is collective {int(low[node]) + 1} of its group, on another {int(high[node]) + 1}"

    fix = "let all ranks of a group come to its collectives in one order"
    return judged(view, 0, bad, message, fix, np.arange(len(view)))


def within_layer(view: GraphView) -> Finding:
    """TP-7: what a TP collective joins is of its own layer and step."""
    joining = joins(view)
    placed = view.says("layer")
    into = joining[view.target] & (placed[view.source] & placed[view.target] | ~view.within_step)
    out = joining[view.source]
    bad = np.flatnonzero(
        (into & ((view.layer[view.source] != view.layer[view.target]) | ~view.within_step)) | (out & ~view.within_step)
    )

    def message(edge: int) -> str:
        source, target = int(view.source[edge]), int(view.target[edge])
        return f"it joins {operator(view, target)} to {place(view, source)}"

    fix = "join partial results of one layer and one step only"
    node = np.where(into, view.target, view.source)
    return judged(view, int(into.sum()), bad, message, fix, node)
