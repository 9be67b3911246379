"""TP-9, and the payloads of TP-2: what the ranks of a group do and pass on, counted together, is the whole."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS, Node
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.graph_rules.finding import judged, operator
from clustersim.legality.graph_rules.traits import handles_every_token, repeated_as_made, rows_of_experts
from clustersim.legality.graph_rules.views.graph import DATA, BoolArray, GraphView
from clustersim.legality.graph_rules.views.layouts import CAPS, qkv_width
from clustersim.legality.graph_rules.views.tokens import Carried, carried, read_keys
from clustersim.legality.reference import shapes_of
from clustersim.legality.shards import kv_heads_held
from clustersim.legality.traits import CORES, output_width
from clustersim.model.architecture import Attention, Layer, ModelSpec
from clustersim.plan.parallel import ParallelPlan

TOKEN_WISE: Final = (
    "qkv_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "o_proj", "ffn_up", "ffn_down", "gate", "shared_up",
    "shared_gate", "shared_down",
)  # fmt: skip
"""Products with one row per token that a rank has."""

OF_NEW_TOKENS: Final = ("q_absorb", "v_absorb")
"""Products with one row per sequence that decodes; the attention between them is rule PH-2."""

FIX_TOKENS: Final = "let TP split features, and no tokens"
PRODUCTS: Final = ("gemm", "grouped_gemm")
COMPUTES: Final = (*PRODUCTS, *CORES)
BY_HEADS: Final = ("qkv_proj", "rope", "qk_norm_rope")
"""Operators before attention that have its heads; what the cache has of them is rule KV-4."""


def conserves(view: GraphView) -> Finding:
    """TP-9: all ranks together do each product once, for every head and every token of the batch, under any tp."""
    plan, model = view.plan, view.model
    if plan is None or model is None:
        return NOTHING
    working = view.mask(lambda node: node.op in COMPUTES or node.name in BY_HEADS)
    products = np.flatnonzero(working)
    width = len(model.layers) + 1
    pairs, which = np.unique(view.symbol[products] * width + view.layer[products] + 1, return_inverse=True)
    shapes: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for symbol, at in (divmod(pair, width) for pair in pairs.tolist()):
        node = view.symbols[symbol]
        shapes.setdefault((node.name, at), set()).add((node.n, node.k))
    wrong = []
    for symbol, at in (divmod(pair, width) for pair in pairs.tolist()):
        node, unsaid = view.symbols[symbol], view.unsaid_of(symbol)
        if len(shapes[node.name, at]) > 1:  # ranks that do different shares don't all repeat the whole
            unsaid = unsaid - {"copies"}
        wrong.append(_wrong_share(node, model.layers[at - 1] if at else None, model, plan, unsaid))
    bad = np.array([text is not None for text in wrong], bool)[which.ravel()]
    told = view.says("layer") & (view.says("n", "k") | ~view.mask(lambda node: node.op in PRODUCTS))
    told &= view.says("heads") | ~view.mask(lambda node: node.op in CORES)
    shares = judged(
        view, int(told[products].sum()), np.flatnonzero(bad), lambda at: wrong[int(which.ravel()[at])] or "",
        "give every rank its even share of the matrix or the heads, or declare how many ranks repeat it", products,
    )  # fmt: skip
    return merged(shares, _all_tokens(view, plan, model), repeated_as_made(view, plan, model))


def _all_tokens(view: GraphView, plan: ParallelPlan, model: ModelSpec) -> Finding:
    """Each product has a row per token that its rank has: of prompts, of new tokens, or of both; so has the table.

    Under SP the tokens of prompts are the affair of rules SP-1 and SP-6.
    """
    numbers = carried(view, plan)
    s = view.s_of(view.rank)
    sampled = _sampled(view, plan, numbers)[view.step, s]
    apart = view.of_steps(lambda step: plan.sp.degree == 1 or plan.sp.whole or not step.chunks)
    tokens = numbers.tokens[view.step, s]
    logits = _logits(view, plan, numbers)[view.step, s]
    rows = np.where(view.named("final_norm", *CAPS), logits, tokens).astype(np.float64)
    found = [
        _rows(view, view.named(*OF_NEW_TOKENS), numbers.decode[view.step, s]),
        _rows(view, view.named("sample", "schedule"), sampled),
        _rows(view, view.named(*TOKEN_WISE) & apart, tokens),
        _rows(view, view.named("attention_prefill") & apart, numbers.prefill[view.step, s]),
        _rows(view, view.named("lm_head") & apart, logits),
        _rows(view, view.named("kv_b_proj") & apart, read_keys(view, plan)[view.step, s]),
        handles_every_token(view, plan, apart & ~view.named("expert_act"), rows, FIX_TOKENS),
    ]
    if view.precision is not None:
        share = plan.tp if plan.split.embedding == "hidden" else 1
        each = 2 * model.hidden * view.precision.activation_bytes / share
        found.append(_rows(view, view.named("embedding") & (apart | view.in_features), tokens, each))
    return merged(*found)


def _sampled(view: GraphView, plan: ParallelPlan, numbers: Carried) -> Int64Array:
    """Return (steps, sp): the tokens that each rank samples; all of the step, but for replicas in lockstep."""
    chunks = np.zeros_like(numbers.decode)
    for at, step in enumerate(view.steps):
        for chunk in step.chunks:
            chunks[at, chunk.owner if plan.sp.whole else 0] += 1
    found: Int64Array = numbers.decode + chunks
    return found if plan.sp.whole else np.repeat(found.sum(axis=1, keepdims=True), plan.sp.degree, axis=1)


def _logits(view: GraphView, plan: ParallelPlan, numbers: Carried) -> Int64Array:
    """Return (steps, sp): the tokens of which each rank makes logits, in steps whose tokens are not split."""
    return _sampled(view, plan, numbers) if plan.sp.degree == 1 or plan.sp.whole else numbers.decode


def _rows(view: GraphView, which: BoolArray, tokens: Int64Array, each: float = 1.0) -> Finding:
    """Compare the amounts of some nodes with the tokens that their ranks have."""
    nodes = np.flatnonzero(which & ~np.isnan(view.amount))
    rows, expected = view.amount[nodes] / each, tokens[nodes]
    off = np.flatnonzero(np.abs(rows - expected) > 1e-6 * np.maximum(expected, 1))

    def message(at: int) -> str:
        return f"it works on {rows[at]:g} tokens, and the batch has {expected[at]}"

    return judged(view, len(nodes), off, message, FIX_TOKENS, nodes)


def _wrong_share(
    node: Node, layer: Layer | None, model: ModelSpec, plan: ParallelPlan, unsaid: frozenset[str]
) -> str | None:
    """Say how the ranks' shares of one product miss the whole, as far as the node says what it is."""
    if node.op in CORES:
        return _wrong_heads(node, layer, plan, unsaid) if layer is not None else None
    whole = shapes_of(layer, model).get(node.name)
    wrong = _wrong_product(node, layer, whole, plan, unsaid) if whole is not None else None
    if wrong is None and whole is not None and node.width != whole[0] and "width" not in unsaid:
        wrong = f"its whole output is said to be {node.width} wide, where {node.name} makes {whole[0]}"
    if wrong is None and node.name in BY_HEADS and layer is not None and layer.attention.kind != "mla":
        wrong = _wrong_dims(node, layer, plan, unsaid)
    return wrong


