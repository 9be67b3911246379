"""Every mutation of RULES.md's level G, as a change of a legal graph: rule → (case, what is done, how)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from graph_cases_small import (
    CASES,
    added,
    between,
    changed,
    cut,
    drawn,
    edges,
    left,
    one,
    parted,
    pick,
    recast,
    removed,
    shifted,
    stepped,
    valued,
    view_of,
)

from clustersim.graph.blueprint import EDGE_KINDS, Node
from clustersim.graph.steps import DecodeToken
from clustersim.graph.variant import Variant
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.simulation.graph_legality import StepContents, story

Change = Callable[[GraphView], GraphView]


@dataclass(frozen=True)
class Mutation:
    """A legal case, and a change that breaks one rule."""

    rule: str
    case: str
    what: str
    change: Change

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


MUTATIONS: list[Mutation] = []


def breaks(rule: str, case: str, what: str) -> Callable[[Change], Change]:
    """Put a change into the table."""

    def put(change: Change) -> Change:
        MUTATIONS.append(Mutation(rule, case, what, change))
        return change

    return put


def retold(view: GraphView, case: str, at: int, **changes: object) -> GraphView:
    """Return the graph of another story, in which a step's first chunk is changed."""
    steps = list(story(CASES[case][1]))
    chunk = replace(steps[at].chunks[0], **changes)  # type: ignore[arg-type]
    steps[at] = replace(steps[at], chunks=(chunk, *steps[at].chunks[1:]))
    return view_of(case, in_full=len(view.layer_names) == len(CASES[case][0].layers), steps=tuple(steps))


def resplit(view: GraphView, **split: str) -> GraphView:
    """Return the graph under a plan that declares other splits."""
    assert view.plan is not None
    return replace(view, plan=replace(view.plan, split=replace(view.plan.split, **split)))  # type: ignore[arg-type]


# --- PH -------------------------------------------------------------------------------------------------------------


@breaks("PH-1", "dense", "the boundary is dropped")
def _(view: GraphView) -> GraphView:
    return removed(view, pick(view, "boundary", step=1))


@breaks("PH-1", "ring", "the boundary is dropped under SP")
def _(view: GraphView) -> GraphView:
    return removed(view, pick(view, "boundary", step=1))


@breaks("PH-1", "dense", "decode starts before the last chunk ends on the last stage")
def _(view: GraphView) -> GraphView:
    starts, old = pick(view, "schedule", step=2), pick(view, "boundary", step=1)
    view = cut(view, edges(view, old, starts))
    return drawn(view, [(end, start, "boundary") for end in pick(view, "boundary", step=0) for start in starts])


@breaks("PH-1", "dense", "an edge goes from prefill to decode beside the boundary")
def _(view: GraphView) -> GraphView:
    return drawn(
        view, [(one(view, "kv_write", step=1, layer=0, rank=0), one(view, "kv_read", step=2, layer=0, rank=0), "kv")]
    )


@breaks("PH-2", "dense", "a decode step has two tokens of one sequence")
def _(view: GraphView) -> GraphView:
    first, *rest = view.steps[3].decodes or ()
    return stepped(view, 3, decodes=(replace(first, tokens=2), *rest))


@breaks("PH-2", "dense", "a sequence is in a decode step twice")
def _(view: GraphView) -> GraphView:
    first, _ = view.steps[3].decodes or ()
    again = DecodeToken(request=first.request, position=first.position + 1)
    keys = first.position + 1 + again.position + 1
    view = valued(view, pick(view, "attention_decode", step=3), "attended", lambda _: keys)
    return stepped(view, 3, decodes=(first, again))


@breaks("PH-2", "wide", "decode attention takes twice as many tokens as there are sequences")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "attention_decode", step=3, rank=1), "amount", lambda v: 2 * v)


@breaks("PH-3", "dense", "two steps overlap across stages")
def _(view: GraphView) -> GraphView:
    starts = pick(view, "schedule", step=3)
    view = cut(view, edges(view, pick(view, "sample", step=2), starts))
    ends = pick(view, "ffn_add", step=2, layer=0)
    return drawn(view, [(end, start, "data") for end in ends for start in starts])


@breaks("PH-5", "dense", "a K/V dependency on the tokens of the step is dropped")
def _(view: GraphView) -> GraphView:
    write = pick(view, "kv_write", step=0, layer=1, rank=1)
    return cut(view, edges(view, write, pick(view, "attention_prefill", step=0)))


@breaks("PH-5", "gather", "a K/V dependency on the tokens before the step is dropped")
def _(view: GraphView) -> GraphView:
    owner = 2 * 2
    read = pick(view, "kv_read", step=1, layer=1, rank=owner)
    return cut(view, edges(view, read, pick(view, "attention_prefill", step=1)))


@breaks("PH-5", "wide", "a new token does not attend to the tokens before it")
def _(view: GraphView) -> GraphView:
    return cut(view, edges(view, pick(view, "kv_read", step=2, layer=0, rank=2), pick(view, "attention_decode")))


@breaks("PH-5", "wide", "a new token attends to one key less")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "attention_decode", step=3, layer=1, rank=0), "attended", lambda v: v - 1)


@breaks("PH-5", "dense", "attention sees tokens that come later: it has no causal mask")
def _(view: GraphView) -> GraphView:
    tokens = sum(chunk.count**2 for chunk in view.steps[0].chunks)
    return valued(view, pick(view, "attention_prefill", step=0, layer=0, rank=0), "attended", lambda _: tokens)


@breaks("PH-5", "dense", "a window that the model does not have hides tokens")
def _(view: GraphView) -> GraphView:
    node = pick(view, "attention_prefill", step=0, layer=1, rank=0)
    seen = sum(min(i + 1, 3) for chunk in view.steps[0].chunks for i in range(chunk.count))
    return valued(changed(view, node, variant=Variant(window=3)), node, "attended", lambda _: seen)


@breaks("PH-5", "ring", "a part of a ring attends to its own segment twice")
def _(view: GraphView) -> GraphView:
    second, first = (one(view, f"attention_prefill_{part}", step=0, layer=0, rank=3) for part in (1, 0))
    return valued(changed(view, [second], variant=Variant(hop=0)), [second], "attended", lambda _: view.attended[first])


@breaks("PH-1", "wide", "the boundary delays decode, and passes no phase on")
def _(view: GraphView) -> GraphView:
    return recast(view, edges(view, pick(view, "boundary", step=1), pick(view, "schedule", step=2)), "order")


