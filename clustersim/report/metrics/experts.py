"""How evenly the visits of tokens load the ranks that experts are spread over."""

from __future__ import annotations

import math
from typing import Any

from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.experts import rank_loads
from clustersim.plan.parallel import ParallelPlan


def expert_balance(model: ModelSpec, plan: ParallelPlan) -> dict[str, Any] | None:
    """Return how far the most visited EP rank is above the mean; None where experts are not spread.

    The *imbalance* of a layer is the expected visits of its most visited EP rank over the mean of all EP ranks (1:
    even), as ``plan.ep.routing`` and the places of experts and their copies have it. ``mean`` and ``max``
    are over layers with experts, ``layers`` lists them.
    """
    if plan.ep.degree == 1:
        return None
    moes = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    found = [max(rank_loads(moe.num_experts, moe.top_k, plan.ep, number) or (1.0,)) for number, moe in enumerate(moes)]
    if not found:
        return None
    return {
        "redundant": plan.ep.redundant,
        "imbalance": {"mean": math.fsum(found) / len(found), "max": max(found)},
        "layers": found,
    }


def balance_words(found: dict[str, Any] | None) -> str:
    """Return the imbalance in words; empty where there is none to speak of."""
    if not found or (found["imbalance"]["max"] == 1.0 and not found["redundant"]):
        return ""
    most, copies = found["imbalance"], found["redundant"]
    words = f"most visited rank {most['mean']:.2f} × the mean of its layer (at most {most['max']:.2f} ×)"
    return f"{words}, with {copies:,} redundant" if copies else words
