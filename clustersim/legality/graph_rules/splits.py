"""TP-2, what a plan says of its splits: products are split along the dimension that it declares."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding
from clustersim.legality.graph_rules.finding import judged, operator
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.legality.graph_rules.views.layouts import FULL, PARTIAL, SPLIT, UNKNOWN
from clustersim.plan.parallel import ParallelPlan

PRODUCTS: Final = {"attention_out": "o_proj", "ffn_up": "ffn_up", "ffn_down": "ffn_down", "lm_head": "lm_head"}
"""Part of ``plan.split`` → the product that it splits; of the embedding layouts and amounts tell."""

LEAVES: Final = {"columns": SPLIT, "vocab": SPLIT, "rows": PARTIAL, "hidden": PARTIAL}
"""How a product is split → what each rank has of its output."""

SHOWN: Final = {FULL: "not split", SPLIT: "split by columns", PARTIAL: "split by rows"}


def as_declared(view: GraphView, plan: ParallelPlan, made: Int64Array) -> Finding:
    """Compare the splits that a plan states with those that the shapes of the products show.

    Parameters
    ----------
    made : int array of shape (nodes,)
        Layout that each node makes.
    """
    if plan.tp == 1:
        return NOTHING
    expected = np.full(len(view), UNKNOWN, np.int64)
    said: dict[str, str] = {}
    for part, name in PRODUCTS.items():
        if view.split_said is None or part in view.split_said:
            said[name] = f"plan.split.{part} is {getattr(plan.split, part)}"
            expected[view.named(name)] = LEAVES[getattr(plan.split, part)]
    bad = np.flatnonzero((expected != UNKNOWN) & np.isin(made, list(SHOWN)) & (made != expected))
    return judged(
        view, 0, bad,
        lambda node: f"it is {SHOWN[int(made[node])]}, where {said[operator(view, node)]}",
        "declare the split that the graph shows, or split as the plan declares", np.arange(len(view)),
    )  # fmt: skip
