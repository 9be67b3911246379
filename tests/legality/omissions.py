"""Legal graphs with an operator, a rank, a stage or an order taken away or doubled: what each of these breaks.

Unlike :func:`graph_cases_small.removed`, :func:`dropped` takes the edges of a node with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from graph_cases_small import PRECISION, changed, cut, drawn, edges, one, pick

from clustersim.graph.batch import Chunk
from clustersim.graph.steps import DecodeToken
from clustersim.legality.graph_rules.views.graph import DATA, KV, ORDER, SYNC, GraphView
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.simulation.graph_legality import StepContents, graph_view

Change = Callable[[GraphView], GraphView]
_PER_NODE = ("symbol", "step", "layer", "stage", "amount", "attended")
_PER_MEMBER = ("member_node", "member_rank", "member_position")


def one_step(spec: ModelSpec, plan: ParallelPlan, kind: str) -> GraphView:
    """Return the graph of a single step of a kind, as a file would hold it."""
    chunks = (Chunk(request=0, start=3, count=4 * plan.sp.degree + 1),) if kind != "decode" else ()
    decodes = (DecodeToken(request=5, position=7),) if kind != "prefill" else ()
    steps = (StepContents(chunks=chunks, decodes=decodes),)
    return graph_view(spec, plan, PRECISION, in_full=True, steps=steps)


def dropped(view: GraphView, nodes: Iterable[int]) -> GraphView:
    """Return the view without some nodes and their edges."""
    keep = np.ones(len(view), bool)
    keep[list(nodes)] = False
    number = np.cumsum(keep) - 1
    edge, member = keep[view.source] & keep[view.target], keep[view.member_node]
    return replace(
        view,
        **{name: getattr(view, name)[keep] for name in _PER_NODE},
        source=number[view.source[edge]], target=number[view.target[edge]], kind=view.kind[edge],
        member_node=number[view.member_node[member]], member_rank=view.member_rank[member],
        member_position=view.member_position[member],
    )  # fmt: skip


def doubled(view: GraphView, node: int) -> GraphView:
    """Return the view with a copy of a node that has all of its edges."""
    member, number = view.member_node == node, len(view)
    into, out = np.flatnonzero(view.target == node), np.flatnonzero(view.source == node)
    copies = (np.full(member.sum(), number), view.member_rank[member], view.member_position[member])
    return replace(
        view,
        **{name: np.append(getattr(view, name), getattr(view, name)[node]) for name in _PER_NODE},
        **{name: np.append(getattr(view, name), more) for name, more in zip(_PER_MEMBER, copies, strict=True)},
        source=np.concatenate((view.source, view.source[into], np.full(len(out), number))),
        target=np.concatenate((view.target, np.full(len(into), number), view.target[out])),
        kind=np.concatenate((view.kind, view.kind[into], view.kind[out])),
    )


def swapped(view: GraphView, first: Iterable[int], second: Iterable[int]) -> GraphView:
    """Return the view with pairs of nodes in each other's place in the programs of all their ranks."""
    position = view.member_position.copy()
    for a, b in zip(first, second, strict=True):
        at, other = view.member_node == a, view.member_node == b
        position[at], position[other] = view.member_position[other][0], view.member_position[at][0]
    return replace(view, member_position=position)


@dataclass(frozen=True)
class Omission:
    """A legal case, what is done to it, and the rules that this breaks."""

    case: str
    what: str
    rules: tuple[str, ...]
    change: Change

    def __str__(self) -> str:
        return f"{'+'.join(self.rules)} {self.case}: {self.what}"


OMISSIONS: list[Omission] = []


def _lacks(rules: str, case: str, name: str, **where: int) -> None:
    def change(view: GraphView) -> GraphView:
        return dropped(view, [one(view, name, **where)])

    OMISSIONS.append(Omission(case, f"{name} is missing on a rank", tuple(rules.split()), change))


def _repeats(rules: str, case: str, name: str, **where: int) -> None:
    def change(view: GraphView) -> GraphView:
        return doubled(view, one(view, name, **where))

    OMISSIONS.append(Omission(case, f"{name} is there twice", tuple(rules.split()), change))


def breaks(rules: str, case: str, what: str) -> Callable[[Change], Change]:
    """Put a change into the table; ``rules`` are separated by spaces."""

    def put(change: Change) -> Change:
        OMISSIONS.append(Omission(case, what, tuple(rules.split()), change))
        return change

    return put