@breaks("PH-3", "wide", "the sampled token delays the next step, and is not passed on")
def _(view: GraphView) -> GraphView:
    return recast(view, edges(view, pick(view, "sample", step=2), pick(view, "schedule", step=3)), "order")


@breaks("PH-5", "dense", "the cache delays attention, and brings it nothing")
def _(view: GraphView) -> GraphView:
    read = pick(view, "kv_read", step=3, layer=1, rank=0)
    return recast(view, edges(view, read, pick(view, "attention_decode", step=3)), "order")


# --- KV -------------------------------------------------------------------------------------------------------------


@breaks("KV-1", "dense", "an entry is skipped")
def _(view: GraphView) -> GraphView:
    return retold(view, "dense", 1, start=story(CASES["dense"][1])[1].chunks[0].start + 1)


@breaks("KV-1", "dense", "an entry is written again by the next step")
def _(view: GraphView) -> GraphView:
    return retold(view, "dense", 1, start=story(CASES["dense"][1])[1].chunks[0].start - 1)


@breaks("KV-1", "wide", "a write is done twice")
def _(view: GraphView) -> GraphView:
    write = one(view, "kv_write", step=2, layer=1, rank=1)
    into = [(int(a), -1, "data") for a in view.source[view.target == write]]
    out = [(-1, int(b), "kv") for b in view.target[view.source == write]]
    view, again = added(view, write, view.symbols[view.symbol[write]], [1])
    view = valued(view, [again], "amount", lambda _: view.amount[write])
    return drawn(view, [(again if a < 0 else a, again if b < 0 else b, kind) for a, b, kind in into + out])


@breaks("KV-1", "gather", "a write leaves out an entry")
def _(view: GraphView) -> GraphView:
    each = 2 * (8 + 8) * 3  # 2 of 4 heads, keys and values of 8, 2 bytes read and 1 byte written
    return valued(view, pick(view, "kv_write", step=0, layer=0, rank=0), "amount", lambda v: v - each)


@breaks("KV-2", "dense", "a write delays the read of the next step, and leaves it nothing")
def _(view: GraphView) -> GraphView:
    write, read = (one(view, name, step=step, layer=1, rank=0) for name, step in (("kv_write", 2), ("kv_read", 3)))
    return recast(view, edges(view, [write], [read]), "order")


@breaks("KV-2", "dense", "a step reads before the one before it has written")
def _(view: GraphView) -> GraphView:
    write, read = (one(view, name, step=step, layer=1, rank=0) for name, step in (("kv_write", 2), ("kv_read", 3)))
    return cut(view, edges(view, [write], [read]))


@breaks("KV-2", "wide", "attention runs before the write in its rank's program")
def _(view: GraphView) -> GraphView:
    return shifted(view, *(one(view, name, step=0, layer=0, rank=2) for name in ("kv_write", "attention_prefill")), 2)


@breaks("KV-2", "ring", "a step reads before K/V of other ranks has arrived")
def _(view: GraphView) -> GraphView:
    read = one(view, "kv_read", step=1, layer=0, rank=0)
    own, other = (one(view, "boundary", step=0, stage=stage, rank=8 * stage) for stage in (0, 1))
    return drawn(cut(view, edges(view, [own], [read])), [(other, read, "boundary")])


@breaks("KV-4", "dense", "a K/V head is orphaned")
def _(view: GraphView) -> GraphView:
    write = pick(view, "kv_write", step=0, layer=0, rank=1)
    return valued(changed(view, write, kv_heads=1), write, "amount", lambda v: v / 2)


@breaks("KV-4", "dense", "K/V heads are copied without a word")
def _(view: GraphView) -> GraphView:
    write = pick(view, "kv_write", step=0, layer=0, rank=1)
    return valued(changed(view, write, kv_heads=4), write, "amount", lambda v: 2 * v)


@breaks("KV-4", "latent", "a part of the latent is kept nowhere")
def _(view: GraphView) -> GraphView:
    write = pick(view, "kv_write", step=0, layer=0, rank=1)
    return valued(changed(view, write, width=20), write, "amount", lambda v: v * 20 / 24)


@breaks("KV-5", "dense", "a read of another sequence")
def _(view: GraphView) -> GraphView:
    write, read = (one(view, name, step=step, layer=0, rank=0) for name, step in (("kv_write", 3), ("kv_read", 4)))
    return drawn(view, [(write, read, "kv")])


@breaks("KV-5", "dense", "a read of another layer")
def _(view: GraphView) -> GraphView:
    write, core = (one(view, n, step=2, layer=at, rank=0) for n, at in (("kv_write", 0), ("attention_decode", 1)))
    return drawn(view, [(write, core, "kv")])


@breaks("KV-5", "wide", "a read of another micro-batch")
def _(view: GraphView) -> GraphView:
    write, read = (one(view, name, step=step, layer=1, rank=3) for name, step in (("kv_write", 2), ("kv_read", 4)))
    assert view.steps[2].lane != view.steps[4].lane
    return drawn(view, [(write, read, "kv")])


@breaks("KV-5", "dense", "a write into a shared block")
def _(view: GraphView) -> GraphView:
    return stepped(view, 0, shared={0: 4})


# --- TP -------------------------------------------------------------------------------------------------------------


@breaks("TP-2", "dense", "an all-reduce is dropped")
def _(view: GraphView) -> GraphView:
    return removed(view, [one(view, "o_proj_all_reduce", step=2, layer=1)])


@breaks("TP-2", "wide", "an all-reduce behind experts or FFN is dropped on the way to the next layer")
def _(view: GraphView) -> GraphView:
    return removed(view, [one(view, "ffn_down_all_reduce", step=0, layer=0)])


@breaks("TP-2", "experts", "a partial sum of experts is read as if it were whole")
def _(view: GraphView) -> GraphView:
    return removed(view, [one(view, "aggregate_all_reduce", step=0, layer=0)])


@breaks("TP-2", "dense", "a sum is swapped for a concatenation")
def _(view: GraphView) -> GraphView:
    return changed(view, [one(view, "ffn_down_all_reduce", step=0, layer=0)], op="all_gather")


@breaks("TP-2", "dense", "a concatenation is swapped for a sum")
def _(view: GraphView) -> GraphView:
    return changed(view, [one(view, "lm_head_all_gather", step=0)], op="all_reduce")


@breaks("TP-2", "wide", "the plan declares the first product of the FFN by rows")
def _(view: GraphView) -> GraphView:
    return resplit(view, ffn_up="rows")


