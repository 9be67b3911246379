"""How many of a step's tokens the experts of each EP rank get, over the mean of all ranks.

Worked out from the declared routing, placement and number of copies alone: which experts are visited how often, who
gets further copies, where experts and copies go, and what each rank is visited then.

Weights of Zipf's law are n ** −zipf for the n-th expert of a layer in the order of SplitMix64's finaliser (Steele et
al., OOPSLA 2014), rounded to multiples of 2 ** −40. Copies are made and placed as EPLB does with one group
(github.com/deepseek-ai/EPLB, ``rebalance_experts``).
"""

from __future__ import annotations

from bisect import insort
from functools import lru_cache
from math import fsum

import numpy as np

from clustersim.legality.shards import expert_map
from clustersim.model.architecture import Moe
from clustersim.plan.parallel import ExpertPlan, ParallelPlan

Held = tuple[tuple[int, ...], ...]
"""EP rank → the experts of which it has a copy."""


@lru_cache(maxsize=1024)
def rank_loads(moe: Moe, ep: ExpertPlan, moe_layer: int) -> tuple[float, ...]:
    """Return the visits of each EP rank over the mean of all; copies of an expert share its visits."""
    shares = rank_shares(moe, ep, moe_layer)
    return tuple(fsum(mine) / moe.top_k * ep.degree for mine in shares) or (1.0,) * ep.degree


@lru_cache(maxsize=1024)
def rank_shares(moe: Moe, ep: ExpertPlan, moe_layer: int) -> tuple[tuple[float, ...], ...]:
    """Return the share of tokens that visit each expert, or copy of one, of each EP rank; none where all are alike."""
    weights = _weights(moe.num_experts, ep, moe_layer)
    if not ep.redundant and len(set(weights)) == 1:
        return ()
    often = _chosen(weights, moe.top_k)
    held = experts_of_ranks(tuple(often), ep)
    copies = [0] * len(often)
    for mine in held:
        for expert in mine:
            copies[expert] += 1
    return tuple(tuple(often[expert] / copies[expert] for expert in mine) for mine in held)


def experts_of_ranks(often: tuple[float, ...], ep: ExpertPlan) -> Held:
    """Return which experts each EP rank has.

    Parameters
    ----------
    often : tuple of float
        The share of tokens that visit each expert: copies go by it.
    ep : ExpertPlan
    """
    if ep.redundant:
        return _levelled(often, ep.degree, ep.redundant)
    owner = np.array(expert_map(len(often), ParallelPlan(ep=ep)))
    return tuple(tuple(np.flatnonzero(owner == rank).tolist()) for rank in range(ep.degree))


def _weights(num_experts: int, ep: ExpertPlan, moe_layer: int) -> tuple[float, ...]:
    """Return how often each expert of a layer is visited, in proportion."""
    if ep.routing is None:
        return (1.0,) * num_experts
    told = ep.routing.frequencies
    if told is not None:
        return told[0] if len(told) == 1 else told[moe_layer]
    bits = np.arange(moe_layer * num_experts + 1, (moe_layer + 1) * num_experts + 1, dtype=np.uint64)
    bits *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    places = np.argsort(np.argsort(bits, kind="stable"), kind="stable") + 1
    return tuple(np.ldexp(np.rint(np.ldexp([place**-ep.routing.zipf for place in places.tolist()], 40)), -40).tolist())


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


@lru_cache(maxsize=1024)
def _levelled(often: tuple[float, ...], ranks: int, redundant: int) -> Held:
    """Place experts and copies, the most visited first, on the rank with room that is visited least and lacks them."""
    visits, copies = np.array(often), np.ones(len(often), np.int64)
    for _ in range(redundant):  # one more of the expert whose copies are visited most each
        copies[np.where(copies < ranks, visits / copies, -1.0).argmax()] += 1
    each = visits / copies
    room = (len(often) + redundant) // ranks
    held: list[list[int]] = [[] for _ in range(ranks)]
    with_room = [(0.0, rank) for rank in range(ranks)]  # by what they are visited so far
    for expert in np.repeat(np.argsort(-each, kind="stable"), copies[np.argsort(-each, kind="stable")]).tolist():
        at = next((at for at, (_, rank) in enumerate(with_room) if expert not in held[rank]), None)
        visited, rank = with_room.pop(at or 0)
        own = expert if at is not None else _given_up(expert, held, rank)
        held[rank].append(own)
        if len(held[rank]) < room:
            insort(with_room, (visited + float(each[own]), rank))
    return tuple(map(tuple, held))


def _given_up(expert: int, held: list[list[int]], rank: int) -> int:
    """Let the first rank without an expert take it for the last of its own that ``rank`` lacks, and return that."""
    for mine in held:
        if expert not in mine:
            for place in range(len(mine) - 1, -1, -1):
                if mine[place] not in held[rank]:
                    other, mine[place] = mine[place], expert
                    return other
    raise ValueError(f"no rank can take one more copy of expert {expert} of {len(held)} ranks")
