"""Where the experts of a layer and their copies live, and which share of all visits each EP rank gets.

Redundant experts are what DeepSeek's load balancer makes of them (DeepSeek-AI, "DeepSeek-V3", arXiv:2412.19437, section
3.4; github.com/deepseek-ai/EPLB, ``rebalance_experts`` with one group): first, one by one, the expert whose copies are
visited most each gets a further copy; then experts and copies, the most visited first, go to the rank that is visited
least so far, has room, and has no copy of that expert. Every rank holds as many. The copies of an expert share its
visits evenly.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import fsum

from clustersim.plan.parallel import ExpertPlan
from clustersim.plan.routing import Routing, visits

Hosts = tuple[tuple[int, ...], ...]
"""Expert → the EP ranks that hold a copy of it."""


@lru_cache(maxsize=1024)
def expert_hosts(num_experts: int, top_k: int, ep: ExpertPlan, moe_layer: int) -> Hosts:
    """Return where the experts of a layer live.

    Parameters
    ----------
    num_experts, top_k : int
    ep : ExpertPlan
    moe_layer : int
        Counted among the layers that have experts, from 0.
    """
    if ep.redundant:
        return _balanced(layer_visits(num_experts, top_k, ep, moe_layer), ep.degree, ep.redundant)
    if ep.placement == "contiguous":
        return tuple((expert * ep.degree // num_experts,) for expert in range(num_experts))
    if ep.placement == "strided":
        return tuple((expert % ep.degree,) for expert in range(num_experts))
    return tuple((rank,) for rank in ep.placement)


def layer_visits(num_experts: int, top_k: int, ep: ExpertPlan, moe_layer: int) -> tuple[float, ...]:
    """Return the share of all tokens that visit each expert of a layer."""
    routing = ep.routing or Routing()
    return visits(routing.weights(num_experts, moe_layer), top_k)


Visits = tuple[tuple[float, ...], ...]
"""EP rank → the share of all tokens that visit each of its experts, the most visited first; copies share theirs."""


@lru_cache(maxsize=1024)
def rank_visits(num_experts: int, top_k: int, ep: ExpertPlan, moe_layer: int) -> Visits | None:
    """Return how often the experts of each EP rank are visited; None where all experts are visited alike.

    Parameters
    ----------
    num_experts, top_k : int
    ep : ExpertPlan
    moe_layer : int
        Counted among the layers that have experts, from 0.
    """
    if not ep.redundant and (ep.routing is None or len(set(ep.routing.weights(num_experts, moe_layer))) == 1):
        return None
    often = layer_visits(num_experts, top_k, ep, moe_layer)
    held: list[list[float]] = [[] for _ in range(ep.degree)]
    for expert, ranks in enumerate(expert_hosts(num_experts, top_k, ep, moe_layer)):
        for rank in ranks:
            held[rank].append(often[expert] / len(ranks))
    return tuple(tuple(sorted(mine, reverse=True)) for mine in held)


@lru_cache(maxsize=1024)
def rank_loads(num_experts: int, top_k: int, ep: ExpertPlan, moe_layer: int) -> tuple[float, ...] | None:
    """Return the visits of each EP rank over the mean of all; None where every expert is visited alike.

    Parameters
    ----------
    num_experts, top_k : int
    ep : ExpertPlan
    moe_layer : int
        Counted among the layers that have experts, from 0.
    """
    often = rank_visits(num_experts, top_k, ep, moe_layer)
    return None if often is None else tuple(fsum(mine) / top_k * ep.degree for mine in often)


@lru_cache(maxsize=1024)
def _balanced(often: tuple[float, ...], ranks: int, redundant: int) -> Hosts:
    copies = _copies(often, ranks, redundant)
    room = (len(often) + redundant) // ranks
    held: list[list[int]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    least = [(0.0, rank) for rank in range(ranks)]  # a heap of the ranks that have room
    order = sorted(
        (expert for expert, many in enumerate(copies) for _ in range(many)),
        key=lambda expert: (-often[expert] / copies[expert], expert),
    )
    for expert in order:
        passed = []
        while least and expert in held[least[0][1]]:
            passed.append(heappop(least))
        if least:
            target, own = heappop(least)[1], expert
        else:  # the last places are beside copies of this very expert: another one makes room
            target = passed.pop(0)[1]
            own = _exchanged(expert, target, held, load, often, copies)
        for one in passed:
            heappush(least, one)
        held[target].append(own)
        load[target] += often[own] / copies[own]
        if len(held[target]) < room:
            heappush(least, (load[target], target))
    found: list[list[int]] = [[] for _ in often]
    for rank, mine in enumerate(held):
        for expert in mine:
            found[expert].append(rank)
    return tuple(tuple(mine) for mine in found)


def _copies(often: tuple[float, ...], ranks: int, redundant: int) -> list[int]:
    """Return how many copies each expert has: at most one on each rank."""
    copies = [1] * len(often)
    most = [(-visited, expert) for expert, visited in enumerate(often)]
    heapify(most)
    for _ in range(redundant):
        _, expert = heappop(most)
        copies[expert] += 1
        if copies[expert] < ranks:
            heappush(most, (-often[expert] / copies[expert], expert))
    return copies


def _exchanged(
    expert: int, full: int, held: list[list[int]], load: list[float], often: tuple[float, ...], copies: list[int]
) -> int:
    """Put an expert in the place of another one, on a rank without it; return that one, which ``full`` lacks."""
    rank, other = next(
        (rank, other)
        for rank, mine in enumerate(held)
        if expert not in mine
        for other in reversed(mine)
        if other not in held[full]
    )
    held[rank][held[rank].index(other)] = expert
    load[rank] += often[expert] / copies[expert] - often[other] / copies[other]
    return other
