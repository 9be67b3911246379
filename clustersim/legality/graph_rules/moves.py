"""SP-8: after an SP prefill the K/V of all segments is where decode reads it."""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.finding import NOTHING, Fault, Finding, merged
from clustersim.legality.graph_rules.finding import fault_at, judged, place
from clustersim.legality.graph_rules.repeated import repeated
from clustersim.legality.graph_rules.sequence import prefills, splits_tokens
from clustersim.legality.graph_rules.sources import whole_groups
from clustersim.legality.graph_rules.views.doubted import in_doubt
from clustersim.legality.graph_rules.views.graph import ORDER, BoolArray, GraphView
from clustersim.legality.graph_rules.views.reach import reach
from clustersim.legality.graph_rules.views.tokens import carried
from clustersim.legality.reference import entry_elements
from clustersim.legality.shards import kv_heads_held
from clustersim.plan.parallel import ParallelPlan


def moved_for_decode(view: GraphView) -> Finding:
    """SP-8: on every stage the K/V of all segments moves to where decode reads it, before the boundary."""
    plan = view.plan
    if plan is None or not splits_tokens(view):
        return NOTHING
    writes = np.flatnonzero(view.named("kv_write") & prefills(view))
    moves = view.mask(lambda node: node.name == "kv_move" and node.op in COLLECTIVE_OPS)
    fix = "move the K/V of every segment to the rank that decodes the sequence, before the boundary node"
    groups = np.unique(np.stack([view.step[writes], view.rank[writes]]), axis=1)
    member = moves[view.member_node]
    node, rank = view.member_node[member], view.member_rank[member]
    width = max(1, view.num_ranks)
    lost = ~np.isin(groups[0] * width + groups[1], view.step[node] * width + rank)
    lost &= ~in_doubt(view, np.full(len(lost), -1), groups[1])
    faults = []
    if lost.any():
        step, where = (int(part[lost][0]) for part in groups)
        at = int(writes[(view.step[writes] == step) & (view.rank[writes] == where)][0])
        message = f"decode reads the segment of rank {where}, which is never moved"
        faults.append(fault_at(view, at, message, fix))
    told = Finding(looked_at=groups.shape[1], faults=tuple(faults))
    edge, seen = view.rows
    into = moves[view.target[edge]] & (view.kind[edge] != ORDER)
    given = np.unique(view.target[edge[into]] * width + seen[into])
    out = np.flatnonzero(~np.isin(node * width + rank, given))
    told = merged(
        told, judged(view, 0, out, lambda at: f"the move does not wait for rank {int(rank[at])}'s entries", fix, node)
    )
    told = merged(told, repeated(view, moves), _brings(view, moves, fix), _one_owner(view, plan))
    told = merged(told, whole_groups(view, plan, moves, fix), _leads_to_boundary(view, moves, fix))
    if not told.faults:
        told = merged(told, _every_layer(view, writes, edge[into], seen[into], fix))
    return merged(told, _before_boundary(view, np.flatnonzero(moves), fix), _whole_volume(view, plan, moves, fix))


def _brings(view: GraphView, moves: BoolArray, fix: str) -> Finding:
    """A move carries entries as they are: it is no sum, and no ring shift."""
    ops = ("gather", "all_gather", "all_to_all") if not view.in_features else _ops(view)
    other = np.flatnonzero(moves & view.mask(lambda node: node.op not in ops))
    return judged(
        view, 0, other, lambda node: f"{view.symbols[int(view.symbol[node])].op} does not bring entries to their rank",
        fix, np.arange(len(view)),
    )  # fmt: skip


def _leads_to_boundary(view: GraphView, moves: BoolArray, fix: str) -> Finding:
    """No operator of its step reads what a move carries: decode does, behind the boundary."""
    ends = view.mask(lambda node: node.op == "boundary")
    wrong = np.flatnonzero(moves[view.source] & view.within_step & (view.kind != ORDER) & ~ends[view.target])
    return judged(
        view, 0, wrong, lambda edge: f"it takes what {place(view, int(view.source[edge]))} brings, which is for decode",
        fix, view.target,
    )  # fmt: skip


def _ops(view: GraphView) -> tuple[str, ...]:
    """Return how entries come to who decodes: to one rank, or to whom each sequence belongs."""
    return ("gather",) if view.plan is not None and view.plan.sp.decode == "idle" else ("all_to_all",)


