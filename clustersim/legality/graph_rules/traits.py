"""Parts of TP-8, TP-9 and SP-6: operators beside the products are as wide as the model's, and handle every token."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS, Node
from clustersim.legality.finding import NOTHING, Finding
from clustersim.legality.graph_rules.finding import judged
from clustersim.legality.graph_rules.views.dataflow import LOGICAL
from clustersim.legality.graph_rules.views.graph import DATA, BoolArray, GraphView, base_name
from clustersim.legality.graph_rules.views.layouts import CAPS, SPLIT, UNKNOWN, filled, layouts
from clustersim.legality.reference import shapes_of
from clustersim.legality.traits import (
    ACTIVATIONS,
    elements_moved,
    foreign_fields,
    is_absorbed,
    output_width,
    repeats,
    words_of_split,
)
from clustersim.model.architecture import Layer, ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan

FIX: Final = "give each operator the shape that it has in the model"


def shaped(view: GraphView, plan: ParallelPlan, model: ModelSpec, known: dict[str, str]) -> Finding:
    """Compare what operators say of their shape with the model's; that of products and of the cache other rules do.

    Parameters
    ----------
    known : dict
        Name → kind of every operator of the model; of others nothing is expected.
    """
    width = len(model.layers) + 1
    pairs, which = np.unique(view.symbol * width + view.layer + 1, return_inverse=True)
    told = [
        _odd(view.symbols[pair // width], _layer(model, pair % width), model, plan, view.unsaid_of(pair // width))
        if base_name(view.symbols[pair // width]) in known or view.symbols[pair // width].op in COLLECTIVE_OPS
        else None
        for pair in pairs.tolist()
    ]
    bad = np.flatnonzero(np.array([text is not None for text in told], bool)[which.ravel()] & view.says("layer"))
    return judged(
        view, 0, bad, lambda node: told[int(which.ravel()[node])] or "", FIX, np.arange(len(view))
    )  # fmt: skip


def _layer(model: ModelSpec, at: int) -> Layer | None:
    return model.layers[at - 1] if at else None


def _odd(node: Node, layer: Layer | None, model: ModelSpec, plan: ParallelPlan, unsaid: frozenset[str]) -> str | None:
    name = base_name(node)
    for field in foreign_fields(name, node.op, layer):
        if field not in unsaid and getattr(node, field):
            return f"its {field} is {getattr(node, field)}, where {name} has none"
    if name in LOGICAL and plan.ep.sends and "axis" not in unsaid and node.axis != "stage":
        return f"it is said to join ranks of axis {node.axis}, where experts are on all ranks of a stage"
    if node.op in COLLECTIVE_OPS and node.copies != 1 and "copies" not in unsaid:
        return f"{node.copies} ranks are said to do the same, where a collective takes place once"
    if name == "kv_move" and layer is not None:
        return "it is said to be of one layer, and moves the K/V of all layers of its stage"
    words = words_of_split(name, layer, plan)
    if plan.tp > 1 and "rule" not in unsaid and node.rule not in words:
        return f"it is said to be split as {node.rule}, where {name} is {' or '.join(dict.fromkeys(words))}"
    a = layer.attention if layer is not None else None
    if a is not None and "shared_kv" not in unsaid and node.shared_kv != is_absorbed(name, a):
        return f"it is said to read keys and values {'as one' if node.shared_kv else 'apart'}"
    if (name in shapes_of(layer, model)) or (name == "kv_write" and a is not None and a.kind == "mla"):
        return None
    wide = output_width(name, layer, model)
    if wide is not None and "width" not in unsaid and node.width != wide:
        return f"its whole output is said to be {node.width} wide, where {name} makes {wide}"
    often = repeats(name, plan)
    if often is not None and "copies" not in unsaid and node.copies != often:
        return f"{node.copies} ranks are said to do the same, where {often} do"
    if a is not None and name == "kv_write" and "heads" not in unsaid and node.heads != a.num_heads // plan.tp:
        return f"its rank is said to have {node.heads} query heads, where it has {a.num_heads // plan.tp}"
    return None


def handles_every_token(view: GraphView, plan: ParallelPlan, among: BoolArray, rows: FloatArray, fix: str) -> Finding:
    """Compare what norms, rotations, activations and sums move with what their rank's tokens need.

    What they move per token is the affair of who drew the graph, where amounts are not in the features of a batch; it
    is the same for every token then.

    Parameters
    ----------
    among : bool array of shape (nodes,)
    rows : float array of shape (nodes,)
        Of how many tokens each of these should take care; NaN where that is not known.
    """
    model, precision = view.model, view.precision
    if model is None or precision is None:
        return NOTHING
    width = len(model.layers) + 1
    pairs, which = np.unique(view.name * width + view.layer + 1, return_inverse=True)
    each = np.array(
        [elements_moved(view.names[pair // width], _layer(model, pair % width), model, plan) or 0 for pair in pairs],
        np.float64,
    )[which.ravel()]  # fmt: skip
    each *= precision.activation_bytes / _parts(view, plan, model)
    plain = view.mask(lambda node: node.op == "memory") & view.says("layer")
    nodes = np.flatnonzero(among & (each > 0) & plain & ~np.isnan(view.amount) & ~np.isnan(rows))
    if not view.in_features:
        nodes = nodes[~view.named("final_norm")[nodes]]  # some engines norm all tokens, and pick those they need
        each[nodes] = _usual(view.amount[nodes], rows[nodes], which.ravel()[nodes])
    expected = rows[nodes] * each[nodes]
    wrong = np.flatnonzero(np.abs(view.amount[nodes] - expected) > 1e-6 * np.maximum(expected, 1))

    def message(at: int) -> str:
        return (
            f"it moves {view.amount[nodes][at]:,.0f} bytes, where {rows[nodes][at]:g} tokens × {each[nodes][at]:g} "
            f"bytes are {expected[at]:,.0f}"
        )

    return judged(view, len(nodes), wrong, message, fix, nodes)


def repeated_as_made(view: GraphView, plan: ParallelPlan, model: ModelSpec) -> Finding:
    """Compare how many ranks are said to do an activation or a cap alike with what each has: a slice, or all."""
    parts = _parts(view, plan, model)
    expected = np.where(parts == plan.tp, 1, plan.tp)
    found = view.column("copies")
    acts = view.named("ffn_act", "shared_act", *CAPS) & view.says("copies") & np.isfinite(parts)
    return judged(
        view, 0, np.flatnonzero(acts & (found != expected)),
        lambda node: f"{found[node]} ranks are said to do the same, where {expected[node]} do", FIX,
        np.arange(len(view)),
    )  # fmt: skip


def _usual(amount: FloatArray, rows: FloatArray, group: Int64Array) -> FloatArray:
    """Return per node what most of its group move per token."""
    found = np.zeros(len(amount))
    for one in np.unique(group):
        here = group == one
        told = amount[here & (rows > 0)] / rows[here & (rows > 0)]
        found[here] = np.median(told) if len(told) else 0.0
    return found


def _parts(view: GraphView, plan: ParallelPlan, model: ModelSpec) -> FloatArray:
    """Return over how many ranks each activation or cap is split: what its producer made decides."""
    found = np.ones(len(view))
    if plan.tp == 1 and plan.expert_tp == 1:
        return found
    _, made = layouts(view, plan, model)
    edges = np.flatnonzero((view.kind == DATA) & view.within_step)
    made, _ = filled(made, view.source[edges], view.target[edges])
    acts, caps = view.named(*ACTIVATIONS), view.named(*CAPS)
    found[caps & (made == SPLIT)] = plan.tp
    gathered = view.mask(lambda node: node.op == "all_gather" and node.axis in ("tp", "expert_tp"))
    made[view.target[edges[gathered[view.source[edges]]]]] = UNKNOWN  # rule TP-3 speaks of what is put together
    share = np.where(view.named("expert_act"), plan.expert_tp, plan.tp)
    found[acts] = np.where(made == SPLIT, share, np.where(made == UNKNOWN, np.inf, 1))[acts]
    return found


def rows_of_experts(view: GraphView) -> FloatArray:
    """Return the rows of the experts of each node's step, layer and rank."""
    width, layers = max(1, view.num_ranks), int(view.layer.max(initial=0)) + 2
    cell = (view.step * layers + view.layer + 1) * width + view.rank
    rows = np.full(int(cell.max(initial=0)) + 1, np.nan)
    ups = np.flatnonzero(view.named("expert_up"))
    rows[cell[ups]] = view.amount[ups]
    found: FloatArray = rows[np.maximum(cell, 0)]
    return found


def routes_as_the_model(view: GraphView, model: ModelSpec, field: str, fix: str) -> Finding:
    """Compare ``num_experts`` or ``top_k`` of experts with the model's."""
    wanted = np.array(
        [*(getattr(layer.ffn, field) if isinstance(layer.ffn, Moe) else 0 for layer in model.layers), 0], np.int64
    )
    nodes = np.flatnonzero(
        view.mask(lambda node: node.op == "grouped_gemm") & view.says(field, "layer") & (view.layer >= 0)
    )
    found, expected = view.column(field)[nodes], wanted[view.layer[nodes]]
    return judged(
        view, 0, np.flatnonzero(found != expected),
        lambda at: f"its {field} is {found[at]}, where the model has {expected[at]}", fix, nodes,
    )  # fmt: skip
