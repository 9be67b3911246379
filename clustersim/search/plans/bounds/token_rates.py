"""The most output tokens per second at which users get theirs at some rate in the mean, proven from the cost model.

Prices of :mod:`~clustersim.search.plans.bounds.prices` with a limit on TPOT hold for all requests together if these
wait for no more than that per token in the mean over tokens. Then stages are busy for at least what all of them cost.
So replicas that get their tokens through in a time T have a mean above the limit, or cost no more than T, whatever the
rate and the length of the run, and whichever targets are met. Without a limit that holds for any mean, and for a pool
that computes prompts. Taken for granted: requests at lower rates are the first ones of those at higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray
from clustersim.report.metrics.latencies import targets_ns
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import Load
from clustersim.search.plans.bounds.demand import Demand
from clustersim.search.plans.bounds.limits import Group, Member, what_matters
from clustersim.search.plans.bounds.prices import Prices

_NOTHING: Final = 1e-9


def most_tokens_all(
    scenario: Scenario, load: Load, asked: Sequence[tuple[Member, int]], user_rates: Sequence[float]
) -> list[tuple[float, ...]]:
    """Return the most output tokens per second of pools that have their prices in common.

    Parameters
    ----------
    scenario : Scenario
        Of one pool, with one replica at sp 1, or those that share experts.
    load : Load
    asked : sequence of (Member, int)
        With a step of the grid at which it fails.
    user_rates : sequence of float
        Tokens per second that users get at least, in the mean over tokens; 0: whatever they get.

    Returns
    -------
    list of tuple of float
        One number for each of ``user_rates``; infinite where nothing is proven.
    """
    group = Group(scenario, load, 0.0, [member for member, _ in asked])
    counted = not targets_ns(scenario.targets).keys().isdisjoint(("tpot", "e2e"))  # else decodes cost nothing
    known: dict[Member, list[Prices] | None] = {}
    found = []
    for member, step in asked:
        demand = group.demand(step, member.every)
        alike = replace(what_matters(member), replicas=1, every=1, open_prompts=None)
        if alike not in known:
            known[alike] = _prices(group, alike, user_rates)
        prices, all_fit = known[alike], float(demand.tokens.max()) * member.ranks <= member.kv_tokens
        if prices is None or not counted or not all_fit:  # who is rejected costs nothing
            found.append((np.inf,) * len(user_rates))
            continue
        each = (_least_by_token(one, demand, load.requests // member.every) for one in prices)
        found.append(tuple(member.replicas * member.every * NS_PER_S / ns for ns in each))
    return found


def _prices(group: Group, member: Member, user_rates: Sequence[float]) -> list[Prices] | None:
    """Return the prices at each rate of users."""
    columns = group.columns(member)
    if columns is None:
        return None
    limits = [NS_PER_S / rate if rate > 0.0 and member.duty != "prefill" else None for rate in user_rates]
    made = {limit: group.prices(columns, member, limit) for limit in set(limits)}
    return [made[limit] for limit in limits]


def _least_by_token(prices: Prices, demand: Demand, least: int) -> float:
    """Return the nanoseconds that an output token costs at least: of all requests, or so many of the first ones."""
    cost: FloatArray = np.cumsum(prices.of_prompts(demand) + prices.of_decodes(demand))
    tokens = np.cumsum(demand.decodes + 1.0)
    return max(float((cost / tokens)[max(min(least, len(demand)) - 1, 0) :].min()), _NOTHING)
