"""KV-1, KV-2, KV-4, KV-5 on the step graph: entries are written once, in order, whole, and read where they belong."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import Node
from clustersim.legality.finding import NOTHING, Fault, Finding, merged
from clustersim.legality.graph_rules.finding import judged, place
from clustersim.legality.graph_rules.kinds import crosses_as
from clustersim.legality.graph_rules.links import Links, links, successions
from clustersim.legality.graph_rules.views.graph import KV, BoolArray, GraphView, Step
from clustersim.legality.graph_rules.views.tokens import carried
from clustersim.legality.shards import kv_heads_held
from clustersim.model.architecture import Attention
from clustersim.plan.parallel import ParallelPlan


def appends(view: GraphView) -> Finding:
    """KV-1: entries of a sequence are written in token order, each by one write per layer and rank."""
    return merged(_contiguous(view), _written_once(view), _all_written(view))


def _contiguous(view: GraphView) -> Finding:
    ends: dict[tuple[int, int, int], int] = {}
    faults = []
    looked_at = 0
    for at, step in enumerate(view.steps):
        for request, first, end in _entries(step):
            key = (step.replica, step.lane, request)
            expected = ends.get(key, first)
            looked_at += 1
            if first != expected:
                what = "skips" if first > expected else "writes again"
                token = min(first, expected)
                message = f"the step begins at entry {first} of sequence {request}, and {what} entry {token}"
                fix = f"append: begin at entry {expected}"
                faults.append(Fault(where=f"{step.kind} step {at}", message=message, fix=fix))
            ends[key] = end
    return Finding(looked_at=looked_at, faults=tuple(faults[:1]))


def _entries(step: Step) -> list[tuple[int, int, int]]:
    """Return (request, first entry, entry behind the last) of what a step adds."""
    chunks = [(chunk.request, chunk.start, chunk.start + chunk.count) for chunk in step.chunks]
    return chunks + [(token.request, token.position, token.position + 1) for token in step.decodes or ()]


def _written_once(view: GraphView) -> Finding:
    writes = np.flatnonzero(view.named("kv_write"))
    cell = np.stack([view.step[writes], view.layer[writes], view.rank[writes]])
    _, first, which, counts = np.unique(cell, axis=1, return_index=True, return_inverse=True, return_counts=True)
    again = np.flatnonzero((counts > 1)[which.ravel()] & ~np.isin(np.arange(len(writes)), first))
    return judged(
        view, len(writes), again, lambda _: "the step writes its entries of this layer a second time",
        "write each entry once", writes,
    )  # fmt: skip


def _all_written(view: GraphView) -> Finding:
    plan, model, precision = view.plan, view.model, view.precision
    if plan is None or model is None or precision is None:
        return NOTHING
    latent = np.array([*(layer.attention.kind == "mla" for layer in model.layers), False])[view.layer]
    told = np.where(latent, view.says("width"), view.says("kv_heads", "qk_dim", "v_dim"))
    writes = np.flatnonzero(view.named("kv_write") & ~np.isnan(view.amount) & (view.layer >= 0) & told)
    latent = latent[writes]
    by_heads = view.column("kv_heads") * (view.column("qk_dim") + view.column("v_dim"))
    elements = np.where(latent, view.column("width")[writes], by_heads[writes])
    each = elements * (precision.activation_bytes + precision.kv_bytes)
    expected = carried(view, plan).tokens[view.step[writes], view.s_of(view.rank[writes])]
    entries = view.amount[writes] / np.maximum(each, 1e-9)
    wrong = np.flatnonzero(np.abs(entries - expected) > 1e-6 * np.maximum(expected, 1))

    def message(at: int) -> str:
        return f"it writes {entries[at]:g} entries, and the rank has {expected[at]} new tokens"

    return judged(view, len(writes), wrong, message, "write one entry per new token", writes)


def reads_what_is_there(view: GraphView) -> Finding:
    """KV-2: a read comes after the writes of all steps before, and after what moved there from other ranks."""
    between = links(view)
    fix = "pass the entries of a step on by edges of kind kv"
    found = [_in_program_order(view), crosses_as(view, "kv_write", "kv_read", "kv", fix)]
    reads = view.named("kv_read")
    for before, after in successions(view):
        here = np.flatnonzero(reads & (view.step == after))
        written = np.flatnonzero(view.named("kv_write") & (view.step == before))
        width = max(1, view.num_ranks)
        key = view.layer[written] * width + view.rank[written]
        order = np.argsort(key, kind="stable")
        at = np.searchsorted(key[order], view.layer[here] * width + view.rank[here])
        at = np.minimum(at, max(0, len(order) - 1))
        node = written[order[at]] if len(order) else here
        same = (view.layer[node] == view.layer[here]) & (view.rank[node] == view.rank[here]) & (len(order) > 0)
        found.append(_awaited(view, node[same], here[same], between.awaited(view, node[same], here[same])))
        found.append(_arrived(view, between, before, here))
    return merged(*found)


def _in_program_order(view: GraphView) -> Finding:
    """Within a step: on its rank, a write runs before the attention that has a K/V edge from it."""
    position = np.zeros(len(view), np.int64)
    position[view.member_node] = view.member_position
    edges = np.flatnonzero(
        (view.kind == KV) & view.within_step & view.named("kv_write")[view.source]
        & (view.rank[view.source] == view.rank[view.target]) & (view.size[view.target] == 1)
    )  # fmt: skip
    source, target = view.source[edges], view.target[edges]
    bad = np.flatnonzero(position[source] > position[target])
    return judged(
        view, len(edges), bad, lambda at: f"in the rank's program it runs before {place(view, int(source[at]))}",
        "write the entries before the operator that reads them", target,
    )  # fmt: skip


def _awaited(view: GraphView, node: Int64Array, waiting: Int64Array, met: BoolArray) -> Finding:
    def message(at: int) -> str:
        return f"it reads entries that {place(view, int(node[at]))} may not have written yet"

    fix = "let the read wait for the write of the step before it"
    return judged(view, len(node), np.flatnonzero(~met), message, fix, waiting)


def _arrived(view: GraphView, between: Links, before: int, reads: Int64Array) -> Finding:
    """Entries that SP ranks moved: the reads on their ranks wait for the move."""
    moves = np.flatnonzero(view.named("kv_move") & (view.step == before))
    if not len(moves):
        return NOTHING
    member = np.isin(view.member_node, moves)
    mover = np.full(max(1, view.num_ranks), -1, np.int64)
    mover[view.member_rank[member]] = view.member_node[member]
    node = mover[view.rank[reads]]
    node, waiting = node[node >= 0], reads[node >= 0]

    def message(at: int) -> str:
        return f"it reads entries that {place(view, int(node[at]))} may not have brought yet"

    late = np.flatnonzero(~between.awaited(view, node, waiting))
    return judged(view, len(node), late, message, "let the read wait for the move", waiting)


def holds_every_head(view: GraphView) -> Finding:
    """KV-4: the ranks of a TP group write every K/V head, each once, or as often as the plan declares."""
    plan, model = view.plan, view.model
    writes = np.flatnonzero(view.named("kv_write") & (view.layer >= 0))
    if plan is None or model is None or not len(writes):
        return NOTHING
    held = [tuple(map(len, kv_heads_held(layer.attention, plan.tp))) for layer in model.layers]
    latent = [layer.attention.kind == "mla" for layer in model.layers]
    told = {}
    silent = 0
    for at, node in enumerate(writes.tolist()):
        layer = int(view.layer[node])
        a = model.layers[layer].attention
        symbol = int(view.symbol[node])
        unsaid = view.unsaid_of(symbol)
        silent += ("width" if latent[layer] else "kv_heads") in unsaid
        wrong = (
            _wrong_latent(view.symbols[symbol], a, plan, unsaid)
            if latent[layer]
            else _wrong_entries(view.symbols[symbol], a, plan, held[layer][int(view.rank[node]) % plan.tp], unsaid)
        )
        if wrong is not None:
            told[at] = wrong
    fix = "keep on each rank the K/V heads that its query heads attend with, and no others"
    shares = judged(view, len(writes) - silent, np.array(list(told), np.int64), lambda at: told[at], fix, writes)
    return merged(shares, _whole_groups(view, writes))


def _wrong_latent(write: Node, a: Attention, plan: ParallelPlan, unsaid: frozenset[str]) -> str | None:
    """Say how what one rank writes of a latent is not the whole of it."""
    return _wrong_amount(write.width, (a.kv_lora_rank or 0) + (a.qk_rope_head_dim or 0), "width" in unsaid) or (
        _wrong_copies(write, plan.tp, unsaid)
    )


def _wrong_entries(write: Node, a: Attention, plan: ParallelPlan, held: int, unsaid: frozenset[str]) -> str | None:
    """Say how what one rank writes is not the K/V heads that it holds, each of its keys' and values' width."""
    if (wrong := _wrong_amount(write.kv_heads, held, "kv_heads" in unsaid)) is not None:
        return wrong
    for name, found, wanted in (("keys", write.qk_dim, a.head_dim), ("values", write.v_dim, a.v_head_dim)):
        if found != wanted and ("qk_dim" if name == "keys" else "v_dim") not in unsaid:
            return f"it keeps {found} elements of {name} per head, where the model has {wanted}"
    return _wrong_copies(write, max(1, plan.tp // a.num_kv_heads), unsaid)


def _wrong_amount(found: int, wanted: int, unknown: bool) -> str | None:
    if found == wanted or unknown:
        return None
    lost = "a head of the cache is kept nowhere" if found < wanted else "copies that the plan does not declare"
    return f"the rank keeps {found} of what should be {wanted} K/V heads (or latent elements): {lost}"


def _wrong_copies(write: Node, declared: int, unsaid: frozenset[str]) -> str | None:
    if write.copies == declared or "copies" in unsaid:
        return None
    return f"its entries are said to be kept {write.copies} times, where the plan keeps them {declared} times"


def _whole_groups(view: GraphView, writes: Int64Array) -> Finding:
    """A rank that attends in a layer writes there too."""
    cores = np.flatnonzero(view.mask(lambda node: node.op in ("attention_prefill", "attention_decode")))
    width = max(1, view.num_ranks)
    most = int(view.layer.max(initial=0)) + 2
    key = ((view.step * most) + view.layer + 1) * width + view.rank
    lost = np.flatnonzero(~np.isin(key[cores], key[writes]))
    return judged(
        view, 0, lost, lambda _: "the rank attends in this layer and keeps no K/V head of it",
        "keep on each rank the K/V heads that its query heads attend with, and no others", cores,
    )  # fmt: skip


def keeps_apart(view: GraphView) -> Finding:
    """KV-5: K/V goes from a layer to itself, inside one lane of sequences; nobody writes into a shared prefix."""
    edges = np.flatnonzero(view.kind == KV)
    source, target = view.source[edges], view.target[edges]
    lane = np.array([step.lane for step in view.steps], np.int64)
    replica = view.replica_of(view.rank)
    foreign = (lane[view.step[source]] != lane[view.step[target]]) & (replica[source] == replica[target])
    layers = (view.layer[source] != view.layer[target]) & (view.layer[source] >= 0) & (view.layer[target] >= 0)
    moved = view.named("kv_move")
    bad = np.flatnonzero(foreign | (layers & ~moved[target]))

    def message(at: int) -> str:
        what = "another sequence" if foreign[at] else "another layer"
        return f"it reads K/V of {what}: {place(view, int(source[at]))}"

    fix = "read the K/V of the same layer and of the step's own sequences"
    return merged(judged(view, len(edges), bad, message, fix, target), _shared(view))


def _shared(view: GraphView) -> Finding:
    faults = [
        Fault(
            where=f"{step.kind} step {at}",
            message=f"the step writes entry {first} of sequence {request}, in a block that it shares "
            f"({step.shared[request]} tokens)",
            fix=f"begin at entry {step.shared[request]}: shared blocks are read-only",
        )
        for at, step in enumerate(view.steps)
        for request, first, _ in _entries(step)
        if first < step.shared.get(request, 0)
    ]
    return Finding(looked_at=0, faults=tuple(faults[:1]))
