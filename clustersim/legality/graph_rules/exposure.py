"""SP-2, SP-4 and SP-5: K/V of other segments is there when attention needs it, all of it, in order."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.finding import judged, operator
from clustersim.legality.graph_rules.sequence import RESHARDS, at_attention, prefills, sp_collectives, splits_tokens
from clustersim.legality.graph_rules.sources import entering, of_own_layer, ring_part, ring_parts, taken_in_layer
from clustersim.legality.graph_rules.views.graph import ORDER, BoolArray, GraphView
from clustersim.legality.graph_rules.views.tokens import carried, chunk_segments
from clustersim.legality.reference import entry_elements
from clustersim.legality.shards import kv_heads_held
from clustersim.model.architecture import Attention
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """Prefill attention by (step, layer, rank).

    Parameters
    ----------
    number : int array of shape (cells,)
        ``(step · layers + layer) · ranks + rank``, ascending.
    core : int array of shape (cells,)
        The first attention node of each.
    got : bool array of shape (cells, sp)
        SP ranks whose segments some collective carries.
    turn : int array of shape (shifts, 2)
        Ring shifts in each cell, in program order: (cell, node).
    """

    number: Int64Array
    core: Int64Array
    got: BoolArray
    turn: Int64Array


def _numbers(view: GraphView, node: Int64Array, rank: Int64Array) -> Int64Array:
    layers = int(view.layer.max(initial=0)) + 2
    return (view.step[node] * layers + view.layer[node] + 1) * max(1, view.num_ranks) + rank


def _cells(view: GraphView, plan: ParallelPlan) -> Cells:
    sp = plan.sp.degree
    cores = np.flatnonzero(view.mask(lambda node: node.op == "attention_prefill"))
    number, first = np.unique(_numbers(view, cores, view.rank[cores]), return_index=True)
    got = np.zeros((len(number), sp), bool)
    brings = sp_collectives(view) & at_attention(view) & _feeds(view)
    fed = _contributions(view, brings)
    member = np.flatnonzero(brings[view.member_node])
    node, rank = view.member_node[member], view.member_rank[member]
    wanted = _numbers(view, node, rank)
    at = np.minimum(np.searchsorted(number, wanted), max(0, len(number) - 1))
    here = (number[at] == wanted) if len(number) else np.zeros(len(at), bool)
    node, rank, at = node[here], rank[here], at[here]
    ring = view.mask(lambda node: node.op == "ring_shift")[node]
    gathered = np.flatnonzero(~ring)
    for one in range(sp):
        got[at[gathered][fed[node[gathered], one]], one] = True
    order = np.lexsort((node[ring], at[ring]))
    turn = np.stack([at[ring][order], node[ring][order]], axis=1)
    begins = np.concatenate(([True], np.diff(turn[:, 0]) != 0)) if len(turn) else np.zeros(0, bool)
    start = np.maximum.accumulate(np.where(begins, np.arange(len(turn)), 0)) if len(turn) else np.zeros(0, np.int64)
    passed = np.arange(len(turn)) - start + 1
    s = view.s_of(rank[ring][order])
    sender = (s - passed) % sp
    whole = fed[turn[:, 1], (s - 1) % sp] if len(turn) else np.zeros(0, bool)
    got[turn[whole, 0], sender[whole]] = True
    return Cells(number=number, core=cores[first], got=got, turn=turn)


def _feeds(view: GraphView) -> BoolArray:
    """Return which nodes come before attention in their layer, rather than behind it (as Ulysses' way back)."""
    behind = view.mask(lambda node: node.op == "attention_prefill")
    after = np.zeros(len(view), bool)
    after[view.target[behind[view.source]]] = True
    return ~after


def _contributions(view: GraphView, brings: BoolArray) -> BoolArray:
    """Return (nodes, sp): SP ranks that take part in a collective and have an edge into it with their new tokens."""
    plan = view.plan
    assert plan is not None
    edge, rank = view.rows
    into = brings[view.target[edge]] & view.takes_part(view.target[edge], rank)
    into &= entering(view, sp_collectives(view), view.model)[edge] | ~view.says("layer")[view.source[edge]]
    into &= ~view.named("kv_read")[view.source[edge]] & (view.kind[edge] != ORDER)
    found = np.zeros((len(view), plan.sp.degree), bool)
    found[view.target[edge[into]], view.s_of(rank[into])] = True
    return found


def _needed(view: GraphView, plan: ParallelPlan, cells: Cells) -> BoolArray:
    """Return (cells, sp): segments of other ranks that hold a token before one of the rank's own."""
    sp = plan.sp.degree
    by_step = np.zeros((len(view.steps), sp, sp), bool)
    for at, step in enumerate(view.steps):
        for chunk in step.chunks:
            runs = chunk_segments(chunk, plan)
            first = [min((token for run in part for token in range(*run)[:1]), default=chunk.count) for part in runs]
            last = [max((token + 1 for run in part for token in range(*run)[-1:]), default=0) for part in runs]
            for s in range(sp):
                for other in range(sp):
                    context = chunk.start > 0 and other == chunk.owner and last[s] > 0
                    by_step[at, s, other] |= other != s and (context or first[other] < last[s])
    found: BoolArray = by_step[view.step[cells.core], view.s_of(view.rank[cells.core])]
    return found


def materialised(view: GraphView) -> Finding:
    """SP-2: K/V of every earlier token is on the rank: its own segment, or received from a collective."""
    plan = view.plan
    if plan is None or not splits_tokens(view):
        return NOTHING
    cells = _cells(view, plan)
    lost = _needed(view, plan, cells) & ~cells.got
    bad = np.flatnonzero(lost.any(axis=1))

    def message(at: int) -> str:
        s = int(np.flatnonzero(lost[at])[0])
        return f"tokens attend to those of SP rank {s}, whose K/V nothing brings to this rank"

    fix = f"let the {plan.sp.scheme or 'exposure'} reach all {plan.sp.degree} SP ranks in every layer"
    found = judged(view, len(cells.core), bad, message, fix, cells.core)
    if found.faults:
        return found
    exposes = sp_collectives(view) & prefills(view) & at_attention(view)
    return merged(found, _cache_exposed(view, fix), of_own_layer(view, exposes))


def _cache_exposed(view: GraphView, fix: str) -> Finding:
    """What a rank has cached of tokens before the step is exposed with its segment."""
    reads = np.flatnonzero(view.named("kv_read"))
    first = sp_collectives(view) & prefills(view) & at_attention(view) & _feeds(view)
    passed = np.zeros(len(view), bool)
    passed[view.target[first[view.source]]] = True  # behind another one: a later shift of a ring
    node = np.flatnonzero((first & ~passed)[view.member_node])
    collective, rank = view.member_node[node], view.member_rank[node]
    given = np.unique(view.source[first[view.target] & (view.kind != ORDER)])
    wanted = _numbers(view, collective, rank)
    key = _numbers(view, reads, view.rank[reads])
    order = np.argsort(key, kind="stable")
    if not len(order):
        return NOTHING
    at = np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)
    read = reads[order[at]]
    kept_back = np.flatnonzero((key[order[at]] == wanted) & ~np.isin(read, given))
    return judged(
        view, 0, kept_back, lambda _: "tokens before the step are cached on this rank, and no other one gets their K/V",
        fix, read,
    )  # fmt: skip


