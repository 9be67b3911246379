"""TP-9, and the payloads of TP-2: what the ranks of a group do and pass on, counted together, is the whole."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.graph.blueprint import Node
from clustersim.legality.graph_rules.finding import NOTHING, GraphFinding, judged, merged, operator
from clustersim.legality.graph_rules.layouts import qkv_width
from clustersim.legality.graph_rules.tokens import carried
from clustersim.legality.graph_view import DATA, GraphView
from clustersim.legality.reference import shapes_of
from clustersim.legality.shards import kv_heads_held
from clustersim.model.architecture import Layer, ModelSpec
from clustersim.plan.parallel import ParallelPlan

TOKEN_WISE: Final = (
    "qkv_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "o_proj", "ffn_up", "ffn_down", "gate", "shared_up",
    "shared_gate", "shared_down",
)  # fmt: skip
"""Products with one row per token that a rank has."""


def conserves(view: GraphView) -> GraphFinding:
    """TP-9: all ranks together do each product once, for every head and every token of the batch, under any tp."""
    plan, model = view.plan, view.model
    if plan is None or model is None:
        return NOTHING
    working = view.mask(lambda node: node.op in ("gemm", "grouped_gemm", "attention_prefill", "attention_decode"))
    products = np.flatnonzero(working)
    width = len(model.layers) + 1
    pairs, which = np.unique(view.symbol[products] * width + view.layer[products] + 1, return_inverse=True)
    wrong = [
        _wrong_share(view.symbols[pair // width], model.layers[pair % width - 1] if pair % width else None, model, plan)
        for pair in pairs.tolist()
    ]
    bad = np.array([text is not None for text in wrong], bool)[which.ravel()]
    shares = judged(
        view, len(products), np.flatnonzero(bad), lambda at: wrong[int(which.ravel()[at])] or "",
        "give every rank its even share of the matrix or the heads, or declare how many ranks repeat it", products,
    )  # fmt: skip
    return shares if plan.sp.degree > 1 else merged(shares, _all_tokens(view, plan))


def _all_tokens(view: GraphView, plan: ParallelPlan) -> GraphFinding:
    tokens = carried(view, plan).tokens
    rows = np.flatnonzero(view.named(*TOKEN_WISE) & ~np.isnan(view.amount))
    expected = tokens[view.step[rows], 0]
    off = np.flatnonzero(np.abs(view.amount[rows] - expected) > 0.5)

    def message(at: int) -> str:
        return f"it works on {view.amount[rows][at]:g} tokens, and the batch has {expected[at]}"

    return judged(view, len(rows), off, message, "let TP split features, and no tokens", rows)


def _wrong_share(node: Node, layer: Layer | None, model: ModelSpec, plan: ParallelPlan) -> str | None:
    """Say how the ranks' shares of one product miss the whole."""
    if node.op.startswith("attention"):
        return _wrong_heads(node, layer, plan) if layer is not None else None
    whole = shapes_of(layer, model).get(node.name)
    if whole is None:
        return None
    n, k = whole
    parts = plan.expert_tp if node.op == "grouped_gemm" else plan.tp
    width = qkv_width(node.name, layer, plan.tp)
    if (width is not None and (node.n, node.k) == (width, k)) or node.n * node.k * parts == n * k * node.copies:
        return None
    return (
        f"{parts} ranks with {node.n} × {node.k} each don't make {node.name} of {n} × {k} "
        f"({node.copies} of them repeat the same)"
    )


def _wrong_heads(node: Node, layer: Layer, plan: ParallelPlan) -> str | None:
    """Say how the heads of an attention on one rank miss its share; Ulysses deals heads out to SP ranks as well."""
    a = layer.attention
    spread = plan.sp.scheme == "all_to_all" and plan.sp.degree > 1 and node.op == "attention_prefill"
    parts = plan.tp * (plan.sp.degree if spread else 1)
    absorbed = a.kind == "mla" and node.op == "attention_decode"
    latent, rope = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0
    dims = (latent + rope, latent) if absorbed else (a.head_dim, a.v_head_dim)
    kept = 1 if absorbed else node.heads if a.kind == "mla" else max(map(len, kv_heads_held(a, plan.tp)))
    if node.heads * parts != a.num_heads:
        return f"{parts} ranks with {node.heads} heads each don't make {a.num_heads} heads"
    if (node.qk_dim, node.v_dim) != dims:
        return f"heads have dimensions {node.qk_dim} and {node.v_dim}, where the model has {dims[0]} and {dims[1]}"
    if node.kv_heads != kept and not spread:
        return f"{node.heads} query heads read {node.kv_heads} K/V heads, where the rank has {kept}"
    return None


def passes_on_all(view: GraphView) -> GraphFinding:
    """TP-2: a collective of TP carries the whole output of the product, or the embedding, before it."""
    plan, model, precision = view.plan, view.model, view.precision
    if plan is None or model is None or precision is None:
        return NOTHING
    maker = view.named(*TOKEN_WISE, "embedding", "aggregate")
    edges = np.flatnonzero(
        (view.kind == DATA) & view.within_step & maker[view.source] & view.mask(lambda n: n.axis == "tp")[view.target]
    )
    source, target = view.source[edges], view.target[edges]
    width = len(model.layers) + 1
    pairs, which = np.unique(view.symbol[source] * width + view.layer[source] + 1, return_inverse=True)
    outputs = [
        shapes_of(model.layers[pair % width - 1] if pair % width else None, model).get(
            view.symbols[pair // width].name, (model.hidden, 0)
        )[0]
        for pair in pairs.tolist()
    ]
    elements = np.array(outputs, np.int64)[which.ravel()] if len(pairs) else np.zeros(0, np.int64)
    tokens = carried(view, plan).tokens[view.step[source], view.s_of(view.rank[source])]
    expected = tokens * elements * precision.activation_bytes
    found = view.amount[target]
    wrong = np.flatnonzero(~np.isnan(found) & (np.abs(found - expected) > 1e-6 * np.maximum(expected, 1)))

    def message(at: int) -> str:
        return (
            f"it carries {found[at]:,.0f} bytes, where the output of {operator(view, int(source[at]))} is "
            f"{expected[at]:,.0f}"
        )

    return judged(view, 0, wrong, message, "put the whole output together", target)
