"""How many ranks and nodes a token reaches whose copies are sent once to each: of experts that are visited evenly.

A token draws groups of experts, one after the other, and then experts of these, one after the other, none twice.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from math import fsum

from clustersim.cost.precision import Precision
from clustersim.legality.formats import BYTES
from clustersim.legality.shards import expert_map
from clustersim.model.architecture import Moe
from clustersim.plan.exchange import DEEPEP, Exchange
from clustersim.plan.parallel import ExpertPlan, ParallelPlan


def exchange_of(name: str, moe: Moe, ep: ExpertPlan) -> Exchange | None:
    """Return how DeepEP dispatches or combines the tokens of a layer; None where it does not."""
    if ep.exchange not in DEEPEP:
        return None
    return Exchange(
        way=ep.exchange, towards="experts" if name == "dispatch" else "tokens", num_experts=moe.num_experts,
        top_k=moe.top_k, groups=moe.groups, groups_per_token=moe.groups_per_token, ranks=ep.degree,
        placement="contiguous" if ep.redundant else ep.placement,
    )  # fmt: skip


def copies_of(moe: Moe, ep: ExpertPlan, loads: tuple[float, ...]) -> tuple[float, float]:
    """Return how many copies of a token are sent in all, and to the EP rank that gets most of them.

    Parameters
    ----------
    moe, ep
    loads : tuple of float
        Visits of each EP rank over the mean.
    """
    way = exchange_of("dispatch", moe, ep)
    if way is None or ep.exchange == "deepep_low_latency":
        return float(moe.top_k), max(loads) * moe.top_k / ep.degree
    each = []
    for rank, load in enumerate(loads):
        reached, often = share_reached(way, [rank]), int(load)
        each.append(1.0 - (1.0 - reached) ** often * (1.0 - (load - often) * reached))
    return fsum(each), max(each)


def copy_bytes(name: str, ep: ExpertPlan, precision: Precision, hidden: int) -> float:
    """Return the bytes of one copy of a token that is dispatched, or of what experts made of it."""
    if name != "dispatch" or ep.exchange not in DEEPEP:
        return hidden * BYTES[precision.activations]
    multiplied = precision.multiply or dict(precision.modules).get("experts", precision.weights).partition("-")[0]
    dtype = ep.dispatch or ("fp8" if multiplied == "fp8" else precision.activations)
    scales = hidden / 128 * 4 if dtype == "fp8" else 0.0
    header = 16 if ep.exchange == "deepep_low_latency" else 0
    return hidden * BYTES[dtype] + scales + header


def share_reached(way: Exchange, ranks: Collection[int]) -> float:
    """Return the share of tokens that visit an expert of some EP ranks."""
    there, held = set(ranks), [0] * way.groups
    for expert, owner in enumerate(_owners(way)):
        held[expert // (way.num_experts // way.groups)] += owner in there
    return 1.0 - _missed(tuple(sorted(held)), way.num_experts // way.groups, way.top_k, way.groups_per_token)


@lru_cache(maxsize=64)
def _owners(way: Exchange) -> tuple[int, ...]:
    """Return the EP rank of each expert."""
    return expert_map(way.num_experts, ParallelPlan(ep=ExpertPlan(degree=way.ranks, placement=way.placement)))


@lru_cache(maxsize=4096)
def _missed(held: tuple[int, ...], size: int, top_k: int, visited: int) -> float:
    """Return the share of tokens that visit none of so many experts in each group."""
    likely = {(0, 0): 1.0}  # groups drawn so far, experts held in them → how likely that is
    for seen, count in enumerate(held):
        after: dict[tuple[int, int], float] = {}
        for (drawn, there), chance in likely.items():
            draw = (visited - drawn) / (len(held) - seen)
            for state, share in (((drawn + 1, there + count), draw), ((drawn, there), 1.0 - draw)):
                if share > 0.0:
                    after[state] = after.get(state, 0.0) + chance * share
        likely = after
    missed, whole = 0.0, visited * size
    for (_, there), chance in likely.items():
        for turn in range(top_k):
            chance *= max(0, whole - there - turn) / (whole - turn)
        missed += chance
    return missed
