"""The largest area below the front of a search that is possible at all: of all plans, at any rate, proven.

What a plan can reach lies below a curve: the faster users are to get their tokens, the fewer of them a device can make
(:mod:`~clustersim.search.plans.bounds.token_rates`), and no more than arrive at the rate at which it is proven to fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.search.executors import Executors
from clustersim.search.plans.bounds.limits import RATE, Bound
from clustersim.search.plans.grid import demand_at, step_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pools.plan_pools import PlanPool, PlanPools
from clustersim.search.plans.pools.pool_bounds import most_tokens_of

RATIO: Final = 1.08
"""Of neighbours among the rates of users: half of it is lost."""
RATES: Final = 40


def largest_area(
    standings: Sequence[Standing], sides: PlanPools, bounds: Mapping[PlanPool, Bound], executors: Executors
) -> float:
    """Return the largest area below the front; infinite where of some plan nothing is proven.

    Parameters
    ----------
    standings : sequence of Standing
        With bounds of all their pools.
    sides : PlanPools
    bounds : mapping
        Those of pools.
    executors : Executors
    """
    able = [one for one in standings if one.bound.why in ("", RATE)]
    tpots = [one.bound.tpot_ms for one in able]
    if not able or any(tpot is None for tpot in tpots) or not _all_finish(able, sides):
        return math.inf
    fastest = 1e3 / min(tpot for tpot in tpots if tpot is not None)
    rates = [0.0, *(fastest * RATIO ** (at - RATES) for at in range(RATES + 1))]
    base = step_of(sides.load.first)
    steps = {
        side: base if bounds[side].step is None else bounds[side].step
        for one in able
        for side in sides.of(one.candidate)
    }
    found = most_tokens_of(sides, {side: step or base for side, step in steps.items()}, rates[:-1], executors)
    high = np.zeros(RATES + 1)
    arriving: dict[int, float] = {}
    for one in able:
        each = [found[side] for side in sides.of(one.candidate)]
        if one.bound.step is not None and one.bound.step not in arriving:
            arriving[one.bound.step] = _arriving(sides, one.bound.step)
        least = np.minimum(np.min(each, axis=0), arriving.get(one.bound.step or 0, math.inf))
        reachable = np.array(rates[:-1]) * (one.bound.tpot_ms or 0.0) <= 1e3
        high = np.maximum(high, np.where(reachable, least / one.candidate.devices, 0.0))
    return float((high * np.diff(rates)).sum())


def _all_finish(standings: Sequence[Standing], sides: PlanPools) -> bool:
    pools = {(side.setting, side.pools, side.place) for one in standings for side in sides.of(one.candidate)}
    return all(sides.all_finish(sides.pool(*one)) for one in pools)


def _arriving(sides: PlanPools, step: int) -> float:
    """Return the output tokens per second that are asked for at a step of the grid, while requests arrive."""
    demand = demand_at(sides.deployments.base, sides.load, step, 1)
    lasting = float(demand.arrived_ns[-1] - demand.arrived_ns[0])
    return float((demand.decodes + 1.0).sum()) * NS_PER_S / lasting if lasting > 0.0 else math.inf