@breaks("TP-2", "wide", "the plan declares the second product of the FFN by columns")
def _(view: GraphView) -> GraphView:
    return resplit(view, ffn_down="columns")


@breaks("TP-2", "wide", "the plan declares the output projection by columns")
def _(view: GraphView) -> GraphView:
    return resplit(view, attention_out="columns")


@breaks("TP-2", "wide", "the plan declares the LM head by hidden")
def _(view: GraphView) -> GraphView:
    return resplit(view, lm_head="hidden")


@breaks("TP-2", "wide", "a sum carries half of the output")
def _(view: GraphView) -> GraphView:
    return valued(view, [one(view, "o_proj_all_reduce", step=0, layer=0)], "amount", lambda v: v / 2)


@breaks("TP-3", "wide", "a collective is put before the activation")
def _(view: GraphView) -> GraphView:
    return between(view, "ffn_up", "ffn_act", "all_gather", "tp", [0, 1, 2, 3], step=0, layer=1)


@breaks("TP-3", "wide", "a collective is put behind the activation")
def _(view: GraphView) -> GraphView:
    return between(view, "ffn_act", "ffn_down", "all_gather", "tp", [0, 1, 2, 3], step=0, layer=1)


@breaks("TP-4", "wide", "a collective is put between projection and scores")
def _(view: GraphView) -> GraphView:
    return between(view, "rope", "attention_prefill", "all_gather", "tp", [0, 1, 2, 3], step=0, layer=1)


@breaks("TP-4", "latent", "a collective is put between decode's scores and their values")
def _(view: GraphView) -> GraphView:
    return between(view, "attention_decode", "v_absorb", "all_gather", "tp", [0, 1], step=2, layer=1)


@breaks("TP-4", "wide", "heads are joined for an output projection that takes a part of them")
def _(view: GraphView) -> GraphView:
    return between(view, "attention_prefill", "o_proj", "all_gather", "tp", [0, 1, 2, 3], step=0, layer=1)


@breaks("TP-5", "wide", "one rank is missing")
def _(view: GraphView) -> GraphView:
    return left(view, one(view, "o_proj_all_reduce", step=0, layer=0), 2, edges_too=False)


@breaks("TP-5", "dense", "one rank of two is missing")
def _(view: GraphView) -> GraphView:
    return left(view, one(view, "o_proj_all_reduce", step=2, layer=0), 1, edges_too=False)


@breaks("TP-5", "dense", "two collectives are reordered on one rank")
def _(view: GraphView) -> GraphView:
    pair = (one(view, name, step=2, layer=0, rank=1) for name in ("o_proj_all_reduce", "ffn_down_all_reduce"))
    return shifted(view, *pair, 1)


@breaks("TP-7", "dense", "an all-reduce joins two layers")
def _(view: GraphView) -> GraphView:
    return drawn(
        view,
        [
            (
                one(view, "o_proj", step=0, layer=0, rank=1),
                one(view, "o_proj_all_reduce", step=0, layer=1, rank=1),
                "data",
            )
        ],
    )


@breaks("TP-7", "dense", "an all-reduce joins two steps")
def _(view: GraphView) -> GraphView:
    name, where = "o_proj_all_reduce", {"layer": 1, "rank": 1}
    return drawn(view, [(one(view, "o_proj", step=2, **where), one(view, name, step=3, **where), "data")])


@breaks("TP-8", "dense", "an extra edge")
def _(view: GraphView) -> GraphView:
    pair = (one(view, name, step=0, layer=0, rank=0) for name in ("ffn_norm", "ffn_down"))
    return drawn(view, [(*pair, "data")])  # type: ignore[list-item]


@breaks("TP-8", "dense", "a missing edge on one rank")
def _(view: GraphView) -> GraphView:
    norm, product = (pick(view, name, step=0, layer=0, rank=1) for name in ("attention_norm", "qkv_proj"))
    return cut(view, edges(view, norm, product))


@breaks("TP-8", "wide", "a residual edge is missing")
def _(view: GraphView) -> GraphView:
    pair = (pick(view, name, step=2, layer=1, rank=3) for name in ("attention_add", "ffn_add"))
    return cut(view, edges(view, *pair))


@breaks("TP-8", "wide", "an edge from one rank to another without a collective")
def _(view: GraphView) -> GraphView:
    where = {"step": 0, "layer": 0}
    return drawn(view, [(one(view, "qkv_proj", rank=0, **where), one(view, "rope", rank=1, **where), "data")])


@breaks("TP-8", "normed", "the norm behind attention is left out on one rank")
def _(view: GraphView) -> GraphView:
    return removed(view, pick(view, "attention_post_norm", step=0, layer=1, rank=1))


@breaks("TP-8", "normed", "the soft cap of logits is left out")
def _(view: GraphView) -> GraphView:
    return removed(view, pick(view, "logits_cap", step=2))


@breaks("TP-2", "normed", "a norm takes terms of the sum behind the FFN")
def _(view: GraphView) -> GraphView:
    return removed(view, pick(view, "ffn_down_all_reduce", step=0, layer=0))


@breaks("TP-9", "dense", "a rank computes half of its share")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "o_proj", step=0, layer=0, rank=1), k=16)


@breaks("TP-9", "wide", "TP splits the batch")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "ffn_up", step=2, layer=0), "amount", lambda v: v / 2)


@breaks("TP-9", "wide", "a rank leaves out heads")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "attention_decode", step=2, layer=0, rank=1), heads=1)


# --- SP -------------------------------------------------------------------------------------------------------------

PRODUCTS = ("qkv_proj", "o_proj", "ffn_up", "ffn_down")


@breaks("SP-1", "gather", "two segments overlap")
def _(view: GraphView) -> GraphView:
    nodes = [node for name in (*PRODUCTS, "attention_prefill") for node in pick(view, name, step=0, rank=2)]
    return valued(view, nodes, "amount", lambda v: v + 1)


@breaks("SP-1", "ring", "there is a gap between segments")
def _(view: GraphView) -> GraphView:
    nodes = [
        n
        for name in (*PRODUCTS, *(f"attention_prefill_{part}" for part in range(4)))
        for stage in (0, 1)
        for n in pick(view, name, step=0, rank=8 * stage + 2)
    ]
    return valued(view, nodes, "amount", lambda v: v - 1)


@breaks("SP-2", "gather", "one segment's K/V is left out of the gather")
def _(view: GraphView) -> GraphView:
    return left(view, one(view, "kv_all_gather", step=0, layer=1, rank=0), 0, edges_too=True)


