"""PH-5: the matrix of token dependencies that a graph's attention has, entry by entry.

For each layer, the matrix of a prompt is put together from the attention nodes of all SP ranks: which tokens a node
queries, which keys it says that it attends to, and which of these it has edges for. What SP ranks expose to each other
is taken as declared; rules SP-2 and SP-5 look at that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.batch import Chunk
from clustersim.graph.blueprint import Node
from clustersim.graph.variant import Variant
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.finding import fault_at, judged, place
from clustersim.legality.graph_rules.views.doubted import doubted
from clustersim.legality.graph_rules.views.graph import DATA, KV, BoolArray, GraphView, Step
from clustersim.legality.graph_rules.views.pairs import block_of, difference, pairs_of, positions_of, shortened
from clustersim.legality.graph_rules.views.tokens import carried
from clustersim.plan.parallel import ParallelPlan

EXACT: Final = 1e-9
"""Relative: what the order of sums costs."""
FIX: Final = "let every token attend to itself and to all tokens before it that its window holds, and to none behind it"


def lower_triangular(view: GraphView) -> Finding:
    """PH-5: token i attends to every token j ≤ i of its sequence, and to none j > i."""
    if view.plan is None or view.model is None:
        return NOTHING
    has_write, has_read = _fed_by(view, "kv_write"), _fed_by(view, "kv_read")
    return merged(
        _as_declared(view),
        _prompts(view, view.plan, has_write, has_read),
        _new_tokens(view, has_write, has_read),
        _from_later(view),
    )


def _as_declared(view: GraphView) -> Finding:
    """An attention says the window of its layer and, in a ring, which part it is; by heads it has all tokens.

    One that names no window attends to all keys, but in the words of another program, which may leave it out.
    """
    model, plan = view.model, view.plan
    assert model is not None
    assert plan is not None
    windows = [layer.attention.sliding_window for layer in model.layers]
    bounded = np.array([window is not None for window in windows] + [False], bool)[np.minimum(view.layer, len(windows))]
    says = view.says("variant", "layer") | (bounded & view.says("layer") & ~view.names_are_foreign)
    cores = view.mask(lambda node: node.op in ("attention_prefill", "attention_decode")) & says
    nodes = np.flatnonzero(cores & (view.layer >= 0) & (view.layer < len(model.layers)))
    spread = plan.sp.degree > 1 and not plan.sp.whole
    latent = [layer.attention.kind == "mla" for layer in model.layers]

    def wanted(symbol: Node, layer: int) -> tuple[Variant, ...]:
        window = Variant(window=windows[layer])
        if symbol.op == "attention_decode" or not spread or plan.sp.scheme == "all_gather" or latent[layer]:
            return (window,)
        if plan.sp.scheme == "all_to_all":
            return (replace(window, by_heads=True),)
        return tuple(replace(window, hop=hop) for hop in range(plan.sp.degree))

    pairs, which = np.unique(view.symbol[nodes] * len(model.layers) + view.layer[nodes], return_inverse=True)
    odd = [
        view.symbols[pair // len(windows)].variant
        not in wanted(view.symbols[pair // len(windows)], pair % len(windows))
        for pair in pairs.tolist()
    ]
    wrong = np.flatnonzero(np.array(odd, bool)[which.ravel()]) if len(nodes) else nodes

    def message(at: int) -> str:
        symbol = view.symbols[int(view.symbol[nodes[at]])]
        right = " or ".join(repr(str(variant)) for variant in wanted(symbol, int(view.layer[nodes[at]])))
        window = windows[int(view.layer[nodes[at]])]
        if not symbol.variant and window is not None:
            return f"it attends to all keys, where its layer has a window of {window:,}: expected variant {right}"
        return f"it is said to attend as {str(symbol.variant)!r}, where its layer has {right}"

    return judged(view, 0, wrong, message, FIX, nodes)


def _fed_by(view: GraphView, name: str) -> BoolArray:
    """Return which nodes have a K/V edge from their own rank's, layer's and step's ``name``."""
    source, target = view.source, view.target
    own = (
        (view.kind == KV)
        & view.named(name)[source]
        & view.within_step
        & (view.rank[source] == view.rank[target])
        & (view.layer[source] == view.layer[target])
    )
    found = np.zeros(len(view), bool)
    found[target[own]] = True
    return found


