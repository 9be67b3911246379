"""What a graph from outside says that its operators do in its step, against what their terms and shapes give.

Where an amount is a linear form of a step's features, a graph speaks of its work as step graphs do: attention takes 2
FLOPs per attended pair, head and element of query and value; matrices, keys, inputs and outputs are read and written
once, in the number formats that are declared. Programs that give amounts as values may count FLOPs of attention, and
bytes, as they like: they are looked at where all of an operator's nodes together come to the very same.

Not modelled: durations, and work of operators without an amount.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from math import fsum
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.graph.foreign.read import ForeignGraph
from clustersim.legality.formats import bytes_of
from clustersim.legality.graph_rules.views.graph import BoolArray
from clustersim.legality.graph_rules.views.reading import COUNTED_IN_BYTES, PRODUCTS, figures_of, said_amounts, windows
from clustersim.legality.prices.prices import visited, visited_unevenly
from clustersim.legality.prices.visits import rank_shares
from clustersim.model.architecture import Moe
from clustersim.plan.parallel import ExpertPlan, ParallelPlan

CORES: Final = ("attention_prefill", "attention_decode")
EXACT: Final = 1e-12
"""Relative: what the order of sums costs."""
NEAR: Final = 1e-6
"""Relative, of what a file rounds."""


def disagreements(found: ForeignGraph) -> Iterator[tuple[str, str]]:
    """Yield (path, message) where a number that a node says for this step is not what its terms and shape give."""
    known = windows(found.model) if found.model is not None else ()
    worked_out, attended, keys = figures_of(found.graph, found.batch, found.plan, known).T
    amounts = said_amounts(found, worked_out)
    terms = _each(found, [bool(node.amount) for node in found.graph.symbols]).astype(bool)
    flops, moved = _flops(found, amounts, attended), _bytes(found, amounts, keys)
    said = found.figures.T
    alike = _kinds(found, "op", PRODUCTS), _kinds(found, "op", COUNTED_IN_BYTES)
    declares = _kinds(found, "op", CORES)
    told = {
        "amount.value": (said[0], amounts),
        "flops": (said[1], np.where(terms | alike[0] | _counts_alike(found, said[1], flops), flops, np.nan)),
        "bytes": (said[2], np.where(terms | alike[1] | _counts_alike(found, said[2], moved), moved, np.nan)),
    }
    for key, (figure, expected) in told.items():
        for at in np.flatnonzero(np.abs(figure - expected) > EXACT * np.maximum(expected, 1)).tolist():
            if _is_rounded(float(figure[at]), float(expected[at])):
                continue
            what = "terms" if terms[at] else "amount"
            what += ", shape and what the graph declares" if declares[at] and key != "amount.value" else ""
            yield f"nodes[{at}].{key}", f"{figure[at]:,.6g}, but its {what} gives {expected[at]:,.6g} for this step"


def _is_rounded(said: float, exact: float) -> bool:
    """Whether a number is another one with fewer digits, or in single precision: 4755457 is not 4755456."""
    digits = len(f"{Decimal(repr(said)).normalize():e}".partition("e")[0].replace(".", ""))
    near = abs(said - exact) <= NEAR * max(exact, 1)
    return near and said in (float(f"{exact:.{digits}g}"), float(np.float32(exact)))


def _flops(found: ForeignGraph, amounts: FloatArray, attended: FloatArray) -> FloatArray:
    """Return the FLOPs of each node, NaN where its shape is not said; 0 of other work, which terms count in bytes."""
    nodes, unsaid = found.graph.symbols, found.unsaid
    shaped = [not lacks & {"n", "k"} for lacks in unsaid]
    product = [2.0 * node.n * node.k if told else np.nan for node, told in zip(nodes, shaped, strict=True)]
    head = [
        2.0 * node.heads * (node.qk_dim + node.v_dim) if not lacks & {"heads", "qk_dim", "v_dim"} else np.nan
        for node, lacks in zip(nodes, unsaid, strict=True)
    ]
    return np.where(
        _kinds(found, "op", PRODUCTS), amounts * _each(found, product),
        np.where(_kinds(found, "op", CORES), attended * _each(found, head), 0.0),
    )  # fmt: skip


def _bytes(found: ForeignGraph, amounts: FloatArray, keys: FloatArray) -> FloatArray:
    """Return the bytes that each node moves, NaN where shape, model or number formats are not said."""
    precision, nodes = found.precision, found.graph.symbols
    plain = np.where(_kinds(found, "op", COUNTED_IN_BYTES), amounts, np.nan)
    if precision is None:
        return plain
    n, k = (_each(found, [getattr(node, key) for node in nodes]) for key in ("n", "k"))
    matrices = np.where(_kinds(found, "op", ("grouped_gemm",)), _visited(found, amounts), 1.0)
    weight = _each(found, [bytes_of(node.weights or precision.weights) for node in nodes])
    product = matrices * n * k * weight + amounts * (n + k) * precision.activation_bytes
    dims = _each(found, [node.heads * (node.qk_dim + node.v_dim) for node in nodes])
    entry = [node.kv_heads * (node.qk_dim + (0 if node.shared_kv else node.v_dim)) for node in nodes]
    core = amounts * dims * precision.activation_bytes + keys * _each(found, entry) * _key_bytes(found)
    return np.where(
        _kinds(found, "op", PRODUCTS), product, np.where(_kinds(found, "op", CORES), core, plain)
    )  # fmt: skip


def _visited(found: ForeignGraph, rows: FloatArray) -> FloatArray:
    """Return how many experts of a rank have a row."""
    plan = found.plan
    if plan is not None and (plan.ep.routing is not None or plan.ep.redundant):
        return _visited_unevenly(found, plan, rows)
    nodes = [node if node.num_experts and node.top_k else None for node in found.graph.symbols]
    share = _each(found, [np.nan if node is None else node.top_k / node.num_experts for node in nodes])
    experts = _each(found, [np.nan if node is None else node.experts or np.nan for node in nodes])
    return visited(rows / (share * experts), share, experts)


def _have_room(moe: Moe, ep: ExpertPlan) -> bool:
    """Return whether all copies of experts have a place; else EP-1 is broken."""
    return (moe.num_experts + ep.redundant) % ep.degree == 0 and ep.redundant <= moe.num_experts * (ep.degree - 1)


def _visited_unevenly(found: ForeignGraph, plan: ParallelPlan, rows: FloatArray) -> FloatArray:
    """Return the same where each expert has a share of tokens of its own; NaN where the model is not said."""
    visits = np.full(len(rows), np.nan)
    if found.model is None:
        return visits
    graph = found.graph
    moes = [layer.ffn if isinstance(layer.ffn, Moe) else None for layer in found.model.layers]
    first = np.array([members[0] for members in graph.groups], np.int64)[graph.group] // plan.expert_tp
    chosen = np.flatnonzero(_kinds(found, "op", ("grouped_gemm",)) & (graph.layer >= 0) & (graph.layer < len(moes)))
    at = np.stack((graph.layer, first))[:, chosen]
    for layer, rank in np.unique(at, axis=1).T.tolist():
        moe, before = moes[layer], sum(one is not None for one in moes[:layer])
        shares = rank_shares(moe, plan.ep, before) if moe is not None and _have_room(moe, plan.ep) else ()
        if rank < len(shares) and shares[rank]:
            mine = chosen[(at == [[layer], [rank]]).all(axis=0)]
            visits[mine] = visited_unevenly(rows[mine] / fsum(shares[rank]), shares[rank])
    return visits


def _key_bytes(found: ForeignGraph) -> FloatArray:
    """Return the bytes per element of the keys that attention reads: of prompts MLA has just expanded them."""
    precision, model, graph = found.precision, found.model, found.graph
    assert precision is not None
    cached = np.full(len(graph), precision.kv_bytes)
    if model is None:
        return np.full(len(graph), np.nan)
    expanded = np.array([*(layer.attention.kind == "mla" for layer in model.layers), False])
    prompts = _kinds(found, "op", ("attention_prefill",))
    return np.where(expanded[np.minimum(graph.layer, len(model.layers))] & prompts, precision.activation_bytes, cached)


def _counts_alike(found: ForeignGraph, said: FloatArray, expected: FloatArray) -> BoolArray:
    """Return which nodes are of an operator that comes to what we count, over all of its nodes."""
    names = list(dict.fromkeys(node.name for node in found.graph.symbols))
    of = _each(found, [names.index(node.name) for node in found.graph.symbols]).astype(np.int64)
    told, wanted = (np.bincount(of, weights=figures, minlength=len(names)) for figures in (said, expected))
    same: BoolArray = np.abs(told - wanted) <= NEAR * np.maximum(wanted, 1)  # NaN where a node says nothing
    return same[of]


def _each(found: ForeignGraph, values: list[float] | list[int] | list[bool]) -> FloatArray:
    """Return a number of every operator by node."""
    return np.array(values, np.float64)[found.graph.symbol]


def _kinds(found: ForeignGraph, field: str, values: tuple[str, ...]) -> BoolArray:
    return _each(found, [getattr(node, field) in values for node in found.graph.symbols]).astype(bool)