@breaks("SP-2", "gather", "a rank does not expose its segment")
def _(view: GraphView) -> GraphView:
    gather = pick(view, "kv_all_gather", step=0, layer=1, rank=0)
    return cut(view, edges(view, pick(view, "rope", step=0, layer=1, rank=0), gather))


@breaks("SP-2", "ring", "the last shift of a ring is left out")
def _(view: GraphView) -> GraphView:
    shift = one(view, "kv_ring_3", step=0, layer=0, rank=0)
    view = cut(view, (view.source == shift) | (view.target == shift))
    return removed(view, [shift])


@breaks("SP-3", "gather", "a decode step gathers over SP ranks")
def _(view: GraphView) -> GraphView:
    return between(view, "rope", "attention_decode", "all_gather", "sp", [0, 2, 4], step=2, layer=0)


@breaks("SP-3", "gather", "a decode beside a prompt gathers over SP ranks")
def _(view: GraphView) -> GraphView:
    where = {"step": 1, "layer": 0, "rank": 4}
    return drawn(view, [(one(view, "kv_all_gather", **where), one(view, "attention_decode", **where), "kv")])


@breaks("SP-4", "gather", "half the bytes are gathered")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "kv_all_gather", step=0, layer=0, rank=0), "amount", lambda v: v / 2)


@breaks("SP-4", "ring", "half the bytes are passed on")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "kv_ring_2", step=1, layer=0, rank=0), "amount", lambda v: v / 2)


@breaks("SP-4", "heads", "half the bytes are exchanged")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "qkv_all_to_all", step=0, layer=0, rank=0), "amount", lambda v: v / 2)


@breaks("SP-4", "latent", "half of the latents are gathered")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "kv_all_gather", step=0, layer=0, rank=0), "amount", lambda v: v / 2)


@breaks("SP-4", "heads", "an exchange is said to be twice as wide as its rank's heads")
def _(view: GraphView) -> GraphView:
    node = pick(view, "out_all_to_all", step=0)
    return changed(view, node, width=2 * view.symbols[int(view.symbol[node[0]])].width)


@breaks("SP-4", "gather", "K/V is gathered twice")
def _(view: GraphView) -> GraphView:
    gather = one(view, "kv_all_gather", step=0, layer=0, rank=0)
    ranks = view.member_rank[view.member_node == gather].tolist()
    view, again = added(view, gather, view.symbols[view.symbol[gather]], ranks)
    view = valued(view, [again], "amount", lambda _: view.amount[gather])
    rows = list(zip(view.source.tolist(), view.target.tolist(), view.kind.tolist(), strict=True))
    into = [(source, again, EDGE_KINDS[kind]) for source, target, kind in rows if target == gather]
    return drawn(
        view, [*into, *((again, target, EDGE_KINDS[kind]) for source, target, kind in rows if source == gather)]
    )


@breaks("SP-5", "gather", "attention does not wait for the gather")
def _(view: GraphView) -> GraphView:
    gather, core = (pick(view, name, step=0, layer=0, rank=2) for name in ("kv_all_gather", "attention_prefill"))
    return cut(view, edges(view, gather, core))


@breaks("SP-5", "ring", "attention on a segment does not wait for its arrival")
def _(view: GraphView) -> GraphView:
    shift, core = (pick(view, name, step=0, layer=0, rank=2) for name in ("kv_ring_2", "attention_prefill_2"))
    return cut(view, edges(view, shift, core))


@breaks("SP-5", "ring", "the output projection takes heads that have attended to a segment, beside those that are done")
def _(view: GraphView) -> GraphView:
    part, product = (one(view, name, step=0, layer=0, rank=2) for name in ("attention_prefill_0", "o_proj"))
    return drawn(view, [(part, product, "data")])


@breaks("SP-5", "ring", "a part of a ring goes on from two parts before it")
def _(view: GraphView) -> GraphView:
    first, third = (one(view, f"attention_prefill_{at}", step=0, layer=0, rank=2) for at in (0, 2))
    return drawn(view, [(first, third, "data")])


@breaks("SP-5", "ring", "a part of a ring attends to the next segment, too")
def _(view: GraphView) -> GraphView:
    shift, core = (one(view, name, step=0, layer=0, rank=2) for name in ("kv_ring_3", "attention_prefill_1"))
    return drawn(view, [(shift, core, "kv")])


@breaks("SP-5", "heads", "attention with some heads takes the queries of its own tokens")
def _(view: GraphView) -> GraphView:
    rope, core = (one(view, name, step=0, layer=0, rank=0) for name in ("rope", "attention_prefill"))
    return drawn(view, [(rope, core, "data")])


@breaks("SP-5", "gather", "SP ranks synchronise at the FFN")
def _(view: GraphView) -> GraphView:
    return between(view, "ffn_norm", "ffn_up", "all_gather", "sp", [0, 2, 4], step=0, layer=0)


@breaks("SP-6", "gather", "tokens are resharded between the two linears")
def _(view: GraphView) -> GraphView:
    return between(view, "ffn_act", "ffn_down", "all_to_all", "sp", [0, 2, 4], step=0, layer=0)


@breaks("SP-6", "gather", "a rank has other tokens in the second linear")
def _(view: GraphView) -> GraphView:
    view = valued(view, pick(view, "ffn_down", step=0, layer=0, rank=0), "amount", lambda v: v + 1)
    return valued(view, pick(view, "ffn_down", step=0, layer=0, rank=2), "amount", lambda v: v - 1)


@breaks("SP-6", "gather", "a token is sampled on a rank that does not have it")
def _(view: GraphView) -> GraphView:
    logits = 1000 * 2  # bytes of one token's
    for first, more in ((0, 1), (4, -1)):
        heads = [one(view, "lm_head", step=0, rank=rank) for rank in (first, first + 1)]
        view = valued(view, heads, "amount", lambda v, more=more: v + more)  # type: ignore[misc]
        gather = pick(view, "lm_head_all_gather", step=0, rank=first)
        view = valued(view, gather, "amount", lambda v, more=more: v + more * logits)  # type: ignore[misc]
    return view


@breaks("SP-8", "gather", "a segment is never moved to where decode reads it")
def _(view: GraphView) -> GraphView:
    return removed(view, [one(view, "kv_move", step=0, rank=0)])