def _wrong_product(
    node: Node, layer: Layer | None, whole: tuple[int, int], plan: ParallelPlan, unsaid: frozenset[str]
) -> str | None:
    if unsaid & {"n", "k"}:
        return None
    n, k = whole
    parts = plan.expert_tp if node.op == "grouped_gemm" else plan.tp
    width = qkv_width(node.name, layer, plan.tp)
    done = node.n * node.k * parts
    whole_heads = width is not None and (node.n, node.k) == (width, k) and (node.copies == 1 or "copies" in unsaid)
    if whole_heads or (width is None and done == n * k * node.copies):
        return None
    if "copies" in unsaid and (node.n, node.k) == whole:
        return None  # every rank repeats the whole, and it is not said how many do
    return (
        f"{parts} ranks with {node.n} × {node.k} each don't make {node.name} of {n} × {k} "
        f"({node.copies} of them repeat the same)"
    )


def _wrong_dims(node: Node, layer: Layer, plan: ParallelPlan, unsaid: frozenset[str]) -> str | None:
    """Say how heads that an operator before attention makes or turns are not those of its rank."""
    a = layer.attention
    held = max(map(len, kv_heads_held(a, plan.tp)))
    shape = {"heads": a.num_heads // plan.tp, "kv_heads": held, "qk_dim": a.head_dim, "v_dim": a.v_head_dim}
    for field, wanted in shape.items():
        if field not in unsaid and getattr(node, field) != wanted:
            return f"its {field} is {getattr(node, field)}, where the rank has {wanted}"
    return None


def _wrong_heads(node: Node, layer: Layer, plan: ParallelPlan, unsaid: frozenset[str]) -> str | None:
    """Say how the heads of an attention on one rank miss its share; Ulysses deals heads out to SP ranks as well."""
    a = layer.attention
    spread = plan.sp.scheme == "all_to_all" and plan.sp.degree > 1 and node.op == "attention_prefill"
    parts = plan.tp * (plan.sp.degree if spread else 1)
    absorbed = a.kind == "mla" and node.op == "attention_decode"
    latent, rope = a.kv_lora_rank or 0, a.qk_rope_head_dim or 0
    dims = (latent + rope, latent) if absorbed else (a.head_dim, a.v_head_dim)
    kept = 1 if absorbed else node.heads if a.kind == "mla" else max(map(len, kv_heads_held(a, plan.tp)))
    if node.heads * parts != a.num_heads and "heads" not in unsaid:
        return f"{parts} ranks with {node.heads} heads each don't make {a.num_heads} heads"
    said = (dims[0] if "qk_dim" in unsaid else node.qk_dim, dims[1] if "v_dim" in unsaid else node.v_dim)
    if said != dims:
        return f"heads have dimensions {said[0]} and {said[1]}, where the model has {dims[0]} and {dims[1]}"
    if spread:
        kept = _kv_heads_of_run(a, plan)
    unknown = "kv_heads" in unsaid or (a.kind == "mla" and "heads" in unsaid)
    if node.kv_heads != kept and not unknown:
        return f"{node.heads} query heads read {node.kv_heads} K/V heads, where the rank has {kept}"
    return None


def _kv_heads_of_run(a: Attention, plan: ParallelPlan) -> int:
    """Return the most K/V heads that the query heads of one SP rank attend with, under Ulysses."""
    ranks = plan.tp * plan.sp.degree
    each, group = a.num_heads // ranks, -(-a.num_heads // a.num_kv_heads)
    return max(len({q // group for q in range(at * each, (at + 1) * each)}) for at in range(ranks))


def by_rows(view: GraphView) -> BoolArray:
    """Return which operators have a row for other tokens than all of their rank: their amount says how many."""
    return view.mask(lambda node: node.op in COMPUTES and node.name not in TOKEN_WISE)


def passes_on_all(view: GraphView) -> Finding:
    """TP-2: a collective of TP carries the whole output of the product, or the embedding, before it."""
    plan, model, precision = view.plan, view.model, view.precision
    if plan is None or model is None or precision is None:
        return NOTHING
    joins = view.mask(lambda node: node.op in COLLECTIVE_OPS and node.axis in ("tp", "expert_tp"))
    into = (view.kind == DATA) & view.within_step & joins[view.target] & view.says("layer")[view.source]
    edges = np.flatnonzero(into)
    source, target = view.source[edges], view.target[edges]
    width = len(model.layers) + 1
    pairs, which = np.unique(view.name[source] * width + view.layer[source] + 1, return_inverse=True)
    outputs = [
        output_width(view.names[pair // width], model.layers[pair % width - 1] if pair % width else None, model)
        for pair in pairs.tolist()
    ]
    elements = np.array([np.nan if wide is None else wide for wide in outputs], np.float64)[which.ravel()]
    tokens = carried(view, plan).tokens[view.step[source], view.s_of(view.rank[source])]
    rows = np.where(by_rows(view)[source], view.amount[source], tokens)
    rows = np.where(view.named("expert_act")[source], rows_of_experts(view)[source], rows)
    rows[view.named("final_norm", *CAPS)[source]] = np.nan
    expected = rows * elements * precision.activation_bytes
    found = view.amount[target]
    known = ~np.isnan(found) & ~np.isnan(expected)
    wrong = np.flatnonzero(known & (np.abs(found - expected) > 1e-6 * np.maximum(expected, 1)))

    def message(at: int) -> str:
        return (
            f"it carries {found[at]:,.0f} bytes, where the output of {operator(view, int(source[at]))} is "
            f"{expected[at]:,.0f}"
        )

    fix = "put the whole output together"
    said = view.column("width")[target]
    other = np.flatnonzero(view.says("width")[target] & (said != elements) & ~np.isnan(elements))
    widths = judged(
        view, 0, other, lambda at: f"what it puts together is said to be {said[at]} wide, where "
        f"{operator(view, int(source[at]))} makes {elements[at]:g}", fix, target,
    )  # fmt: skip
    return merged(judged(view, int(known.sum()), wrong, message, fix, target), widths)
