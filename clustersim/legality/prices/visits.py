"""How many of a step's tokens the experts of each EP rank get, over the mean of all ranks."""

from __future__ import annotations

from functools import lru_cache
from math import fsum

from clustersim.model.architecture import Moe
from clustersim.plan.experts import expert_hosts
from clustersim.plan.parallel import ExpertPlan


@lru_cache(maxsize=1024)
def rank_loads(moe: Moe, ep: ExpertPlan, moe_layer: int) -> tuple[float, ...]:
    """Return the visits of each EP rank over the mean of all; copies of an expert share its visits."""
    if ep.routing is None and not ep.redundant:
        return (1.0,) * ep.degree
    weights = (1.0,) * moe.num_experts if ep.routing is None else ep.routing.weights(moe.num_experts, moe_layer)
    if not ep.redundant and len(set(weights)) == 1:
        return (1.0,) * ep.degree
    often = _chosen(weights, moe.top_k)
    loads = [0.0] * ep.degree
    for expert, ranks in enumerate(expert_hosts(moe.num_experts, moe.top_k, ep, moe_layer)):
        for rank in ranks:
            loads[rank] += often[expert] / len(ranks)
    return tuple(load / moe.top_k * ep.degree for load in loads)


def _chosen(weights: tuple[float, ...], top_k: int) -> list[float]:
    """Return the share of tokens that visit each expert: in proportion to its weight, and none more than once each."""
    always: set[int] = set()
    while True:
        rest = fsum(weight for expert, weight in enumerate(weights) if expert not in always)
        each = (top_k - len(always)) / rest if top_k > len(always) else 0.0
        often = [1.0 if expert in always else weight * each for expert, weight in enumerate(weights)]
        beyond = {expert for expert, share in enumerate(often) if share > 1.0}
        if not beyond:
            return often
        always |= beyond