@breaks("SP-8", "ring", "an inner stage does not move its segments")
def _(view: GraphView) -> GraphView:
    return removed(view, [one(view, "kv_move", step=0, stage=0, rank=0)])


@breaks("SP-8", "gather", "one rank's segment does not move")
def _(view: GraphView) -> GraphView:
    return left(view, one(view, "kv_move", step=1, rank=0), 2, edges_too=True)


@breaks("SP-8", "ring", "the move is free of cost")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "kv_move", step=0, stage=1, rank=9), "amount", lambda _: 0.0)


@breaks("SP-8", "gather", "one rank's segment moves before its last layer is written")
def _(view: GraphView) -> GraphView:
    move = pick(view, "kv_move", step=1, rank=2)
    *_, early, late = pick(view, "ffn_add", step=1, rank=2)
    return drawn(cut(view, edges(view, [late], move)), [(early, move[0], "kv")])


@breaks("TP-8", "gather", "the move is said to be of one layer")
def _(view: GraphView) -> GraphView:
    moves = pick(view, "kv_move", step=0)
    return replace(view, layer=np.where(np.isin(np.arange(len(view)), moves), 0, view.layer))


@breaks("SP-8", "ring", "K/V moves to a rank that idles in decode")
def _(view: GraphView) -> GraphView:
    (first, *_), *_ = (step.chunks for step in story(CASES["ring"][1]))
    steps = (StepContents(chunks=(replace(first, owner=1),)),)
    return view_of("ring", in_full=len(view.layer_names) == len(CASES["ring"][0].layers), steps=steps)


@breaks("SP-8", "gather", "two sequences decode where the other one's K/V is")
def _(view: GraphView) -> GraphView:
    first, second = view.steps[2].decodes or ()
    return stepped(view, 2, decodes=(replace(first, owner=second.owner), replace(second, owner=first.owner)))


# --- PP -------------------------------------------------------------------------------------------------------------


@breaks("PP-2", "dense", "a stage starts before its input arrives")
def _(view: GraphView) -> GraphView:
    recv = pick(view, "recv", step=0, rank=2)
    return cut(view, edges(view, recv, pick(view, "attention_norm", step=0, rank=2)))


@breaks("PP-2", "dense", "the payload is not tokens × hidden × bytes")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "send", step=0, rank=1), "amount", lambda v: v / 2)


@breaks("PP-4", "dense", "a sequence is in two micro-batches")
def _(view: GraphView) -> GraphView:
    (token,) = view.steps[4].decodes or ()
    return stepped(view, 4, decodes=(replace(token, request=0),))


@breaks("PP-4", "dense", "an edge goes from one micro-batch to another")
def _(view: GraphView) -> GraphView:
    return drawn(view, [(one(view, "sample", step=3, rank=2), one(view, "schedule", step=4, rank=0), "data")])


@breaks("PP-5", "dense", "two sends are crossed")
def _(view: GraphView) -> GraphView:
    return shifted(view, *(one(view, "send", step=step, rank=1) for step in (3, 4)), 1)


@breaks("PP-5", "dense", "a send has no receive")
def _(view: GraphView) -> GraphView:
    pair = (pick(view, name, step=0, rank=rank) for name, rank in (("send", 1), ("recv", 3)))
    return cut(view, edges(view, *pair, "sync"))


@breaks("PP-6", "dense", "two layers are swapped")
def _(view: GraphView) -> GraphView:
    return replace(view, layer=np.where(view.layer == 0, 1, np.where(view.layer == 1, 0, view.layer)))


def misread(view: GraphView, source: str, target: str, rank: int) -> GraphView:
    """Let an operator read from the layer before the one that it should read from."""
    ends = pick(view, target, step=2, rank=rank)
    edge = np.flatnonzero(edges(view, pick(view, source, step=2, rank=rank), ends))[-1]
    layer = int(view.layer[view.source[edge]])
    column = view.source.copy()
    column[edge] = one(view, source, step=2, rank=rank, layer=layer - 1)
    return replace(view, source=column)


@breaks("PP-6", "dense", "the head takes the output of a layer that is not the last")
def _(view: GraphView) -> GraphView:
    return misread(view, "ffn_add", "final_norm", 2)


@breaks("PP-6", "dense", "a later layer takes the embedding as well")
def _(view: GraphView) -> GraphView:
    start, norm = (
        one(view, "embedding_all_reduce", step=2, rank=0),
        one(view, "attention_norm", step=2, layer=1, rank=0),
    )
    return drawn(view, [(start, norm, "data")])


@breaks("TP-8", "dense", "a product takes what another layer made")
def _(view: GraphView) -> GraphView:
    return misread(view, "ffn_act", "ffn_down", 0)


@breaks("TP-8", "dense", "the cache of a layer takes the keys of another")
def _(view: GraphView) -> GraphView:
    return misread(view, "rope", "kv_write", 0)


@breaks("SP-6", "gather", "half of the tokens do not attend")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "attention_prefill", step=0, rank=2), "amount", lambda v: v / 2)


@breaks("TP-9", "dense", "a rank samples a sequence twice")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "sample", step=2, rank=2), "amount", lambda v: v * 2)


@breaks("PP-2", "dense", "a stage waits for its receive and takes nothing from it")
def _(view: GraphView) -> GraphView:
    entering = edges(view, pick(view, "recv", step=0), pick(view, "attention_add", step=0), "data")
    return replace(view, kind=np.where(entering, EDGE_KINDS.index("order"), view.kind))


# --- EP -------------------------------------------------------------------------------------------------------------


@breaks("EP-2", "spread", "a token is lost")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "expert_up", step=0, layer=0, rank=1), "amount", lambda v: v - 1)


@breaks("EP-2", "experts", "a token is combined twice")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "combine", step=0, layer=0, rank=1), "amount", lambda v: v + 2 * 64 * 2)


@breaks("EP-2", "shared", "tokens are dispatched to half of the ranks")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "dispatch", step=2, layer=0), "amount", lambda v: v / 2)


@breaks("EP-2", "spread", "a token is sent to the wrong rank")
def _(view: GraphView) -> GraphView:
    for rank, more in ((1, 1), (2, -1)):
        nodes = [one(view, name, step=0, layer=0, rank=rank) for name in ("expert_up", "expert_down")]
        view = valued(view, nodes, "amount", lambda v, more=more: v + more)  # type: ignore[misc]
    return view


@breaks("EP-2", "spread", "every token is sent to every rank")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "dispatch", step=2, layer=0), op="all_gather")