# --- operators ------------------------------------------------------------------------------------------------------

for _name in ("attention_norm", "qkv_proj", "rope", "o_proj", "attention_add", "ffn_up", "ffn_act", "ffn_down"):
    _lacks("TP-8", "wide", _name, step=0, layer=1, rank=2)
for _name in ("schedule", "embedding", "final_norm", "lm_head", "sample"):
    _lacks("TP-8", "wide", _name, step=3, rank=2)
_lacks("TP-8", "wide", "attention_decode", step=2, layer=1, rank=2)
_lacks("TP-8", "latent", "q_absorb", step=2, layer=0, rank=1)
_lacks("TP-8", "latent", "kv_b_proj", step=0, layer=0, rank=1)
_lacks("TP-8", "dense", "ffn_up", step=2, layer=1, rank=1)
_lacks("TP-8", "ring", "attention_prefill_2", step=0, layer=0, rank=3)
_lacks("TP-8", "ring", "kv_read", step=2, layer=0, rank=0)
_lacks("TP-8", "gather", "qkv_proj", step=0, layer=0, rank=4)
_lacks("KV-4", "gather", "kv_write", step=2, layer=0, rank=4)
_lacks("EP-4", "experts", "gate", step=0, layer=0, rank=1)
_lacks("EP-2", "experts", "dispatch", step=0, layer=0, rank=1)
_lacks("EP-2", "experts", "combine", step=2, layer=0, rank=0)
_lacks("EP-4", "experts", "aggregate", step=2, layer=0, rank=0)
_lacks("EP-6", "spread", "expert_up", step=2, layer=0, rank=3)
_lacks("EP-6", "spread", "expert_act", step=0, layer=0, rank=3)
_lacks("EP-6", "shared", "expert_down", step=2, layer=0, rank=3)
_lacks("EP-2", "spread", "dispatch", step=2, layer=0)
_lacks("EP-2", "shared", "combine", step=0, layer=0)
_lacks("PP-2 PP-5", "dense", "recv", step=2, rank=2)
_lacks("PP-2 PP-5", "dense", "send", step=2, rank=1)
_lacks("PH-1", "wide", "boundary", step=1, rank=3)
_repeats("TP-8", "wide", "attention_decode", step=2, layer=1, rank=2)
_repeats("TP-8", "dense", "qkv_proj", step=2, layer=1, rank=1)
_repeats("TP-8", "latent", "q_b_proj", step=0, layer=1, rank=1)
_repeats("TP-8", "ring", "attention_prefill_1", step=0, layer=0, rank=3)
_repeats("TP-8", "gather", "sample", step=2, rank=3)
_repeats("TP-5", "dense", "o_proj_all_reduce", step=2, layer=1)
_repeats("TP-5", "wide", "lm_head_all_gather", step=2)
_repeats("TP-5", "spread", "aggregate_all_gather", step=2, layer=0)
_repeats("SP-8", "ring", "kv_move", step=0, stage=0, rank=0)
_repeats("EP-2", "spread", "dispatch", step=2, layer=0)
_repeats("EP-6", "spread", "expert_up", step=2, layer=0, rank=1)
_repeats("EP-4", "experts", "gate", step=2, layer=0, rank=1)
_repeats("PH-1", "wide", "boundary", step=1, rank=3)


@breaks("TP-8", "wide", "a rank runs nothing")
def _(view: GraphView) -> GraphView:
    return dropped(view, np.flatnonzero((view.size == 1) & (view.rank == 1) & (view.step == 0)).tolist())


@breaks("TP-8", "dense", "a stage runs nothing")
def _(view: GraphView) -> GraphView:
    return dropped(view, np.flatnonzero(view.stage == 1).tolist())


@breaks("TP-8", "wide", "an operator of another kind of step is there")
def _(view: GraphView) -> GraphView:
    node = one(view, "attention_decode", step=2, layer=0, rank=1)
    return replace(view, step=np.where(np.arange(len(view)) == node, 0, view.step))


# --- kinds ----------------------------------------------------------------------------------------------------------


@breaks("TP-8", "wide", "a product is said to move memory")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "ffn_up", step=0, layer=1, rank=2), op="memory")