def _prompts(view: GraphView, plan: ParallelPlan, has_write: BoolArray, has_read: BoolArray) -> Finding:
    cores = np.flatnonzero(view.mask(lambda node: node.op == "attention_prefill"))
    if not len(cores):
        return NOTHING
    model = view.model
    assert model is not None
    rank = view.rank[cores]
    # One matrix per step, layer, stage and TP rank; nodes that are alike there make equal matrices.
    cell = np.stack(
        [view.step[cores], view.layer[cores], view.stage[cores], rank % plan.tp, rank // plan.replica_ranks]
    )
    order = np.lexsort(cell)
    starts = np.flatnonzero(np.any(np.diff(cell[:, order], axis=1), axis=0)) + 1
    seen: dict[tuple[object, ...], str | None] = {}
    faults = []
    looked_at = 0
    says = view.says("variant", "heads")
    doubts = doubted(view)
    leads = np.zeros(len(view), bool)
    leads[view.source[(view.kind == DATA) & view.within_step]] = True
    parts = np.stack([
        view.symbol[cores], view.s_of(rank), has_write[cores], has_read[cores], leads[cores],
        np.nan_to_num(view.attended[cores], nan=-1),
    ])  # fmt: skip
    for group in np.split(order, starts):
        first = int(cores[group[0]])
        step, layer = view.steps[int(view.step[first])], int(view.layer[first])
        attention = model.layers[layer].attention if 0 <= layer < len(model.layers) else None
        short = shortened(step.chunks, plan) if attention is not None else ()
        if attention is None or not short:
            continue
        looked_at += len(group)
        key = (int(view.step[first]), attention, parts[:, group].tobytes())
        if key not in seen:
            rows = [(*map(int, parts[:-1, at]), float(parts[-1, at])) for at in group]
            heads, window = attention.num_heads, attention.sliding_window
            seen[key] = _matrix_fault(view.symbols, rows, step.chunks, short, plan, heads, window)
        message = seen[key]
        varied = plan.sp.degree > 1 or attention.sliding_window is not None
        if message is not None and varied and not says[cores[group]].all():
            looked_at -= len(group)  # which keys these take may have been left out
        elif message is not None and not doubts[cores[group]].any():
            faults.append(fault_at(view, first, message, FIX))
    return (
        Finding(looked_at=looked_at, faults=tuple(faults[:1]))
        if faults
        else merged(_cached(view, cores, has_read, looked_at), _written(view, plan, cores, has_write))
    )


def _cached(view: GraphView, cores: Int64Array, has_read: BoolArray, looked_at: int) -> Finding:
    """Attention takes what its rank has cached, of whichever step; later parts of a ring work on other ranks' K/V."""
    reads = np.flatnonzero(view.named("kv_read"))
    width, layers = max(1, view.num_ranks), int(view.layer.max(initial=0)) + 2
    key = (view.step * layers + view.layer + 1) * width + view.rank
    own = view.mask(lambda node: not node.variant.hop)[cores]
    lacks = np.flatnonzero(own & ~has_read[cores] & np.isin(key[cores], key[reads]))
    return judged(
        view, looked_at, lacks, lambda _: "attention has no K/V edge from its rank's cache, and sees nothing of it",
        FIX, cores,
    )  # fmt: skip


def _written(view: GraphView, plan: ParallelPlan, cores: Int64Array, has_write: BoolArray) -> Finding:
    """Attention takes what its rank writes of the prompt, however long that is; parts of a ring as above."""
    own = view.mask(lambda node: not node.variant.hop)[cores]
    tokens = carried(view, plan).prefill[view.step[cores], view.s_of(view.rank[cores])]
    lacks = np.flatnonzero(own & ~has_write[cores] & (tokens > 0))
    return judged(
        view, 0, lacks, lambda _: "attention has no K/V edge from its rank's writes, and sees no new token", FIX, cores
    )


def _matrix_fault(
    symbols: tuple[Node, ...],
    rows: list[tuple[float, ...]],
    chunks: tuple[Chunk, ...],
    short: tuple[Chunk, ...],
    plan: ParallelPlan,
    num_heads: int,
    window: int | None,
) -> str | None:
    """Say how the matrices of a step's chunks (as they are, and shortened) differ from lower-triangular ones."""
    matrices = [np.zeros((chunk.count, chunk.start + chunk.count), bool) for chunk in short]
    for *whole, attended in rows:
        number, s, has_write, has_read, leads_on = map(int, whole)
        node = symbols[number]
        by_heads = plan.sp.degree > 1 and node.heads * plan.tp * plan.sp.degree == num_heads
        blocks = [block_of(chunk, node.variant, s, plan, by_heads=by_heads) for chunk in short]
        causal = sum(pairs_of(chunk, node.variant, s, plan, by_heads=by_heads) for chunk in chunks)
        if attended != -1 and abs(attended - causal) > EXACT * causal:
            more = "tokens behind it are among them" if attended > causal else "some are left out"
            return f"attention takes {attended:.10g} (query, key) pairs, where causal attention has {causal}: {more}"
        for chunk, block, matrix in zip(short, blocks, matrices, strict=True):
            if not leads_on:
                block[:] = False  # nobody takes what this node makes
            own = positions_of(chunk, plan, s)
            if not has_write:
                block[:, own] = False
            if not has_read and (s == chunk.owner or plan.sp.degree == 1):
                block[:, : chunk.start] = False
            # Where each SP rank has its own heads, no other rank makes up for what one leaves out.
            if by_heads and (wrong := difference(block, chunk, window)) is not None:
                return wrong
            matrix |= block
    for chunk, matrix in zip(short, matrices, strict=True):
        if (wrong := difference(matrix, chunk, window)) is not None:
            return wrong
    return None


def _new_tokens(view: GraphView, has_write: BoolArray, has_read: BoolArray) -> Finding:
    """The last row of the matrix: a new token attends to its own entry and to all that were cached."""
    model, plan = view.model, view.plan
    assert model is not None
    assert plan is not None
    cores = np.flatnonzero(view.mask(lambda node: node.op == "attention_decode"))
    lacks = np.flatnonzero(~(has_write[cores] & has_read[cores]))

    def lacking(at: int) -> str:
        what = "the tokens before it" if has_write[cores[at]] else "itself"
        return f"a new token does not attend to {what}: attention has no K/V edge from its rank's cache"

    edges = judged(view, len(cores), lacks, lacking, FIX, cores)
    inside = (view.layer[cores] >= 0) & (view.layer[cores] < len(model.layers))
    cores = cores[inside & ~np.isnan(view.attended[cores])]
    sizes = [layer.attention.sliding_window for layer in model.layers]
    expected = np.array(
        [_keys(view.steps[int(step)], sizes[int(layer)], int(s))
         for step, layer, s in zip(view.step[cores], view.layer[cores], view.s_of(view.rank[cores]), strict=True)],
        np.float64,
    )  # fmt: skip
    wrong = np.flatnonzero(~np.isnan(expected) & (np.abs(view.attended[cores] - expected) > 1e-6))

    def counting(at: int) -> str:
        return f"attention takes {view.attended[cores][at]:g} keys, where its sequences have {expected[at]:g} to see"

    return merged(edges, judged(view, len(cores), wrong, counting, FIX, cores))


def _keys(step: Step, window: int | None, s: int) -> float:
    if step.decodes is None:
        return float(step.keys[s]) if window is None and s < len(step.keys) else np.nan
    mine = [token.position + 1 for token in step.decodes if token.owner == s]
    return float(sum(mine if window is None else (min(window, seen) for seen in mine)))


def _from_later(view: GraphView) -> Finding:
    """K/V that a step reads of a later one would be of tokens that do not exist yet."""
    bad = np.flatnonzero((view.kind == KV) & (view.step[view.source] > view.step[view.target]))

    def message(edge: int) -> str:
        return f"attention reads K/V of {place(view, int(view.source[edge]))}, a later step"

    return judged(view, 0, bad, message, FIX, view.target)