@breaks("EP-2", "gathered", "tokens that all ranks should get are sent to their experts")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "dispatch", step=2, layer=0), op="all_to_all")


@breaks("EP-2", "gathered", "results are gathered, and not summed")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "combine", step=2, layer=0), op="all_gather")


@breaks("EP-2", "gathered", "all ranks get half of the tokens")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "dispatch", step=2, layer=0), "amount", lambda v: v / 2)


@breaks("EP-2", "once", "a rank is sent a token as often as it has experts of it")
def _(view: GraphView) -> GraphView:
    plain = view_of("spread", in_full=len(view.layer_names) == 5)
    copies = dict(zip(pick(view, "dispatch"), plain.amount[pick(plain, "dispatch")].tolist(), strict=True))
    bytes_of = (1 + 4 / 128) / 2  # of a value in fp8, over one in bf16
    for node, amount in copies.items():
        view = valued(view, [node], "amount", lambda _, amount=amount: amount * bytes_of)  # type: ignore[misc]
    return view


@breaks("EP-2", "once", "tokens are dispatched in the format of activations")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "dispatch", layer=0), "amount", lambda v: v * 2 / (1 + 4 / 128))


@breaks("EP-2", "once", "results come back in fp8")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "combine", step=2), "amount", lambda v: v * (1 + 4 / 128) / 2)


@breaks("EP-2", "straight", "experts of one rank share a message")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "dispatch", step=0, layer=1), "amount", lambda v: v * 0.9)


@breaks("EP-2", "straight", "messages leave out their scales")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "dispatch", step=2), "amount", lambda v: v * (64 + 16) / (64 * (1 + 4 / 128) + 16))


@breaks("EP-2", "kept", "a rank takes tokens of experts that it does not have")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "expert_up", step=0, layer=1, rank=2), "amount", lambda v: 2 * v)


@breaks("EP-2", "kept", "tokens that stay are permuted for all experts")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "dispatch", step=2, layer=0), "amount", lambda v: 2 * v)


@breaks("TP-2", "kept", "nothing adds up what the ranks' own experts made")
def _(view: GraphView) -> GraphView:
    return removed(view, [one(view, name, step=2, layer=1) for name in ("aggregate_all_reduce",)])


@breaks("EP-4", "spread", "an expert runs before the dispatch")
def _(view: GraphView) -> GraphView:
    norm, dispatch, up = (pick(view, n, step=0, layer=0, rank=1) for n in ("moe_norm", "dispatch", "expert_up"))
    return drawn(cut(view, edges(view, dispatch, up)), [(norm[0], up[0], "data")])


@breaks("EP-4", "experts", "the combine is in the next step")
def _(view: GraphView) -> GraphView:
    down, combine = (one(view, n, step=s, layer=0, rank=1) for n, s in (("expert_down", 2), ("combine", 3)))
    return drawn(view, [(down, combine, "data")])


@breaks("EP-5", "experts", "experts are fed from the step before")
def _(view: GraphView) -> GraphView:
    add, norm = (pick(view, name, step=3, layer=0, rank=1) for name in ("attention_add", "moe_norm"))
    return drawn(
        cut(view, edges(view, add, norm)), [(one(view, "attention_add", step=2, layer=0, rank=1), norm[0], "data")]
    )


@breaks("EP-5", "spread", "routing goes round attention")
def _(view: GraphView) -> GraphView:
    add, norm = (pick(view, name, step=0, layer=0, rank=1) for name in ("attention_add", "moe_norm"))
    return cut(view, edges(view, add, norm))


@breaks("EP-6", "spread", "two ranks have different maps of experts")
def _(view: GraphView) -> GraphView:
    nodes = [one(view, name, step=0, layer=0, rank=1) for name in ("expert_up", "expert_down")]
    return changed(view, nodes, experts=3)


@breaks("EP-6", "shared", "TP inside an expert joins ranks of two experts")
def _(view: GraphView) -> GraphView:
    first, second = (one(view, "expert_down_all_reduce", step=0, layer=0, rank=rank) for rank in (0, 2))
    rank = view.member_rank.copy()
    a = np.flatnonzero((view.member_node == first) & (rank == 1))[0]
    b = np.flatnonzero((view.member_node == second) & (rank == 2))[0]
    rank[[a, b]] = rank[[b, a]]
    downs = [one(view, "expert_down", step=0, layer=0, rank=rank) for rank in (1, 2)]
    view = cut(view, edges(view, downs, [first, second]))
    view = drawn(view, [(downs[0], second, "data"), (downs[1], first, "data")])
    return replace(view, member_rank=rank)


@breaks("EP-7", "spread", "expert ranks meet inside attention")
def _(view: GraphView) -> GraphView:
    return between(view, "rope", "attention_prefill", "all_to_all", "stage", [0, 1, 2, 3], step=0, layer=0)


@breaks("EP-8", "spread", "each rank dispatches alone")
def _(view: GraphView) -> GraphView:
    return parted(view, one(view, "dispatch", step=2, layer=1), [[0], [1], [2], [3]])


@breaks("EP-8", "spread", "two halves of the group dispatch apart")
def _(view: GraphView) -> GraphView:
    return parted(view, one(view, "dispatch", step=0, layer=0), [[0, 1], [2, 3]])


@breaks("EP-8", "spread", "the combine is taken by other groups than the dispatch")
def _(view: GraphView) -> GraphView:
    return parted(view, one(view, "combine", step=2, layer=0), [[0, 2], [1, 3]])


# --- DP, RUN ----------------------------------------------------------------------------------------------------------


@breaks("DP-3", "dense", "a K/V edge goes from one replica to another")
def _(view: GraphView) -> GraphView:
    write, read = (one(view, n, step=s, layer=0, rank=r) for n, s, r in (("kv_write", 3, 0), ("kv_read", 5, 4)))
    return drawn(view, [(write, read, "kv")])


@breaks("RUN-1", "dense", "there is a cycle")
def _(view: GraphView) -> GraphView:
    return drawn(view, [(one(view, "sample", step=0, rank=2), one(view, "schedule", step=0, rank=0), "order")])


@breaks("RUN-1", "dense", "a norm is on the stream of collectives")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "ffn_norm", step=0, layer=0, rank=0), stream="comm")


@breaks("RUN-1", "dense", "the rotation of one rank is said to join SP ranks")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "rope", step=3, layer=0, rank=1), axis="sp")


@breaks("TP-8", "dense", "an activation is said to be part of attention")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "ffn_act", step=0, layer=1), module="attention")