def _every_layer(view: GraphView, writes: Int64Array, edge: Int64Array, seen: Int64Array, fix: str) -> Finding:
    """What a rank gives to a move was made after the entries of every layer were written there."""
    width = max(1, view.num_ranks)
    before = reach(view, np.unique(view.source[edge]))
    key = view.step[view.target[edge]] * width + seen
    order = np.argsort(key, kind="stable")
    wanted = view.step[writes] * width + view.rank[writes]
    low, high = (np.searchsorted(key[order], wanted, side=side) for side in ("left", "right"))
    many = high - low
    at = np.repeat(np.arange(len(writes)), many)
    given = edge[order[np.repeat(low - np.cumsum(many) + many, many) + np.arange(len(at))]]
    moved = np.zeros(len(writes), bool)
    np.logical_or.at(moved, at, before.comes_before(writes[at], view.source[given]))
    late = np.flatnonzero((many > 0) & ~moved)
    return judged(
        view, len(writes), late,
        lambda at: f"the move takes rank {int(view.rank[writes[at]])}'s entries before those of this layer are written",
        fix, writes,
    )  # fmt: skip


def _one_owner(view: GraphView, plan: ParallelPlan) -> Finding:
    """A sequence decodes on the SP rank to which its chunks moved, and chunks move to a rank that decodes."""
    owners: dict[tuple[int, int], int] = {}
    faults = []
    looked = 0
    for number, step in enumerate(view.steps):
        owners.update({(step.replica, chunk.request): chunk.owner for chunk in step.chunks})
        for chunk in step.chunks if plan.sp.decode == "idle" else ():
            looked += 1
            if chunk.owner:
                message = f"K/V of sequence {chunk.request} moves to SP rank {chunk.owner}, which idles in decode"
                fix = "let the first SP rank own every sequence, or declare plan.sp.decode dp"
                faults.append(Fault(where=f"{step.kind} step {number}", message=message, fix=fix))
        for token in step.decodes or ():
            owner = owners.get((step.replica, token.request), token.owner)
            looked += 1
            if owner != token.owner:
                message = f"sequence {token.request} decodes on SP rank {token.owner}, and its K/V moved to {owner}"
                fix = "decode a sequence where its K/V is"
                faults.append(Fault(where=f"{step.kind} step {number}", message=message, fix=fix))
    return Finding(looked_at=looked, faults=tuple(faults[:1]))


def _before_boundary(view: GraphView, moves: Int64Array, fix: str) -> Finding:
    """Every move comes before the boundary node of each of its ranks; where there is none, rule PH-1 speaks."""
    ends = np.flatnonzero(view.mask(lambda node: node.op == "boundary"))
    if not len(moves) or not len(ends):
        return NOTHING
    before = reach(view, ends)
    width = max(1, view.num_ranks)
    member = np.flatnonzero(np.isin(view.member_node, moves))
    node, rank = view.member_node[member], view.member_rank[member]
    key = view.step[ends] * width + view.rank[ends]
    order = np.argsort(key, kind="stable")
    wanted = view.step[node] * width + rank
    at = np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)
    end = ends[order[at]]
    late = np.flatnonzero((key[order[at]] == wanted) & ~before.comes_before(node, end))
    return judged(
        view, len(node), late, lambda at: f"the boundary of rank {int(rank[at])} does not wait for it", fix, node
    )


def _whole_volume(view: GraphView, plan: ParallelPlan, moves: BoolArray, fix: str) -> Finding:
    """What moves is the K/V of all the stage's layers: of the prompt, or of the longest segment where all exchange."""
    model, precision = view.model, view.precision
    nodes = np.flatnonzero(moves & ~np.isnan(view.amount))
    if model is None or precision is None or not view.cached_layers or not len(nodes):
        return NOTHING
    prefill = carried(view, plan).prefill
    tokens = (prefill.sum(axis=1) if plan.sp.decode == "idle" else prefill.max(axis=1))[view.step[nodes]]
    entries = _stage_entries(view, plan)
    expected = tokens * entries[view.stage[nodes]] * precision.kv_bytes
    wrong = np.flatnonzero(np.abs(view.amount[nodes] - expected) > 1e-6 * np.maximum(expected, 1))

    def message(at: int) -> str:
        return f"it moves {view.amount[nodes][at]:,.0f} bytes, where the segments have {expected[at]:,.0f}"

    return judged(view, len(nodes), wrong, message, fix, nodes)


def _stage_entries(view: GraphView, plan: ParallelPlan) -> FloatArray:
    """Return the cache elements per token that one rank of each stage keeps, over the layers of the whole stage."""
    model = view.model
    assert model is not None
    each = np.array(
        [entry_elements(layer.attention, len(kv_heads_held(layer.attention, plan.tp)[0])) for layer in model.layers],
        np.float64,
    )
    found = np.zeros(plan.pp)
    for stage in range(plan.pp):
        shown = np.unique(view.layer[(view.stage == stage) & view.named("kv_write")])
        if len(shown):
            found[stage] = each[shown].mean() * view.cached_layers[stage]
    return found
