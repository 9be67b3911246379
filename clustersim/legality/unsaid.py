"""Rules that can say nothing of a graph from outside, since it leaves out where its operators belong.

A rule that misses a shape looks at the other operators. One that puts operators together by layer, or finds transfers
by stage, would take an operator of unknown layer for one that is missing: it is not checkable.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from clustersim.graph.blueprint import COLLECTIVE_OPS, TRANSFER_OPS
from clustersim.legality.graph_rules.kinds import kinds_of
from clustersim.legality.graph_rules.views.dataflow import LOGICAL
from clustersim.legality.graph_rules.views.graph import BoolArray, GraphView, base_name
from clustersim.legality.reference import inputs_of

BY_LAYER: Final = frozenset({
    "PH-1", "PH-5", "KV-1", "KV-2", "KV-4", "TP-8", "SP-2", "SP-5", "SP-8", "PP-2", "PP-6", "EP-2", "EP-4", "EP-5",
    "EP-6", "EP-8",
})  # fmt: skip
"""Rules that look for an operator in its layer."""

BY_AXIS: Final = frozenset({"TP-8", "SP-2", "SP-5", "SP-8", "EP-4", "EP-5"})
"""Rules that look for a collective over an axis."""

BY_STAGE: Final = frozenset({"PP-2", "PP-5"})
"""Rules that look for a stage's transfers."""

PRODUCTS: Final = ("gemm", "grouped_gemm")
CORES: Final = ("attention_prefill", "attention_decode")


def not_checkable(view: GraphView) -> frozenset[str]:
    """Return the rules that lack the layer, axis or stage of an operator that they may be about."""
    if not view.unsaid:
        return frozenset()
    found: frozenset[str] = frozenset()
    if (_lacks(view, "layer") & _in_layers(view)).any():
        found |= BY_LAYER
    if (_lacks(view, "axis") & _collectives(view)).any():
        found |= BY_AXIS
    if (_lacks(view, "stage") & view.mask(lambda node: node.op in TRANSFER_OPS)).any():
        found |= BY_STAGE
    return found


def _collectives(view: GraphView) -> BoolArray:
    """Return which nodes are collectives; one with the name of an operator of one rank is no such thing (TP-8)."""
    kinds = kinds_of(view.model) if view.model is not None else {}
    single = [name for name in kinds if name not in LOGICAL]
    return view.mask(lambda node: node.op in COLLECTIVE_OPS and base_name(node) not in single)


def _lacks(view: GraphView, field: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return ~view.says(field)


def _in_layers(view: GraphView) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which nodes are operators that rules know to be inside a layer, or collectives."""
    model = view.model
    layers = dict.fromkeys(model.layers) if model is not None else {}
    known = {"kv_read"}.union(*(inputs_of(layer, prefills=True, decodes=True) for layer in layers))
    return view.mask(lambda node: node.op in COLLECTIVE_OPS or base_name(node) in known)


def _by_part(view: GraphView) -> BoolArray:
    """Return which attentions take not all keys, but those of a window or of a part of their prompts."""
    windows = [layer.attention.sliding_window for layer in view.model.layers] if view.model is not None else []
    bounded = np.array([window is not None for window in (*windows, None)], bool)[np.minimum(view.layer, len(windows))]
    plan = view.plan
    parts = plan is not None and plan.sp.degree > 1 and not plan.sp.whole and plan.sp.scheme != "all_gather"
    cores = view.mask(lambda node: node.op in CORES)
    return cores & (bounded | (parts & view.mask(lambda node: node.op == "attention_prefill")))


def left_out(view: GraphView) -> Counter[str]:
    """Return field → operators that need it and do not say it."""
    needed = {
        "amount": view.mask(lambda node: node.op in (*TRANSFER_OPS, *COLLECTIVE_OPS, *PRODUCTS, *CORES)),
        "n": view.mask(lambda node: node.op in PRODUCTS),
        "heads": view.mask(lambda node: node.op in CORES),
        "variant": _by_part(view),
        "axis": view.mask(lambda node: node.op in COLLECTIVE_OPS),
        "layer": _in_layers(view),
    }
    counts = {field: int((_lacks(view, field) & mask).sum()) for field, mask in needed.items()}
    if any(step.kind != "unknown" for step in view.steps):  # an amount may also be said in bytes
        counts["amount"] = int((np.isnan(view.amount) & needed["amount"]).sum())
    return Counter({field: count for field, count in counts.items() if count})