@breaks("SP-2", "gather", "the own segment delays the gather, and is no part of it")
def _(view: GraphView) -> GraphView:
    made = pick(view, "rope", step=0, layer=1, rank=2)
    return recast(view, edges(view, made, pick(view, "kv_all_gather", step=0)), "order")


@breaks("SP-2", "gather", "what a rank has cached delays the gather, and is no part of it")
def _(view: GraphView) -> GraphView:
    read = pick(view, "kv_read", step=1, layer=1)
    return recast(view, edges(view, read, pick(view, "kv_all_gather", step=1)), "order")


@breaks("SP-5", "gather", "the gather delays attention, and brings it no segment")
def _(view: GraphView) -> GraphView:
    gather, core = (pick(view, name, step=0, layer=0) for name in ("kv_all_gather", "attention_prefill"))
    return recast(view, edges(view, gather, core), "order")


@breaks("SP-5", "ring", "a shift delays its part of attention, and brings it no segment")
def _(view: GraphView) -> GraphView:
    shift, core = (pick(view, name, step=0, layer=0) for name in ("kv_ring_2", "attention_prefill_2"))
    return recast(view, edges(view, shift, core), "order")


@breaks("SP-5", "latent", "the gather delays the products of latents, and brings them none")
def _(view: GraphView) -> GraphView:
    gather, product = (pick(view, name, step=0, layer=0) for name in ("kv_all_gather", "kv_b_proj"))
    return recast(view, edges(view, gather, product), "order")


@breaks("SP-8", "ring", "the last layer delays the move, and gives it no entries")
def _(view: GraphView) -> GraphView:
    last = pick(view, "ffn_add", step=1, rank=3)
    return recast(view, edges(view, last, pick(view, "kv_move", step=1)), "order")


@breaks("RUN-1", "dense", "there is an orphan")
def _(view: GraphView) -> GraphView:
    return added(view, 0, Node(name="stray", op="memory", module="ffn"), [0])[0]


@breaks("RUN-1", "wide", "all ranks are on one device")
def _(view: GraphView) -> GraphView:
    return replace(view, devices=("g0",) * 4)


@breaks("RUN-1", "wide", "two ranks are on one device")
def _(view: GraphView) -> GraphView:
    return replace(view, devices=("g0", "g1", "g2", "g1"))


@breaks("RUN-1", "wide", "half of the ranks have no device")
def _(view: GraphView) -> GraphView:
    return replace(view, devices=("g0", "g1"))


@breaks("RUN-1", "wide", "a rank has no device")
def _(view: GraphView) -> GraphView:
    return replace(view, devices=("g0", None, "g2", "g3"))


@breaks("RUN-1", "wide", "there are devices for ranks that the plan does not have")
def _(view: GraphView) -> GraphView:
    return replace(view, devices=("g0", "g1", "g2", "g3", "g4"))


@breaks("RUN-1", "dense", "an operator is bound to no device")
def _(view: GraphView) -> GraphView:
    view, stray = added(view, 0, Node(name="stray", op="memory", module="ffn"), [])
    return drawn(view, [(0, stray, "order")])


@breaks("RUN-1", "dense", "an operator is bound to a rank that the plan does not have")
def _(view: GraphView) -> GraphView:
    view, stray = added(view, 0, Node(name="stray", op="memory", module="ffn"), [8])
    return drawn(view, [(0, stray, "order")])


# --- what a send takes, where exposure comes from, amounts, kinds -----------------------------------------------------


def retaken(view: GraphView, source: str, target: str, other: str, **where: int) -> GraphView:
    """Let an operator take what ``other`` of its rank and layer makes, in place of ``source``."""
    ends = pick(view, target, **where)
    edge = int(np.flatnonzero(edges(view, pick(view, source, **where), ends))[0])
    layer, rank = int(view.layer[view.source[edge]]), int(view.rank[ends[0]])
    found = one(view, other, step=int(view.step[view.source[edge]]), layer=layer, rank=rank)
    return drawn(cut(view, [edge]), [(found, int(view.target[edge]), EDGE_KINDS[int(view.kind[edge])])])


@breaks("PP-2", "dense", "a stage sends what precedes its last residual addition")
def _(view: GraphView) -> GraphView:
    return retaken(view, "ffn_add", "send", "ffn_down_all_reduce", step=0, rank=1)


@breaks("PP-2", "dense", "a stage sends the value before its last FFN")
def _(view: GraphView) -> GraphView:
    return retaken(view, "ffn_add", "send", "attention_add", step=2, rank=0)


@breaks("PP-2", "cut", "a stage cut before the FFN sends attention without the residual stream")
def _(view: GraphView) -> GraphView:
    return retaken(view, "attention_add", "send", "o_proj_all_reduce", step=0, rank=1)


@breaks("PP-2", "dense", "a stage sends what its FFN makes beside its last value")
def _(view: GraphView) -> GraphView:
    send = one(view, "send", step=0, rank=0)
    return drawn(view, [(one(view, "ffn_down_all_reduce", step=0, layer=1, rank=0), send, "data")])


@breaks("PP-2", "cut", "a product takes what arrived past the norm")
def _(view: GraphView) -> GraphView:
    recv = one(view, "recv", step=0, rank=2)
    return drawn(view, [(recv, one(view, "ffn_up", step=0, rank=2), "data")])


@breaks("SP-2", "gather", "a gather takes the keys of another layer")
def _(view: GraphView) -> GraphView:
    return misread_at(view, "rope", "kv_all_gather", step=0, layer=1, rank=2)


@breaks("TP-8", "gather", "attention takes its queries from the gather of keys")
def _(view: GraphView) -> GraphView:
    rope, gather, core = (
        one(view, name, step=0, layer=0, rank=2) for name in ("rope", "kv_all_gather", "attention_prefill")
    )
    return drawn(cut(view, edges(view, [rope], [core])), [(gather, core, "data")])


@breaks("TP-8", "latent", "products of latents take their own from the gather")
def _(view: GraphView) -> GraphView:
    made, gather, product = (
        one(view, name, step=0, layer=0, rank=2) for name in ("kv_a_norm_rope", "kv_all_gather", "kv_b_proj")
    )
    return drawn(cut(view, edges(view, [made], [product])), [(gather, product, "kv")])


@breaks("SP-2", "ring", "a ring passes on keys of another layer")
def _(view: GraphView) -> GraphView:
    return misread_at(view, "rope", "kv_ring_1", step=0, layer=1, rank=2)