@breaks("TP-8", "latent", "what an operator makes is said to be K/V")
def _(view: GraphView) -> GraphView:
    pair = (pick(view, name, step=0, layer=1, rank=1) for name in ("ffn_norm", "ffn_up"))
    return replace(view, kind=np.where(edges(view, *pair), KV, view.kind))


@breaks("TP-8", "ring", "what moved is said to go to the boundary as data")
def _(view: GraphView) -> GraphView:
    pair = (pick(view, name, step=0, stage=0, rank=1) for name in ("kv_move", "boundary"))
    return replace(view, kind=np.where(edges(view, *pair), DATA, view.kind))


@breaks("TP-2", "wide", "a sum is swapped for an exchange")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "o_proj_all_reduce", step=0, layer=1), op="all_to_all")


@breaks("SP-8", "gather", "entries are added up where they should move")
def _(view: GraphView) -> GraphView:
    return changed(view, pick(view, "kv_move", step=0, rank=0), op="all_reduce")


@breaks("EP-5", "spread", "routing waits for attention and takes nothing from it")
def _(view: GraphView) -> GraphView:
    pair = (pick(view, name, step=0, layer=0, rank=1) for name in ("attention_add", "moe_norm"))
    return replace(view, kind=np.where(edges(view, *pair), ORDER, view.kind))


# --- ways past sends ------------------------------------------------------------------------------------------------


@breaks("PP-2", "dense", "the output of a stage is taken beside its send")
def _(view: GraphView) -> GraphView:
    add, norm = one(view, "ffn_add", step=2, layer=1, rank=0), one(view, "attention_norm", step=2, layer=2, rank=2)
    return drawn(view, [(add, norm, "data")])


@breaks("PP-2", "ring", "K/V goes from one stage to another")
def _(view: GraphView) -> GraphView:
    write, core = one(view, "kv_write", step=2, layer=0, rank=0), one(view, "attention_decode", step=2, layer=2, rank=8)
    return drawn(view, [(write, core, "kv")])


@breaks("PP-5", "ring", "a rank gets the tokens of another SP rank")
def _(view: GraphView) -> GraphView:
    one_recv, other = (one(view, "recv", step=0, rank=rank) for rank in (8, 10))
    target = np.where(view.target == one_recv, other, np.where(view.target == other, one_recv, view.target))
    return replace(view, target=np.where(view.kind == SYNC, target, view.target))


# --- phases ---------------------------------------------------------------------------------------------------------


@breaks("PH-1", "ring", "the boundary of the last stage does not wait for its sample")
def _(view: GraphView) -> GraphView:
    ends = pick(view, "boundary", step=0, stage=1)
    return cut(view, edges(view, pick(view, "sample", step=0), ends))


# --- programs -------------------------------------------------------------------------------------------------------


@breaks("RUN-1", "wide", "the activation is listed before the product that it takes")
def _(view: GraphView) -> GraphView:
    where = {"step": 0, "layer": 1, "rank": 2}
    return swapped(view, [one(view, "ffn_up", **where)], [one(view, "ffn_act", **where)])


@breaks("RUN-1", "latent", "the output projection is listed before the queries")
def _(view: GraphView) -> GraphView:
    where = {"step": 2, "layer": 1, "rank": 1}
    return swapped(view, [one(view, "q_b_proj", **where)], [one(view, "o_proj", **where)])


@breaks("RUN-1", "ring", "segments are passed on in an order in which they do not arrive")
def _(view: GraphView) -> GraphView:
    return swapped(view, pick(view, "kv_ring_1", step=0, layer=0), pick(view, "kv_ring_2", step=0, layer=0))


@breaks("RUN-1", "spread", "results are combined before tokens are dispatched")
def _(view: GraphView) -> GraphView:
    return swapped(view, pick(view, "dispatch", step=2, layer=0), pick(view, "combine", step=2, layer=0))


@breaks("TP-5", "wide", "two sums are swapped in the programs of all ranks")
def _(view: GraphView) -> GraphView:
    sums = (pick(view, f"{name}_all_reduce", step=2, layer=1) for name in ("o_proj", "ffn_down"))
    return swapped(view, *sums)


@breaks("PP-5", "dense", "a stage receives two steps in the order in which they are not sent")
def _(view: GraphView) -> GraphView:
    return swapped(view, pick(view, "recv", step=2), pick(view, "recv", step=4))