def in_order(view: GraphView) -> Finding:
    """SP-5: attention waits for the segments that it attends to, in order; SP ranks meet nowhere else."""
    plan = view.plan
    if plan is None or not splits_tokens(view):
        return NOTHING
    meets = sp_collectives(view) & prefills(view)
    elsewhere = meets & ~at_attention(view) & view.mask(lambda node: node.op not in RESHARDS)
    fix = "let SP ranks meet at attention, and each part of it wait for the segment that it works on"
    stray = judged(
        view, int(meets.sum()), np.flatnonzero(elsewhere), lambda at: f"{operator(view, at)} joins SP ranks outside "
        "attention", fix, np.arange(len(view)),
    )  # fmt: skip
    return merged(stray, _waits(view, plan, fix), taken_in_layer(view, meets & at_attention(view), fix))


def _waits(view: GraphView, plan: ParallelPlan, fix: str) -> Finding:
    cells = _cells(view, plan)
    brings = sp_collectives(view) & at_attention(view)
    cores = np.flatnonzero(view.mask(lambda node: node.op == "attention_prefill"))
    carries = view.kind != ORDER  # an edge that only delays attention carries no data
    into = np.flatnonzero(brings[view.source] & carries)
    direct = np.unique(view.source[into] * len(view) + view.target[into])
    number = _numbers(view, cores, view.rank[cores])
    cell = np.searchsorted(cells.number, number)
    if not len(cells.turn):
        expanded = view.named("kv_b_proj")
        fed = np.zeros(len(view), bool)
        fed[view.target[into]] = True
        over = expanded[view.source] & fed[view.source] & carries
        fed[view.target[over]] = True
        early = np.flatnonzero(cells.got[cell].any(axis=1) & ~fed[cores])
        return judged(
            view, len(cores), early, lambda _: "attention does not wait for the K/V of the other segments", fix, cores
        )
    ring = ring_part(view)[cores]
    begins = np.searchsorted(cells.turn[:, 0], cell)
    at = begins + ring - 1
    inside = (ring > 0) & (at < len(cells.turn))
    inside &= cells.turn[np.minimum(at, len(cells.turn) - 1), 0] == cell
    shift = cells.turn[np.where(inside, at, 0), 1]
    early = np.flatnonzero(inside & ~np.isin(shift * len(view) + cores, direct))
    parts = judged(
        view, len(cores), early, lambda at: f"it attends before {operator(view, int(shift[at]))} brought its segment",
        fix, cores,
    )  # fmt: skip
    turn = cells.turn
    follows = np.flatnonzero(np.diff(turn[:, 0]) == 0)
    first, second = turn[follows, 1], turn[follows + 1, 1]
    torn = np.flatnonzero(~np.isin(first * len(view) + second, direct))
    ordered = judged(
        view, len(follows), torn, lambda at: f"it passes a segment on before {operator(view, int(first[at]))} brought "
        "it", fix, second,
    )  # fmt: skip
    right = np.concatenate((shift[inside] * len(view) + cores[inside], first * len(view) + second))
    told = np.isin(view.target[into], np.concatenate((np.flatnonzero(ring_parts(view, plan)), second)))
    others = into[told & ~np.isin(view.source[into] * len(view) + view.target[into], right)]
    strange = judged(
        view, 0, others, lambda edge: f"it takes what {operator(view, int(view.source[edge]))} brought, which another "
        "part of the ring works on", fix, view.target,
    )  # fmt: skip
    return merged(parts, ordered, strange)


