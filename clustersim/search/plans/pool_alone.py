"""One pool of two by itself, replayed at the least times of its steps: what it can't do so, it does not do in a run.

A prefill pool computes prompts in order, as many tokens of them at a time as its budget allows, without waiting for a
decode pool or for what an open prompt has in flight. A decode pool gets each request when it arrives, prompt computed
and K/V in place, takes as many as it has room for in that order, and gives each a token per step. Steps take what
:mod:`~clustersim.search.plans.columns` has for them, with several stages at least as long as all micro-batches spend on
the slowest one. So a replay takes milliseconds, and one replica stands for all.

It is no proof: a pool could do better where the other one spreads its requests. Taken for granted, as between rates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.report.metrics.latencies import targets_ns
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import Load
from clustersim.search.plans.columns import Columns, Duty, columns_of, spread
from clustersim.search.plans.demand import Demand, may_miss
from clustersim.search.plans.grid import demand_at, requests_at
from clustersim.simulation.priced import Priced, priced
from clustersim.simulation.replay_input import cost_models
from clustersim.workload.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAlone:
    """A pool whose replicas get requests in turn.

    Parameters
    ----------
    duty : str
        ``prefill`` or ``decode``.
    replicas : int
        Of which one is replayed, with every so many-th request.
    ranks : int
        Replicas that share experts, in lockstep; else 1.
    tokens, requests, kv_tokens : int
        Most of a step, of these together; see :class:`~clustersim.search.plans.limits.Member`.
    """

    duty: Duty
    replicas: int
    ranks: int
    tokens: int
    requests: int
    kv_tokens: int


def failing_all(
    scenario: Scenario, load: Load, share: float, asked: Sequence[tuple[PoolAlone, int, int]]
) -> list[int | None]:
    """Return the lowest step of the grid found at which each of some pools fails by itself.

    Parameters
    ----------
    scenario : Scenario
        Of one pool, with one replica, or those that share experts.
    load : Load
    share : float
    asked : sequence of (PoolAlone, int, int)
        With the lowest step that is of interest, and one at which it is known to fail.

    Returns
    -------
    list of int or None
        None: there is no target that this pool misses, or no least times are known.
    """
    limits = targets_ns(scenario.targets)
    found = priced(scenario, cost_models(scenario))
    results: list[int | None] = []
    known: dict[tuple[Duty, int, int], Columns | None] = {}
    for pool, low, high in asked:
        most = pool.duty, pool.tokens // pool.ranks, pool.requests // pool.ranks
        if most not in known:
            known[most] = _columns(scenario, found, pool, requests_at(scenario, load, low, 1))
        columns = known[most]
        if columns is None or ("ttft" if pool.duty == "prefill" else "tpot") not in limits:
            results.append(None)
        else:
            results.append(_lowest(_Replays(scenario, load, share, pool, columns).does, low, high))
    return results


def _columns(scenario: Scenario, found: Priced, pool: PoolAlone, requests: Requests) -> Columns | None:
    """Return the least times of the steps of a pool."""
    columns = columns_of(
        scenario.plan,
        found,
        tokens=pool.tokens // pool.ranks,
        requests=pool.requests // pool.ranks,
        context=float((requests.prompt_tokens + requests.output_tokens / 2.0).mean()),
        duty=pool.duty,
    )
    return spread(columns, pool.ranks, decodes=True) if columns is not None and pool.ranks > 1 else columns


def _lowest(does: Callable[[int], bool], low: int, high: int) -> int:
    """Return the lowest step from ``low`` to ``high`` at which something does not; ``high`` is one."""
    if low >= high or not does(low):
        return min(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if does(middle) else (low, middle)
    return high


class _Replays:
    """Replays of one pool at different rates."""

    def __init__(self, scenario: Scenario, load: Load, share: float, pool: PoolAlone, columns: Columns) -> None:
        self._scenario, self._load, self._share, self._pool = scenario, load, share, pool
        self._limits = targets_ns(scenario.targets)
        stages = scenario.plan.pp
        if pool.duty == "prefill":
            at = _cells(columns.prompt, np.arange(pool.tokens + 1.0))
            self._step_ns = columns.stage_ns[:, at].max(axis=0).tolist()
            self._pair_ns = float(columns.pair_ns.max())
        else:
            each = np.maximum(np.arange(pool.requests + 1) // stages, 1.0)
            at = _cells(columns.decodes, each)
            self._step_ns = (stages * columns.stage_ns[:, at].max(axis=0)).tolist()
            self._key_ns = columns.key_ns[:, at].min(axis=0).tolist()
        self._latency_ns = columns.latency_ns[at].tolist()

    def does(self, step: int) -> bool:
        """Whether enough requests meet the target of this pool at a step of the grid."""
        demand = demand_at(self._scenario, self._load, step, self._pool.replicas)
        free = may_miss(len(demand), self._share)
        return (self._prefills if self._pool.duty == "prefill" else self._decodes)(demand, free)

    def _prefills(self, demand: Demand, free: int) -> bool:
        """Whether no more prompts than may are late."""
        arrived, prompt, by = (one.tolist() for one in (demand.arrived_ns, demand.prompt, demand.prompt_by_ns))
        stages, budget, pair_ns = self._scenario.plan.pp, self._pool.tokens, self._pair_ns
        returns = [0.0] * stages
        begins, at, left, number, missed = 0.0, 0, prompt[0], 0, 0
        while at < len(arrived):
            now = max(begins, returns[number % stages], arrived[at])
            room, pairs, ended = budget, 0.0, at
            while at < len(arrived) and arrived[at] <= now:
                take = min(left, room)
                pairs += take * (prompt[at] - left) + take * (take + 1.0) / 2.0
                left, room = left - take, room - take
                if left:
                    break
                at += 1
                left = prompt[at] if at < len(arrived) else 0.0
            took = int(budget - room)
            begins = now + self._step_ns[took] + pair_ns * pairs
            end = now + self._latency_ns[took] + pair_ns * pairs
            returns[number % stages], number = end, number + 1
            missed += sum(end > one for one in by[ended:at])
            if missed > free:
                return False
        return True

    def _decodes(self, demand: Demand, free: int) -> bool:
        """Whether no more requests than may get their tokens too slowly."""
        tpot, most, room = self._limits["tpot"], self._pool.requests, float(self._pool.kv_tokens)
        if demand.shared:
            room = float("inf")
        decodes = demand.decodes.astype(np.int64).tolist()
        context = (demand.tokens - demand.decodes).tolist()
        arrived, latency, stage, key = demand.arrived_ns.tolist(), self._latency_ns, self._step_ns, self._key_ns
        now, steps, keys, at, missed = 0.0, 0, 0.0, 0, 0
        running: list[tuple[int, int]] = []
        while at < len(arrived) or running:
            if not running:
                now = max(now, arrived[at])
            while at < len(arrived) and arrived[at] <= now and len(running) < most:
                if running and keys + context[at] > room:
                    break
                if decodes[at]:
                    heappush(running, (steps + decodes[at], at))
                    keys += context[at] + 1.0
                at += 1
            count = len(running)
            if not count:
                continue
            now += max(latency[count], stage[count]) + key[count] * keys
            steps, keys = steps + 1, keys + count
            while running and running[0][0] == steps:
                _, one = heappop(running)
                keys -= context[one] + 1.0 + decodes[one]
                missed += now - arrived[one] > decodes[one] * tpot
            if missed > free:
                return False
        return True


def _cells(ends: FloatArray, values: npt.NDArray[Any]) -> Int64Array:
    """Return for each value the column whose cell it is in, of columns of one duty."""
    order = np.argsort(ends, kind="stable")
    found: Int64Array = order[np.minimum(np.searchsorted(ends[order], values), len(ends) - 1)]
    return found
