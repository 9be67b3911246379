"""Whether operators and edges are of the kind that their names say: a product is no copy, and data is no K/V."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from clustersim.graph.blueprint import COLLECTIVE_OPS, EDGE_KINDS, TRANSFER_OPS
from clustersim.legality.finding import Finding, merged
from clustersim.legality.graph_rules.finding import judged, operator, place
from clustersim.legality.graph_rules.traits import shaped
from clustersim.legality.graph_rules.units import in_their_units
from clustersim.legality.graph_rules.views.dataflow import LOGICAL
from clustersim.legality.graph_rules.views.graph import DATA, KV, ORDER, SYNC, BoolArray, GraphView
from clustersim.legality.reference import (
    KINDS_OF_OPERATOR,
    attention_inputs,
    ffn_inputs,
    head_inputs,
    inputs_of,
    shapes_of,
)
from clustersim.model.architecture import ModelSpec, Moe


def of_their_kind(view: GraphView, model: ModelSpec) -> Finding:
    """Compare the kinds of operators and of the edges inside steps with what the model's operators are."""
    own = [_operators(view, model), _modules(view, model), _edges(view)]
    if (plan := view.plan) is not None:
        own += [shaped(view, plan, model, kinds_of(model)), in_their_units(view, plan, model, modules_of(model))]
    return merged(*own)


def _operators(view: GraphView, model: ModelSpec) -> Finding:
    wanted = kinds_of(model)
    spread = view.plan is None or view.plan.ep.sends
    found = [(wanted.get(_plain(symbol.name)), symbol.op) for symbol in view.symbols]
    right = [
        kind is None or op == kind or (symbol.name in LOGICAL and op in COLLECTIVE_OPS and spread)
        for symbol, (kind, op) in zip(view.symbols, found, strict=True)
    ]
    wrong = np.flatnonzero(~np.array(right, bool)[view.symbol])

    def message(node: int) -> str:
        kind, op = found[int(view.symbol[node])]
        return f"{operator(view, node)} is said to be of kind {op}, and the model's is of kind {kind}"

    fix = "give each operator the kind that the single-device graph has"
    return judged(view, 0, wrong, message, fix, np.arange(len(view)))


def kinds_of(model: ModelSpec) -> dict[str, str]:
    """Return name → kind of every operator of a model."""
    layers = dict.fromkeys(model.layers)
    names = [name for layer in layers for name in inputs_of(layer, prefills=True, decodes=True)]
    products = {name for layer in (None, *layers) for name in shapes_of(layer, model)}
    plain = {name: "gemm" if name in products else "memory" for name in (*head_inputs(model), *names)}
    return {**plain, **KINDS_OF_OPERATOR}


OUTSIDE: Final[Mapping[str, str]] = {
    "schedule": "host", "embedding": "embedding", "final_norm": "lm_head", "lm_head": "lm_head",
    "logits_cap": "lm_head", "sample": "host",
    "boundary": "boundary", "send": "pipeline", "recv": "pipeline", "kv_read": "attention", "kv_move": "attention",
}  # fmt: skip
"""Module of each operator that is in no layer, and of what every attention has."""

MODULES: Final = frozenset((*OUTSIDE.values(), "ffn", "moe"))
"""Other programs have modules of their own names."""


def modules_of(model: ModelSpec) -> dict[str, str]:
    """Return name → module of every operator."""
    found: dict[str, str] = {**OUTSIDE}
    for layer in dict.fromkeys(model.layers):
        found |= dict.fromkeys(attention_inputs(layer, prefills=True, decodes=True), "attention")
        found |= dict.fromkeys(ffn_inputs(layer), "moe" if isinstance(layer.ffn, Moe) else "ffn")
    return found


def _apart(view: GraphView) -> BoolArray:
    """Return which collectives say a module that none of the operators has that they join."""
    joins = view.mask(lambda node: node.op in COLLECTIVE_OPS and node.name not in (*LOGICAL, "kv_move"))
    words = {word: at for at, word in enumerate(dict.fromkeys(symbol.module for symbol in view.symbols))}
    module = np.array([words[symbol.module] for symbol in view.symbols], np.int64)[view.symbol]
    told = np.array([symbol.module in MODULES for symbol in view.symbols], bool)[view.symbol]
    near, some = np.zeros(len(view), bool), np.zeros(len(view), bool)
    for end, other in ((view.source, view.target), (view.target, view.source)):
        inside = view.within_step & told[other]
        near[end[inside & (module[end] == module[other])]] = True
        some[end[inside]] = True
    found: BoolArray = joins & told & some & ~near
    return found