def volumes(view: GraphView) -> Finding:
    """SP-4: what is exposed is the K/V of the prompt, as the scheme prescribes: tokens × heads × head dimension."""
    plan, model, precision = view.plan, view.model, view.precision
    if plan is None or model is None or precision is None or not splits_tokens(view):
        return NOTHING
    inner = (view.layer >= 0) & ~np.isnan(view.amount)
    nodes = np.flatnonzero(sp_collectives(view) & prefills(view) & inner & at_attention(view))
    numbers = carried(view, plan)
    act = precision.activation_bytes
    behind = ~_feeds(view)

    def elements(node: int, prefill: Int64Array, context: int) -> float:
        attention = model.layers[int(view.layer[node])].attention
        op, t = view.symbols[int(view.symbol[node])].op, int(view.rank[node]) % plan.tp
        return _elements(op, attention, plan, prefill, context, back=bool(behind[node]), t=t)

    prefill, context = numbers.prefill[view.step[nodes]], numbers.context[view.step[nodes]].tolist()
    expected = act * np.array(list(map(elements, nodes.tolist(), prefill, context)), np.float64)
    each = np.array([elements(node, np.ones(1, np.int64), 0) for node in nodes.tolist()])
    said = view.column("width")[nodes]
    wide = np.flatnonzero((said != each) & view.says("width")[nodes] & view.in_features)
    wrong = np.flatnonzero(np.abs(view.amount[nodes] - expected) > 1e-6 * np.maximum(expected, 1))

    def message(at: int) -> str:
        return f"it carries {view.amount[nodes][at]:,.0f} bytes, where the prompt's K/V is {expected[at]:,.0f}"

    def saying(at: int) -> str:
        return f"it is said to expose {said[at]} elements per token, where its rank has {each[at]:g}"

    fix = "expose the K/V of every token and head once"
    found = merged(judged(view, len(nodes), wrong, message, fix, nodes), _repeated(view, plan, nodes, fix))
    return merged(found, judged(view, 0, wide, saying, fix, nodes))


def _repeated(view: GraphView, plan: ParallelPlan, nodes: Int64Array, fix: str) -> Finding:
    """A rank takes part in the collectives of a layer that the scheme has, and in no more."""
    most = {"all_gather": 1, "ring": plan.sp.degree - 1, "all_to_all": 2}.get(plan.sp.scheme or "")
    if most is None:
        return NOTHING
    member = np.flatnonzero(np.isin(view.member_node, nodes))
    node = view.member_node[member]
    _, cell, count = np.unique(_numbers(view, node, view.member_rank[member]), return_inverse=True, return_counts=True)
    met = count[cell.ravel()]
    # What went to the ranks of heads comes back to those of tokens; a graph from outside may not say all of it.
    both_ways = plan.sp.scheme == "all_to_all" and view.in_features
    twice = np.flatnonzero((met > most) | (both_ways & (met < most)))
    return judged(
        view, 0, twice, lambda at: f"SP ranks meet {met[at]} times in the attention of a layer, where "
        f"{plan.sp.scheme} meets {most} times", fix, node,
    )  # fmt: skip


def _elements(
    op: str, a: Attention, plan: ParallelPlan, prefill: Int64Array, context: int, *, back: bool, t: int
) -> float:
    """Return the elements that one rank's collective carries, in the convention of its operator.

    An all-gather is measured by what a rank has at its end, a shift by what one rank passes on, an all-to-all by what
    one rank has before it.
    """
    held = len(kv_heads_held(a, plan.tp)[t])
    entry = entry_elements(a, held)
    longest = int(prefill.max())
    if op == "all_gather":
        return float((int(prefill.sum()) + context) * entry)
    if op == "ring_shift":
        return float((longest + context) * entry)
    heads = a.num_heads // plan.tp
    if back:
        return float(longest * heads * a.v_head_dim)
    each, group = heads // plan.sp.degree, max(1, heads // held)
    sent = sum(len({q // group for q in range(s * each, (s + 1) * each)}) for s in range(plan.sp.degree))
    entries = sent * (a.head_dim + a.v_head_dim)
    return float(longest * (heads * a.head_dim + entries) + context * entries)
