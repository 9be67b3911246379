"""Mistakes of people who write plans and passes: coordinated changes of a legal graph, each beside a legal one.

A mistake keeps what it can of the graph: edges are rewired, bytes and group sizes stay right, sums match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from graph_cases_small import added, changed, cut, drawn, edges, one, pick, recast, removed, shifted, valued

from clustersim.graph.blueprint import EDGE_KINDS
from clustersim.graph.steps import DecodeToken
from clustersim.graph.variant import PLAIN, Variant
from clustersim.legality.graph_rules.views.graph import GraphView

Change = Callable[[GraphView], GraphView]


@dataclass(frozen=True)
class Mistake:
    """A graph, what is done wrong in it, and what may be done in its place."""

    graph: str
    what: str
    change: Change
    beside: str
    neighbour: Change

    def __str__(self) -> str:
        return f"{self.graph}: {self.what}"


MISTAKES: list[Mistake] = []


def mistaken(what: str, graphs: str, beside: str, neighbour: Change) -> Callable[[Change], Change]:
    """Put a mistake, made in several graphs, into the table."""

    def put(change: Change) -> Change:
        MISTAKES.extend(Mistake(graph, what, change, beside, neighbour) for graph in graphs.split(", "))
        return change

    return put


# --- ways to change -------------------------------------------------------------------------------------------------


def has(view: GraphView, name: str) -> bool:
    return bool(view.mask(lambda node: node.name == name).any())


def rank_of(view: GraphView, edge: int) -> int:
    """Return the rank that an edge is on."""
    ends = int(view.source[edge]), int(view.target[edge])
    return int(view.rank[min(ends, key=lambda node: int(view.size[node]))])


def instead(view: GraphView, source: str, target: str, other: str, **where: int) -> GraphView:
    """Let an operator take what ``other`` of its step, layer and rank makes, in place of ``source``."""
    found = np.flatnonzero(edges(view, pick(view, source, **where), pick(view, target, **where)))
    assert len(found)
    column = view.source.copy()
    for edge in found.tolist():
        node = int(view.source[edge])
        here = {"step": int(view.step[node]), "layer": int(view.layer[node]), "rank": rank_of(view, edge)}
        column[edge] = one(view, other, **here)
    return replace(view, source=column)


def exchanged(view: GraphView, first: str, second: str, **where: int) -> GraphView:
    """Exchange two operators of a step, layer and rank: each gets the edges of the other one."""
    a, b = one(view, first, **where), one(view, second, **where)

    def swap(ends: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.where(ends == a, b, np.where(ends == b, a, ends))

    view = replace(view, source=swap(view.source), target=swap(view.target))
    loops = view.source == view.target
    return replace(view, source=view.source[~loops], target=view.target[~loops], kind=view.kind[~loops])


def regrouped(view: GraphView, name: str, ranks: tuple[int, int], **where: int) -> GraphView:
    """Let two ranks change places in their collectives, with their edges: groups of the right size, and wrong ones."""
    first, second = (one(view, name, rank=rank, **where) for rank in ranks)
    assert first != second
    member = view.member_rank.copy()
    for node, old, new in ((first, *ranks), (second, *reversed(ranks))):
        member[(view.member_node == node) & (view.member_rank == old)] = new
    source, target = view.source.copy(), view.target.copy()
    for near, far in ((view.source, target), (view.target, source)):
        for node, rank, to in ((first, ranks[0], second), (second, ranks[1], first)):
            far[(far == node) & (view.rank[near] == rank) & (view.size[near] == 1)] = to
    return replace(view, member_rank=member, source=source, target=target)


def stretched(view: GraphView, name: str, change: Callable[[float], float], **where: int) -> GraphView:
    return valued(view, pick(view, name, **where), "amount", change)


def ordered(source: str, target: str, **where: int) -> Change:
    """Return a change that lets an operator wait once more for one that it follows anyway."""

    def change(view: GraphView) -> GraphView:
        return drawn(view, [(one(view, source, **where), one(view, target, **where), "order")])

    return change


def on_compute(name: str) -> Change:
    """Return a change that launches a collective on the stream of kernels."""
    return lambda view: changed(view, pick(view, name), stream="compute")


def again(source: str, target: str, **where: int) -> Change:
    """Return a change that draws an edge a second time."""

    def change(view: GraphView) -> GraphView:
        a, b = pick(view, source, **where), pick(view, target, **where)
        at = int(np.flatnonzero(edges(view, a, b))[0])
        return drawn(view, [(int(view.source[at]), int(view.target[at]), EDGE_KINDS[int(view.kind[at])])])

    return change


def shuffled(view: GraphView) -> GraphView:
    """List edges, and members of groups, the other way round."""
    return replace(
        view, source=view.source[::-1], target=view.target[::-1], kind=view.kind[::-1],
        member_node=view.member_node[::-1], member_rank=view.member_rank[::-1],
        member_position=view.member_position[::-1],
    )  # fmt: skip


def stepped(view: GraphView, at: int, **changes: Any) -> GraphView:
    return replace(view, steps=(*view.steps[:at], replace(view.steps[at], **changes), *view.steps[at + 1 :]))


HEAD = {"step": 0}
L0 = {"step": 0, "layer": 0, "rank": 0}
L1 = {"step": 0, "layer": 1}

# --- collectives ----------------------------------------------------------------------------------------------------


def drops(name: str, graphs: str, where: dict[str, int]) -> None:
    @mistaken(f"{name} is dropped, and its edges rewired", graphs, "it is on the stream of kernels", on_compute(name))
    def _(view: GraphView) -> GraphView:
        return removed(view, [one(view, name, **where)])


drops("o_proj_all_reduce", "dense, stages, copied heads, latent, ring, gather, halves, windows", L0)
drops("aggregate_all_reduce", "cut at ffn", {"step": 0})
drops("expert_down_all_reduce", "experts", L0)
drops("ffn_act_all_gather", "other splits", L0)
drops("lm_head_all_gather", "dense, gather", HEAD)
drops("out_all_to_all", "by heads", L0)
drops("kv_all_gather", "gather, gathered heads", L0)


@mistaken(
    "two sums become one behind the FFN, as in parallel attention", "dense, copied heads, ring",
    "the sum of attention waits for its product twice", again("o_proj", "o_proj_all_reduce", **L0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    view = removed(view, [one(view, "o_proj_all_reduce", **L0)])
    return stretched(view, "ffn_down_all_reduce", lambda value: 2 * value, **L0)


@mistaken(
    "a sum leaves each rank its part, and nothing puts the parts together", "dense, stages, halves",
    "the sum is on the stream of kernels", on_compute("o_proj_all_reduce"),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return changed(view, [one(view, "o_proj_all_reduce", **L0)], op="reduce_scatter")


@mistaken(
    "a group of the right size has the wrong ranks", "ring, gather, gathered heads, by heads",
    "members are listed the other way round", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return regrouped(view, "o_proj_all_reduce", (1, 3), step=0, layer=1)


@mistaken(
    "SP ranks gather with those of another TP coordinate", "gather, gathered heads",
    "members are listed the other way round", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return regrouped(view, "kv_all_gather", (2, 3), step=0, layer=1)


@mistaken(
    "the ranks that share an expert are those of two experts", "experts", "members are listed the other way round",
    shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return regrouped(view, "expert_down_all_reduce", (1, 2), step=0, layer=1)


def gathers(source: str, name: str, graphs: str, ranks: tuple[int, int], where: dict[str, int]) -> None:
    @mistaken(
        f"{name} has the shard of one rank twice, and of another one never", graphs,
        "edges are listed the other way round", shuffled,
    )  # fmt: skip
    def _(view: GraphView) -> GraphView:
        node = one(view, name, rank=ranks[0], **where)
        mine, other = (one(view, source, rank=rank, **where) for rank in ranks)
        at = np.flatnonzero(edges(view, [mine], [node]))
        column = view.source.copy()
        column[at] = other
        return replace(view, source=column)


gathers("lm_head", "lm_head_all_gather", "dense, gathered heads", (0, 1), HEAD)
gathers("rope", "kv_all_gather", "gathered heads", (0, 2), L1)
gathers("kv_a_norm_rope", "kv_all_gather", "gather", (0, 2), L1)
gathers("ffn_act", "ffn_act_all_gather", "other splits", (0, 1), L1)
gathers("expert_down", "expert_down_all_reduce", "experts", (0, 1), L1)
gathers("rope", "qkv_all_to_all", "by heads", (0, 2), L1)


@mistaken(
    "the members of two collectives disagree on their order", "dense, stages, copied heads, latent, experts, windows",
    "the second one waits for the first once more", ordered("o_proj_all_reduce", "attention_add", step=2, layer=0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    first = one(view, "o_proj_all_reduce", step=2, layer=0)
    later = view.mask(lambda node: node.op in ("all_reduce", "all_to_all")) & (view.step == 2) & view.takes_part(
        np.arange(len(view)), np.full(len(view), 1)
    )  # fmt: skip
    return shifted(view, first, int(np.flatnonzero(later & (np.arange(len(view)) > first))[0]), 1)


# --- layers, residuals, norms ---------------------------------------------------------------------------------------


@mistaken(
    "two layers are swapped", "dense, stages, experts, latent, ring, halves", "edges are listed the other way round",
    shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    last = int(view.layer.max())
    swapped = {last: last - 1, last - 1: last}
    return replace(view, layer=np.array([swapped.get(layer, layer) for layer in view.layer.tolist()]))


@mistaken(
    "a residual is added twice, and attention never", "dense, stages, copied heads, ring, halves",
    "the residual edge is drawn twice",
    lambda view: drawn(view, [(one(view, residual(view), step=0, rank=0), one(view, "attention_add", **L0), "data")]),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    add = one(view, "attention_add", **L0)
    into = np.flatnonzero(view.target == add)
    (branch,) = [edge for edge in into if "o_proj" in name_of(view, int(view.source[edge]))]
    return drawn(cut(view, [branch]), [(one(view, residual(view), step=0, rank=0), add, "data")])


def name_of(view: GraphView, node: int) -> str:
    return view.symbols[int(view.symbol[node])].name


def residual(view: GraphView) -> str:
    """Return what the first layer adds attention to."""
    return next(name for name in ("embedding_all_reduce", "embedding_all_gather", "embedding") if has(view, name))


@mistaken(
    "a residual goes round attention: the FFN is added to the input of the layer", "dense, copied heads, windows",
    "the residual edge is drawn twice", again("attention_add", "ffn_add", **L0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    add, last = (one(view, name, **L0) for name in ("attention_add", "ffn_add"))
    view = cut(view, edges(view, [add], [last]))
    return drawn(view, [(one(view, residual(view), step=0, rank=0), last, "data")])


def normed(after: str, product: str, graphs: str, **where: int) -> None:
    @mistaken(
        f"a norm comes behind {after}, and not before {product}", graphs, "the product waits for its norm once more",
        ordered("ffn_norm", product, **where),
    )  # fmt: skip
    def _(view: GraphView) -> GraphView:
        norm, up, add, made = (one(view, name, **where) for name in ("ffn_norm", product, "ffn_add", after))
        view = cut(view, edges(view, [norm], [up]) | edges(view, [made], [add]))
        view = cut(view, edges(view, [one(view, "attention_add", **where)], [norm]))
        start = one(view, "attention_add", **where)
        return drawn(view, [(start, up, "data"), (made, norm, "data"), (norm, add, "data")])


normed("ffn_down_all_reduce", "ffn_up", "dense, copied heads, ring, stages", **L0)


def left_out(name: str, reader: str, graphs: str, **where: int) -> None:
    @mistaken(
        f"{name} is left out", graphs, f"{reader} waits for {name} once more", ordered(name, reader, **where),
    )  # fmt: skip
    def _(view: GraphView) -> GraphView:
        return removed(view, [one(view, name, **where)])


left_out("attention_post_norm", "attention_add", "normed, normed experts", **L0)
left_out("ffn_post_norm", "ffn_add", "normed", **L0)
left_out("moe_post_norm", "moe_add", "normed experts", **L0)
left_out("logits_cap", "sample", "normed, normed experts", step=0)


def behind_residual(module: str, graphs: str) -> None:
    norm, add = f"{module}_post_norm", f"{module}_add"

    @mistaken(
        f"{norm} norms the stream behind the residual", graphs, "the residual waits for the norm once more",
        ordered(norm, add, **L0),
    )  # fmt: skip
    def _(view: GraphView) -> GraphView:
        return exchanged(view, norm, add, **L0)


behind_residual("attention", "normed, normed experts")
behind_residual("ffn", "normed")
behind_residual("moe", "normed experts")


def before_sum(made: str, joined: str, norm: str, add: str, graphs: str) -> None:
    @mistaken(
        f"{norm} comes before the sum over ranks", graphs, "the sum is on the stream of kernels", on_compute(joined)
    )
    def _(view: GraphView) -> GraphView:
        here = {"step": 0, "layer": 0}
        total = one(view, joined, **here)
        for rank in (0, 1):
            term, normed, last = (one(view, name, rank=rank, **here) for name in (made, norm, add))
            view = cut(view, edges(view, [term], [total]) | edges(view, [normed], [last]))
            view = cut(view, edges(view, [total], [normed]))
            view = drawn(view, [(term, normed, "data"), (normed, total, "data"), (total, last, "data")])
        return view


before_sum("o_proj", "o_proj_all_reduce", "attention_post_norm", "attention_add", "normed, normed experts")
before_sum("ffn_down", "ffn_down_all_reduce", "ffn_post_norm", "ffn_add", "normed")
before_sum("shared_add", "shared_add_all_reduce", "moe_post_norm", "moe_add", "normed experts")


def sliced(view: GraphView) -> GraphView:
    """Cap each rank's slice of the logits, and put the slices together then."""
    gather = one(view, "lm_head_all_gather", step=0)
    for rank in (0, 1):
        head, cap, end = (one(view, name, step=0, rank=rank) for name in ("lm_head", "logits_cap", "sample"))
        view = cut(view, edges(view, [head], [gather]) | edges(view, [gather], [cap]) | edges(view, [cap], [end]))
        view = drawn(view, [(head, cap, "data"), (cap, gather, "data"), (gather, end, "data")])
        view = shifted(view, cap, gather, rank)
        view = valued(view, [cap], "amount", lambda value: value / 2)
        view = changed(view, [cap], copies=1, rule="elementwise")
    return view