def _modules(view: GraphView, model: ModelSpec) -> Finding:
    """An operator that says its module is in the one that the model has it in; dense layers may stand beside others."""
    wanted = modules_of(model)
    told = [(symbol.module, wanted.get(_plain(symbol.name))) for symbol in view.symbols]
    odd = [said != own and own is not None and said in MODULES for said, own in told]
    wrong = np.flatnonzero((np.array(odd, bool)[view.symbol] | _apart(view)) & view.says("module"))

    def message(node: int) -> str:
        said, own = told[int(view.symbol[node])]
        if own is None:
            return f"{operator(view, node)} is said to be of module {said}, and joins nothing of that"
        return f"{operator(view, node)} is said to be of module {said}, and the model's is of {own}"

    return judged(view, 0, wrong, message, "leave each operator in its module", np.arange(len(view)))


def crosses_as(
    view: GraphView, source: str, target: str, kind: str, fix: str, among: BoolArray | None = None
) -> Finding:
    """Say which edges from one step to a later one (from the nodes ``among``) are not of the kind of what they carry.

    An edge of kind ``order`` delays the next operator and carries no data; beside a data edge it has no effect.
    """
    between = ~view.within_step & view.named(source)[view.source] & view.named(target)[view.target]
    between &= True if among is None else among[view.source]
    right = view.kind == EDGE_KINDS.index(kind)
    ends = view.source * len(view) + view.target
    idle = (view.kind == ORDER) & np.isin(ends, ends[between & right])
    wrong = np.flatnonzero(between & ~right & ~idle)

    def message(edge: int) -> str:
        found = EDGE_KINDS[int(view.kind[edge])]
        return (
            f"the edge from {place(view, int(view.source[edge]))} is of kind {found}, and carries none of kind {kind}"
        )

    return judged(view, 0, wrong, message, fix, view.target)


def _plain(name: str) -> str:
    """Return the name of what a part of a ring is a part of."""
    head, _, part = name.rpartition("_")
    return head if head == "attention_prefill" and part.isdecimal() else name


def _edges(view: GraphView) -> Finding:
    """K/V edges leave the cache or join SP ranks, syncs join a send to its receive, boundaries end at a boundary."""
    source, target, kind = view.source, view.target, view.kind
    ends = view.mask(lambda node: node.op == "boundary")
    cache = view.named("kv_write", "kv_read")
    exposes = view.mask(lambda node: node.axis == "sp" and node.op in COLLECTIVE_OPS)
    transfer = view.mask(lambda node: node.op in TRANSFER_OPS)
    takes = view.named("attention_prefill", "attention_decode", "kv_b_proj", "kv_move") | exposes
    takes |= ~view.named(*kinds_of(view.model)) if view.model is not None else np.ones(len(view), bool)
    moves = exposes & view.named("kv_move")
    brings = exposes & view.mask(lambda node: node.op != "all_to_all") & ~moves
    entries = view.named("attention_prefill", "kv_b_proj") | brings
    phase, meets = ends[source] | ends[target], transfer[source] & transfer[target]
    carries = ~phase & ~meets
    odd = (
        (phase & np.isin(kind, (DATA, KV, SYNC)))
        | (meets & (kind != SYNC))
        | (carries & ~np.isin(kind, (DATA, KV)))
        | (carries & (kind == KV) & ~(cache[source] | exposes[source] | exposes[target]))
        | (carries & (kind == DATA) & (cache[source] | (brings[source] & entries[target])))
        | (carries & (kind == KV) & (cache | exposes)[source] & ~takes[target])
        | (carries & (kind == KV) & ~(cache | exposes)[source] & ~moves[target] & view.in_features)
        | (carries & (kind == DATA) & moves[target])
    )
    wrong = np.flatnonzero(odd & view.within_step & (kind != ORDER))
    return judged(
        view, 0, wrong, lambda edge: f"the edge from {place(view, int(source[edge]))} is not of the kind of what it "
        "carries", "draw data edges for what operators make, kv for entries of the cache, sync from a send to its "
        "receive, and boundary at the boundary", target,
    )  # fmt: skip
