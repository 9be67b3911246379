"""What the declared plan says of products that leave their own shape out, so that layouts are known all the same.

A graph of names alone says no shapes. Its plan says which dimension each product splits: what is read as a slice or as
a sum follows from that. Sizes are not looked at, since they would be those of the plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clustersim.legality.graph_rules.views.layouts import qkv_width
from clustersim.legality.merging.rows import Rows
from clustersim.legality.reference import shapes_of
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan

SIZES: Final = frozenset({"n", "k"})


def assume_shapes(rows: Rows) -> bool:
    """Give products without a shape that of the plan; return whether there was any."""
    plan, model = rows.found.plan, rows.found.model
    assumed = False
    if plan is None or model is None:
        return False
    for at, row in rows.rows.items():
        if row.node.op == "gemm" and row.unsaid >= SIZES:
            shape = _shape(row.node.name, row.cell.layer, plan, model)
            if shape is not None:
                n, k = shape
                rows.rows[at] = replace(row, node=replace(row.node, n=n, k=k), unsaid=row.unsaid - SIZES)
                assumed = True
    return assumed


def _shape(name: str, layer: int, plan: ParallelPlan, model: ModelSpec) -> tuple[int, int] | None:
    """Return (n, k) of a product on one rank; None where the plan does not say it."""
    spec = model.layers[layer] if 0 <= layer < len(model.layers) else None
    whole = shapes_of(spec, model).get(name)
    if whole is None:
        return None
    n, k = whole
    split = plan.split
    if name == "qkv_proj":
        width = qkv_width(name, spec, plan.tp)
        return None if width is None else (width, k)
    columns = {
        "o_proj": split.attention_out == "columns",
        "ffn_up": split.ffn_up == "columns",
        "ffn_down": split.ffn_down == "columns",
        "lm_head": split.lm_head == "vocab",
    }
    if name not in columns:
        return None
    return (n // plan.tp, k) if columns[name] else (n, k // plan.tp)