@mistaken("each rank caps its slice, and no rank has the others", "normed", "each caps its slice, and gathers", sliced)
def _(view: GraphView) -> GraphView:
    return removed(sliced(view), [one(sliced(view), "lm_head_all_gather", step=0)])


@mistaken(
    "the norms of attention and of the FFN are exchanged", "dense, copied heads, gathered heads",
    "the product waits for its norm once more", ordered("ffn_norm", "ffn_up", **L0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return exchanged(view, "attention_norm", "ffn_norm", **L0)


@mistaken(
    "the last norm comes behind the LM head", "dense, gather, stages",
    "the head waits for its norm once more", ordered("final_norm", "lm_head", step=0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    rank = int(view.rank[pick(view, "lm_head", step=0)[0]])
    return exchanged(view, "final_norm", "lm_head", step=0, rank=rank)


@mistaken(
    "the query of a layer meets the keys of the layer before", "dense, copied heads, windows",
    "attention waits for the layer before once more",
    lambda view: drawn(view, [(one(view, "rope", **L0), one(view, "attention_prefill", **L1, rank=0), "order")]),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    write = one(view, "kv_write", step=0, layer=1, rank=0)
    made, before = (one(view, "rope", step=0, layer=layer, rank=0) for layer in (1, 0))
    return drawn(cut(view, edges(view, [made], [write])), [(before, write, "data")])


# --- caches ---------------------------------------------------------------------------------------------------------


@mistaken(
    "K/V is written behind the attention that needs it", "dense, copied heads, latent, halves, gathered heads",
    "attention waits for the write once more", ordered("kv_write", "attention_prefill", **L0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    write, core = (one(view, name, **L0) for name in ("kv_write", "attention_prefill"))
    view = cut(view, edges(view, [write], [core]))
    return drawn(shifted(view, write, core, 0), [(core, write, "order")])


@mistaken(
    "a step reads the cache, and the step before writes it then", "dense, latent, windows",
    "the read waits for the write once more",
    lambda view: drawn(view, [(one(view, "kv_write", **D2), one(view, "kv_read", **D3), "order")]),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    write, read = one(view, "kv_write", **D2), one(view, "kv_read", **D3)
    view = cut(view, edges(view, [write], [read]))
    before = one(view, "kv_read", **D2)
    return drawn(view, [(before, read, "kv"), (read, write, "order")])


D2, D3 = ({"step": step, "layer": 0, "rank": 0} for step in (2, 3))


@mistaken(
    "a new token attends to itself alone, and says so", "dense, latent, windows",
    "attention waits for the cache once more", ordered("kv_read", "attention_decode", **D2),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    cores = pick(view, "attention_decode", step=2)
    view = cut(view, edges(view, pick(view, "kv_read", step=2), cores))
    return valued(view, cores, "attended", lambda _: float(len(view.steps[2].decodes or ())))


@mistaken(
    "one rank reads the cache of another one", "dense, copied heads, latent", "edges are listed the other way round",
    shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    core = one(view, "attention_decode", **D2)
    mine, other = one(view, "kv_read", **D2), one(view, "kv_read", **{**D2, "rank": 1})
    return drawn(cut(view, edges(view, [mine], [core])), [(other, core, "kv")])


@mistaken(
    "one sequence has a token more and another one less, so that sums match", "dense, experts, gather",
    "sequences that no other step shows have other lengths of the same sum",
    lambda view: stepped(view, 4, decodes=(replace((view.steps[4].decodes or ())[0], request=77),)),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    first, second = view.steps[3].decodes or ()
    return stepped(
        view, 3, decodes=(replace(first, position=first.position + 1), replace(second, position=second.position - 1))
    )  # fmt: skip


@mistaken(
    "one prompt has a token more and another one less, so that tokens match", "dense, windows, latent",
    "another prompt has another number", lambda view: stepped(view, 4, decodes=(DecodeToken(request=77, position=5),)),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    first, second = view.steps[0].chunks
    return stepped(view, 0, chunks=(replace(first, count=first.count + 1), replace(second, count=second.count - 1)))


@mistaken(
    "a rank attends for a sequence more, and another rank for one less", "gather, gathered heads",
    "edges are listed the other way round", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    assert view.plan is not None
    last = view.plan.stage_ranks - 1
    few, many = (pick(view, "attention_decode", step=3, rank=rank) for rank in (0, last))
    return valued(valued(view, few, "amount", lambda v: v - 1), many, "amount", lambda v: v + 1)


@mistaken(
    "the cache is written in the format of activations", "dense, latent, copied heads",
    "edges are listed the other way round", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return stretched(view, "kv_write", lambda value: value * 4 / 3, **L1)  # 2 bytes read, 2 written in place of 1


@mistaken(
    "layers with and without a window are exchanged", "windows", "edges are listed the other way round", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    full, slides = (pick(view, "attention_decode", layer=layer, step=2) for layer in (0, 1))
    seen = view.attended[[full[0], slides[0]]]
    view = changed(changed(view, full, variant=Variant(window=4)), slides, variant=PLAIN)
    return valued(valued(view, full, "attended", lambda _: seen[1]), slides, "attended", lambda _: seen[0])


# --- segments -------------------------------------------------------------------------------------------------------


@mistaken(
    "two parts of a ring attend to each other's segments", "ring", "edges are listed the other way round", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    first, second = (pick(view, f"attention_prefill_{part}", **L0) for part in (1, 2))
    seen = view.attended[[first[0], second[0]]]
    view = changed(changed(view, first, variant=Variant(hop=2)), second, variant=Variant(hop=1))
    return valued(valued(view, first, "attended", lambda _: seen[1]), second, "attended", lambda _: seen[0])


@mistaken(
    "two shifts of a ring are exchanged", "ring", "a shift waits for the one before once more",
    ordered("kv_ring_1", "kv_ring_2", **L0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return exchanged(view, "kv_ring_1", "kv_ring_2", **L0)


def partitioned(partition: str, graphs: str) -> None:
    @mistaken(f"a prompt is split otherwise than declared: {partition}", graphs, "edges are listed anew", shuffled)
    def _(view: GraphView) -> GraphView:
        assert view.plan is not None
        return replace(view, plan=replace(view.plan, sp=replace(view.plan.sp, partition=partition)))  # type: ignore[arg-type]


partitioned("contiguous", "ring, stripes")
partitioned("striped", "ring, gather, gathered heads")
partitioned("zigzag", "gather, stripes")


@mistaken(
    "the move before decode takes the prompt of one rank twice", "gathered heads, ring",
    "edges are listed the other way round", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    move = one(view, "kv_move", step=0, rank=0)
    into = np.flatnonzero((view.target == move) & (view.rank[view.source] == 0))
    other = np.flatnonzero((view.target == move) & (view.rank[view.source] == 2))
    column = view.source.copy()
    column[into] = column[other[: len(into)]]
    return replace(view, source=column)


# --- stages ---------------------------------------------------------------------------------------------------------


@mistaken(
    "a stage sends what precedes its residual, with the right bytes", "stages", "a send waits for the norm once more",
    lambda view: drawn(view, [(one(view, "ffn_norm", **L0), one(view, "send", step=0, rank=0), "order")]),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    send = one(view, "send", step=0, rank=0)
    add, made = (one(view, name, **L0) for name in ("ffn_add", "ffn_down_all_reduce"))
    return drawn(cut(view, edges(view, [add], [send])), [(made, send, "data")])


@mistaken(
    "a stage cut before its experts sends attention without the residual", "cut at ffn",
    "members are listed the other way round", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    send = one(view, "send", step=0, rank=0)
    into = np.flatnonzero((view.target == send) & (view.kind == EDGE_KINDS.index("data")))
    made = one(view, "o_proj_all_reduce", step=0, layer=1, rank=0)
    return drawn(cut(view, into), [(made, send, "data")])


def crossed(view: GraphView, first: int, second: int) -> GraphView:
    """Let two ranks of the second stage receive what is sent to the other one."""
    assert view.plan is not None
    ranks = (first, second)
    sends = [one(view, "send", step=0, rank=rank) for rank in ranks]
    recvs = [one(view, "recv", step=0, rank=view.plan.stage_ranks + rank) for rank in ranks]
    view = cut(view, edges(view, sends, recvs))
    return drawn(view, [(sends[0], recvs[1], "sync"), (sends[1], recvs[0], "sync")])


@mistaken(
    "two ranks receive each other's segments from the stage before", "ring of stages",
    "two ranks receive what TP has made the same on both", lambda view: crossed(view, 0, 1),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return crossed(view, 0, 2)


@mistaken(
    "the LM head is on the first stage", "stages, cut at ffn", "the head waits for its norm once more",
    ordered("final_norm", "lm_head", step=2),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    names = ("final_norm", "lm_head", "lm_head_all_gather", "sample")
    nodes = [node for name in names for node in pick(view, name, step=2)]
    stage = view.stage.copy()
    stage[nodes] = 0
    member = np.where(np.isin(view.member_node, nodes), view.member_rank - 2, view.member_rank)
    view = replace(view, stage=stage, member_rank=member)
    norms = pick(view, "final_norm", step=2)
    view = cut(view, np.isin(view.target, norms))
    last = int(view.layer[(view.stage == 0)].max())
    exits = "ffn_add" if has(view, "ffn_add") else "attention_add"
    return drawn(
        view, [(one(view, exits, step=2, layer=last, rank=int(view.rank[n])), n, "data") for n in norms]
    )  # fmt: skip


@mistaken(
    "the second stage begins with the embedding, and not with what arrives", "stages", "edges are listed anew", shuffled
)
def _(view: GraphView) -> GraphView:
    recv, start = one(view, "recv", step=0, rank=2), one(view, "embedding_all_reduce", step=0, rank=0)
    out = np.flatnonzero((view.source == recv) & (view.kind == EDGE_KINDS.index("data")))
    column = view.source.copy()
    column[out] = start
    return replace(view, source=column)


# --- tokens ---------------------------------------------------------------------------------------------------------


@mistaken(
    "every rank samples from its own part of the logits", "dense, gather, latent", "the gather is on another stream",
    on_compute("lm_head_all_gather"),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return removed(view, pick(view, "lm_head_all_gather", step=2))


@mistaken(
    "one rank samples, and does not tell the others", "dense, copied heads, experts",
    "the next step waits for the token once more",
    lambda view: drawn(view, [(one(view, "sample", step=2, rank=0), one(view, "schedule", step=3, rank=0), "order")]),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return removed(view, [one(view, "sample", step=2, rank=1)])


@mistaken(
    "a token is passed on before the one that it follows", "dense, latent", "edges are listed anew", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return replace(view, step=np.where(view.step == 2, 3, np.where(view.step == 3, 2, view.step)))


# --- experts --------------------------------------------------------------------------------------------------------


@mistaken(
    "experts are combined without their weights", "experts, latent, shared, halves, cut at ffn",
    "the sum waits for the gate once more", ordered("gate", "aggregate", step=0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return cut(view, edges(view, pick(view, "gate"), pick(view, "dispatch")))


@mistaken(
    "the weights of experts delay them, and go nowhere", "experts, shared", "the sum waits for the gate once more",
    ordered("gate", "aggregate", step=0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return recast(view, edges(view, pick(view, "gate", step=0), pick(view, "dispatch", step=0)), "order")


@mistaken(
    "rows go to the wrong rank of experts, and all counts match", "experts, halves, shared",
    "rows are as tokens were routed, and no even ones", lambda view: _misrouted(replace(view, evenly_routed=False)),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return _misrouted(view)


def _misrouted(view: GraphView) -> GraphView:
    assert view.plan is not None
    ranks = view.plan.stage_ranks // view.plan.ep.degree
    where = {"step": 0, "layer": 0}
    for first, more in ((0, 1.0), (ranks, -1.0)):
        rows = float(view.amount[one(view, "expert_up", rank=first, **where)])
        names = [f"expert_{part}" for part in ("up", "act", "down", "down_all_reduce") if has(view, f"expert_{part}")]
        among = [one(view, name, rank=rank, **where) for name in names for rank in range(first, first + ranks)]
        view = valued(view, dict.fromkeys(among), "amount", lambda v, by=(rows + more) / rows: v * by)  # type: ignore[misc]
    return view


@mistaken(
    "experts are visited one at a time, all the way", "experts, windows, shared", "edges are listed anew", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    for name in ("dispatch", "expert_up", "expert_act", "expert_down", "combine"):
        view = stretched(view, name, lambda value: value / 2, step=0)
    return view


@mistaken(
    "a rank's experts feed the combine of another rank", "experts, halves", "edges are listed anew", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return instead_rank(view, "expert_down_all_reduce" if has(view, "expert_down_all_reduce") else "expert_down")


def instead_rank(view: GraphView, name: str) -> GraphView:
    combine = one(view, "combine", **L0)
    made = pick(view, name, step=0, layer=0)
    at = np.flatnonzero(edges(view, made, [combine]))
    column = view.source.copy()
    column[at[0]] = column[at[-1]]
    assert column[at[0]] != view.source[at[0]]
    return replace(view, source=column)


@mistaken(
    "shared experts are left out of the sum", "latent, windows", "the sum waits for the gate once more",
    ordered("gate", "aggregate", step=0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    made = view.mask(lambda node: node.name.startswith("shared_down"))
    return cut(view, made[view.source] & np.isin(view.target, pick(view, "shared_add")))


@mistaken(
    "the gate sees tokens before their norm", "experts, latent, halves", "the gate waits for its norm once more",
    ordered("moe_norm", "gate", step=0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    where = {**L0, "layer": int(view.layer[pick(view, "gate", step=0)[0]])}
    return instead(view, "moe_norm", "gate", "attention_add", **where)


# --- shapes and halves ----------------------------------------------------------------------------------------------


@mistaken(
    "a gated FFN leaves out its gate, consistently", "dense, copied heads, ring", "edges are listed anew", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    ups = pick(view, "ffn_up")
    view = changed(view, ups, n=view.symbols[int(view.symbol[ups[0]])].n // 2)
    return stretched(view, "ffn_act", lambda value: value * 2 / 3)


@mistaken(
    "one rank has the heads of two, and another none", "dense, latent", "edges are listed anew", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    cores = [one(view, "attention_decode", step=2, layer=0, rank=rank) for rank in (0, 1)]
    heads = view.symbols[int(view.symbol[cores[0]])].heads
    return changed(changed(view, [cores[0]], heads=2 * heads), [cores[1]], heads=0)


@mistaken(
    "the second half attends with the queries of the first", "halves", "edges are listed anew", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    halves = [at for at, step in enumerate(view.steps) if step.half][:2]
    core = "attention_prefill" if has_at(view, "attention_prefill", halves[1]) else "attention_decode"
    made, other = (one(view, "rope", step=step, layer=0, rank=0) for step in reversed(halves))
    end = one(view, core, step=halves[1], layer=0, rank=0)
    return drawn(cut(view, edges(view, [made], [end])), [(other, end, "data")])


@mistaken(
    "the halves take each other's experts", "halves", "edges are listed anew", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    first, second = [at for at, step in enumerate(view.steps) if step.half][:2]
    combines = [one(view, "combine", step=step, layer=0) for step in (first, second)]
    source = np.select(
        [view.source == combines[0], view.source == combines[1]], [combines[1], combines[0]], view.source
    )  # fmt: skip
    return replace(view, source=source)


def has_at(view: GraphView, name: str, step: int) -> bool:
    return bool((view.mask(lambda node: node.name == name) & (view.step == step)).any())


@mistaken(
    "replicas add up what they have made, as in training", "stages", "edges are listed anew", shuffled,
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    sums = one(view, "ffn_down_all_reduce", step=3, layer=0, rank=0)
    view, more = added(view, sums, view.symbols[int(view.symbol[sums])], [0, 4])
    view = valued(view, [more], "amount", lambda _: view.amount[sums])
    other = one(view, "ffn_down_all_reduce", step=5, layer=0, rank=4)
    return drawn(
        view,
        [(sums, more, "data"), (other, more, "data"), (more, one(view, "ffn_add", step=3, layer=0, rank=0), "data")],
    )


def misshapen(what: str, graphs: str, name: str, **changes: int) -> None:
    @mistaken(what, graphs, "edges are listed anew", shuffled)
    def _(view: GraphView) -> GraphView:
        return changed(view, [pick(view, name, layer=0, rank=0)[0]], **changes)


misshapen("attention takes keys of another length", "dense, latent", "attention_decode", qk_dim=3)
misshapen("attention takes values of another length", "dense, by heads", "attention_prefill", v_dim=3)
misshapen("attention reads more K/V heads than its rank keeps", "dense, latent", "attention_decode", kv_heads=7)
misshapen("entries are said to be kept more often than they are", "dense, copied heads", "kv_write", copies=3)


@mistaken("a sum joins ranks of two stages", "stages", "members are listed the other way round", shuffled)
def _(view: GraphView) -> GraphView:
    member = view.member_rank.copy()
    last = np.flatnonzero(view.member_node == one(view, "o_proj_all_reduce", **L0))[-1]
    member[last] += 2
    return replace(view, member_rank=member)


@mistaken(
    "a prefill goes on from what moves to decode", "ring, gather", "the boundary waits for the move once more",
    again("kv_move", "boundary", step=0),
)  # fmt: skip
def _(view: GraphView) -> GraphView:
    return drawn(view, [(one(view, "kv_move", step=0), one(view, "final_norm", step=0), "data")])