@breaks("SP-2", "ring", "a later shift takes the cache of its own rank")
def _(view: GraphView) -> GraphView:
    read, shift = (one(view, name, step=0, layer=0, rank=2) for name in ("kv_read", "kv_ring_2"))
    return drawn(view, [(read, shift, "kv")])


@breaks("SP-2", "gather", "a gather takes what the norm makes")
def _(view: GraphView) -> GraphView:
    norm, gather = (one(view, name, step=0, layer=0, rank=2) for name in ("attention_norm", "kv_all_gather"))
    return drawn(view, [(norm, gather, "data")])


def misread_at(view: GraphView, source: str, target: str, **where: int) -> GraphView:
    """Let an operator take, of the same rank, what ``source`` made in the layer before."""
    ends = pick(view, target, **where)
    edge = int(np.flatnonzero(edges(view, pick(view, source, **where), ends))[0])
    column = view.source.copy()
    column[edge] = one(view, source, **{**where, "layer": where["layer"] - 1})
    return replace(view, source=column)


@breaks("TP-8", "gather", "a rank's output goes into the sum of another SP rank")
def _(view: GraphView) -> GraphView:
    first, other = (
        one(view, name, step=0, layer=0, rank=rank) for name, rank in (("o_proj", 0), ("o_proj_all_reduce", 2))
    )
    return drawn(view, [(first, other, "data")])


def norms_less(rule: str, case: str, name: str, step: int) -> None:
    """Let an operator leave out a half of what its rank has."""

    @breaks(rule, case, f"{name} handles half of the tokens of {'a mixed' if step == 1 else 'its'} step")
    def _(view: GraphView) -> GraphView:
        return valued(view, pick(view, name, step=step, rank=1), "amount", lambda v: v / 2)


for _name in ("attention_norm", "rope", "attention_add", "ffn_norm", "ffn_act", "ffn_add", "final_norm", "schedule"):
    norms_less("TP-9", "wide", _name, 1)
for _name in ("moe_norm", "aggregate", "moe_add"):
    norms_less("TP-9", "experts", _name, 1)
for _name in ("kv_b_proj", "kv_a_norm_rope"):
    norms_less("SP-6", "latent", _name, 1)
for _name in ("ffn_norm", "rope"):
    norms_less("SP-6", "gather", _name, 0)
norms_less("TP-9", "gather", "ffn_up", 3)


@breaks("EP-2", "experts", "activations of experts leave out a half of their rows")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "expert_act", step=1, layer=0, rank=1), "amount", lambda v: v / 2)


for _gather in ("ffn_act_all_gather", "attention_decode_all_gather"):

    @breaks("TP-2", "columns", f"half of what a column split needs is put together: {_gather}")
    def _(view: GraphView, name: str = _gather) -> GraphView:
        return valued(view, [one(view, name, step=2, layer=0)], "amount", lambda v: v / 2)


@breaks("PH-2", "wide", "attention takes five per cent more sequences than decode")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "attention_decode", step=3, rank=1), "amount", lambda v: v * 1.05)


@breaks("PH-5", "wide", "attention takes a part of a key more than there are")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "attention_decode", step=3, layer=0, rank=1), "attended", lambda v: v + 0.25)


@breaks("PH-5", "ring", "attention of a prompt takes a part of a pair more than there are")
def _(view: GraphView) -> GraphView:
    return valued(view, pick(view, "attention_prefill_1", step=0, layer=0, rank=0), "attended", lambda v: v + 0.25)


@breaks("EP-2", "experts", "experts are said to be chosen three at a time")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "expert_up", step=2, layer=0), top_k=3)


@breaks("EP-6", "spread", "a layer is said to have other experts than the model")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "expert_down", step=2, layer=0), num_experts=16)


def said(rule: str, case: str, what: str, name: str, /, **fields: object) -> None:
    """Let an operator say something else of itself."""

    @breaks(rule, case, what)
    def _(view: GraphView) -> GraphView:
        return changed(view, pick(view, name, step=2, layer=0, rank=1), **fields)


said("TP-8", "wide", "a write of the cache is an all-reduce", "kv_write", op="all_reduce")
said("TP-8", "wide", "an activation is an all-reduce", "ffn_act", op="all_reduce")
said("TP-8", "wide", "an activation is half as wide as the model's", "ffn_act", width=48)
said("TP-8", "wide", "a norm is said to be done by one rank, where all do the same", "ffn_norm", copies=1)
said("TP-8", "wide", "a norm has heads", "ffn_norm", heads=2)
said("TP-8", "wide", "attention reads keys and values as one", "attention_decode", shared_kv=True)
said("TP-8", "wide", "a sum behind the FFN is said to be of attention", "ffn_down_all_reduce", module="attention")
said("TP-5", "wide", "a sum behind attention is said to join ranks of experts", "o_proj_all_reduce", axis="expert_tp")
said("TP-8", "experts", "tokens of experts on one rank are exchanged", "dispatch", op="all_to_all")
said("TP-8", "wide", "an output projection is said to be split by columns", "o_proj", rule="columns")
said("TP-8", "wide", "a rotation is said to be done by every rank for all heads", "rope", rule="replicate")
said("SP-3", "ring", "a norm of ranks that idle is said to be on all of them", "ffn_norm", where="all")
said("SP-3", "gather", "a norm of every rank is said to be on the first one", "ffn_norm", where="s0")


@breaks("PH-3", "wide", "a step takes what the step before it made in its layers")
def _(view: GraphView) -> GraphView:
    made, norm = (one(view, name, step=step, layer=0, rank=1) for name, step in (("ffn_add", 2), ("attention_norm", 3)))
    return drawn(view, [(made, norm, "data")])


def recast_as(case: str, what: str, source: str, target: str, kind: str) -> None:
    """Let an edge say that it brings entries of the cache where it brings values, or the other way round."""

    @breaks("TP-8", case, what)
    def _(view: GraphView) -> GraphView:
        return recast(view, edges(view, pick(view, source, step=0), pick(view, target, step=0)), kind)


recast_as("ring", "keys that were just made are passed on as if they were cached", "rope", "kv_ring_1", "kv")
recast_as("heads", "queries are exchanged as if they were cached", "rope", "qkv_all_to_all", "kv")
recast_as("heads", "what attention makes is taken as if it were cached", "out_all_to_all", "o_proj", "kv")
recast_as("gather", "the move takes values of the last layer in place of entries", "ffn_add", "kv_move", "data")
