"""The most requests per second that a deployment can serve within its targets, proven from the cost model.

Take prices c for a prompt token, a decode and a key, and μ ≥ 0, such that for all steps that the limits of batch and
K/V allow, with P prompt tokens and D decodes that attend to K keys::

    time of a stage(P, D, K) + μ·D·(latency(P, D) − TPOT) ≥ c_p·P + c_d·D + c_k·K            (1)

Look at requests that meet their targets, and at what steps carry of them alone: more tokens never make a step shorter
where no captured graph is padded, and padding adds time, so (1) holds for that if times are taken without. Summed over
steps the term with μ is at most zero, since each of these requests waits for at most TPOT per decode in the mean. So
the stage is busy for at least what they cost at prices c, each by its deadline: if those with a deadline up to t cost
more than replicas have time until t, without the dearest ones that may miss, then no schedule serves a share of them in
time. That is weak duality of a linear program over steps (columns); any c and μ do, and the best ones are searched for.
With several stages, sequences in flight are bounded as well::

    (1−ν−ρ)·time + ν·D·latency / most requests + ρ·K·latency / K/V tokens    in place of the time in (1)

since both of the latter add up to at most the time that passes (law of Little, step by step).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.search.plans.bounds.columns import Columns
from clustersim.search.plans.bounds.demand import Demand, may_miss
from clustersim.values import dataclass

_SURE: Final = 1.0 - 1e-4
"""Of prices: rounding to nanoseconds is less."""
_INSTANTS: Final = 8
_KEPT: Final = 64
"""Demands whose deadlines are kept."""
_FAR_OFF: Final = 1e6
"""Where nothing limits a number …"""
_NEXT_TO_NOTHING: Final = 1e-9
"""… what those count that are not asked for …"""
_SLACK: Final = 1e-10
"""… and how much of a limit is rounding."""
_MOST_PIVOTS: Final = 300
"""It takes some ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Nanoseconds that a prompt token, a decode, a key and a pair cost at least."""

    prompt: float
    decode: float
    key: float
    pair: float

    def of_prompts(self, demand: Demand) -> FloatArray:
        """Return what each prompt costs."""
        return self.prompt * demand.prompt + self.pair * demand.pairs

    def of_decodes(self, demand: Demand) -> FloatArray:
        """Return what the decodes of each request cost."""
        return self.decode * demand.decodes + self.key * demand.keys


def best_prices(
    columns: Columns, demand: Demand, *, tpot_ns: float | None, kv_tokens: float, requests: float
) -> Prices:
    """Return prices that no step undercuts, at which the requests are as dear as can be found.

    Parameters
    ----------
    columns : Columns
    demand : Demand
    tpot_ns : float or None
        Target of TPOT.
    kv_tokens, requests : float
        Most keys that a step attends to (without shared prefixes those in the pool), and most sequences, of what the
        columns are of.
    """
    work = np.array([demand.prompt.mean(), demand.decodes.mean(), demand.keys.mean()])
    work = np.where([columns.prompt.max() > 0, columns.decodes.max() > 0, columns.decodes.max() > 0], work, 0.0)
    found = []
    for stage, pair in enumerate(columns.pair_ns.tolist()):
        dual = _Dual(columns, stage, work, demand, tpot_ns, kv_tokens, requests)
        value, prices = dual.best()
        pairs = pair if columns.prompt.max() > 0 else 0.0
        found.append((value + pairs * float(demand.pairs.mean()), prices, pairs))
    _, prices, pair = max(found, key=lambda one: one[0])
    return Prices(prompt=prices[0] * _SURE, decode=prices[1] * _SURE, key=prices[2] * _SURE, pair=pair * _SURE)


class _Dual:
    """The linear program whose variables are the prices and the multipliers of (1), and whose constraints are columns.

    Parameters
    ----------
    columns : Columns
    stage : int
    work : array of shape (3,)
        Prompt tokens, decodes and keys of a mean request.
    demand, tpot_ns
        See :func:`best_prices`.
    kv, most : float
        Most keys of a step, and most sequences.
    """

    def __init__(
        self,
        columns: Columns,
        stage: int,
        work: FloatArray,
        demand: Demand,
        tpot_ns: float | None,
        kv: float,
        most: float,
    ) -> None:
        keys = np.minimum(kv, columns.decodes * float(demand.tokens.max(initial=0.0)))
        ends = columns.decodes > 0
        both = np.concatenate([np.zeros_like(keys), keys[ends]])
        twice = np.concatenate([np.arange(len(keys)), np.flatnonzero(ends)])
        decodes, latency = columns.decodes[twice], columns.latency_ns[twice]
        self.work = work
        self.carried = np.array([columns.prompt[twice], decodes, both])
        self.ns = columns.stage_ns[stage][twice] + columns.key_ns[stage][twice] * both
        waiting = np.zeros_like(latency) if tpot_ns is None else decodes * (latency - tpot_ns)
        several = len(columns.pair_ns) > 1
        flight = (decodes * latency / most - self.ns, both * latency / kv - self.ns) if several else ()
        self.more = np.array([waiting, *flight])
        """What μ, and ν and ρ where there are several stages, add to the time of a column."""

    def best(self) -> tuple[float, FloatArray]:
        """Return the most that a mean request costs, and the prices.

        Whatever rounding does to the optimum, no column is undercut: the prices are scaled until none is.
        """
        asked, unit = self.work > 0, float(self.ns.max())
        shares = np.zeros(3)
        limits = np.concatenate([self.carried[asked] / self.work[asked, None], self.more / -unit])
        together = np.repeat([0.0, 1.0], [asked.sum() + 1, len(limits) - asked.sum() - 1])  # ν + ρ ≤ 1
        found = _dearest(np.column_stack([limits, together]), np.append(self.ns / unit, 1.0), int(asked.sum()))
        shares[asked] = found[: asked.sum()]
        if not shares.sum() > 0.0:
            return 0.0, shares
        along = np.divide(shares / shares.sum(), self.work, out=np.zeros(3), where=asked)
        multipliers = found[asked.sum() :] / max(1.0, float(found[asked.sum() + 1 :].sum()))
        time, taken = self.ns + multipliers @ self.more, along @ self.carried
        allowed = np.divide(time, taken, out=np.full_like(time, np.inf), where=(taken > 0) | (time < 0.0))
        scale = max(0.0, float(allowed.min()))
        return (scale, along * scale) if math.isfinite(scale) else (0.0, np.zeros(3))


def _dearest(limits: FloatArray, most: FloatArray, asked: int) -> FloatArray:
    """Return non-negative numbers y of which the first so many have the largest sum with y @ limits ≤ most, or nearly.

    By the simplex method on the dual program, which has a row for each number and a variable for each limit: a basis is
    a few limits that hold y.

    Parameters
    ----------
    limits : array of shape (numbers, limits)
    most : array of shape (limits,)
    asked : int
    """
    size = len(limits)
    eye = np.eye(size)
    table, cost = np.hstack([limits, -eye, eye]), np.concatenate([most, np.zeros(size), np.full(size, _FAR_OFF)])
    sums = np.where(np.arange(size) < asked, 1.0, _NEXT_TO_NOTHING * (1.0 + np.arange(size)))  # so that no two tie
    basis = np.arange(size) + table.shape[1] - size
    for _ in range(_MOST_PIVOTS):
        try:
            inverse = np.linalg.inv(table[:, basis])
        except np.linalg.LinAlgError:  # by rounding; what was found before holds all the same once it is scaled
            break
        y = cost[basis] @ inverse
        spare = cost - y @ table
        enters = int(spare.argmin())
        if spare[enters] >= -_SLACK:
            break
        way, level = inverse @ table[:, enters], inverse @ sums
        steps = np.divide(level, way, out=np.full(size, np.inf), where=way > _SLACK)
        if not np.isfinite(steps.min()):
            break
        basis[int(steps.argmin())] = enters
    found: FloatArray = np.maximum(y, 0.0)
    return found


def can_serve(prices: Prices, demand: Demand, *, replicas: int, share: float, open_prompts: int | None) -> bool:
    """Whether nothing proves that a share of the requests can't meet their targets on so many replicas.

    Parameters
    ----------
    prices : Prices
    demand : Demand
    replicas : int
    share : float
    open_prompts : int or None
        Where requests come to replicas in turn, and each computes prompts in order of arrival: how many of those
        before the one that gets its first token may be unfinished. So its queue counts prompts of requests that miss
        their targets, too. None: in any order.
    """
    prompts, decodes = prices.of_prompts(demand), prices.of_decodes(demand)
    begin, free = float(demand.arrived_ns[0]), may_miss(len(demand), share)
    by, instants = _deadlines(demand)
    if open_prompts is not None and np.isfinite(demand.prompt_by_ns).all():
        left = float(prompts.sum()) - _without_dearest(prompts, min(open_prompts, len(prompts)))
        if int((_queued(prompts, demand.arrived_ns, replicas) - left > demand.prompt_by_ns).sum()) > free:
            return False
        if replicas == 1 and not _last_meets(prompts, decodes, demand, by, left, free):
            return False
    for until in instants:
        cost, room = prompts * (demand.prompt_by_ns <= until) + decodes * (by <= until), replicas * (until - begin)
        if float(cost.sum()) > room and _without_dearest(cost, free) > room:
            return False
    return True


@lru_cache(maxsize=_KEPT)
def _deadlines(demand: Demand) -> tuple[FloatArray, tuple[float, ...]]:
    """Return when each request is done at the latest, and the instants until which work is added up; many plans ask."""
    by: FloatArray = np.maximum(demand.prompt_by_ns, demand.decodes_by_ns)
    finite = np.sort(np.concatenate([one[np.isfinite(one)] for one in (demand.prompt_by_ns, by)]))
    if not len(finite):
        return by, ()
    places = np.linspace(len(finite) - 1, len(finite) // 4, _INSTANTS).astype(int)
    return by, tuple(finite[places].tolist())


def _queued(prompts: FloatArray, arrived: FloatArray, replicas: int) -> FloatArray:
    """Return when each prompt is computed at the earliest under round robin: after those before it, which came when
    they did (Lindley's recursion)."""
    rows = -(-len(prompts) // replicas)
    filled = rows * replicas - len(prompts)
    mine = np.pad(prompts, (0, filled)).reshape(rows, replicas)
    came = np.pad(arrived, (0, filled)).reshape(rows, replicas)
    ends = np.cumsum(mine, axis=0)
    queued: FloatArray = (np.maximum.accumulate(came - (ends - mine), axis=0) + ends).ravel()[: len(prompts)]
    return queued


def _last_meets(
    prompts: FloatArray, decodes: FloatArray, demand: Demand, by: FloatArray, left: float, free: int
) -> bool:
    """Whether the last request that meets its targets can, with all prompts before it, and decodes done by then."""
    queue = np.cumsum(prompts) - left
    late_after = demand.prompt_by_ns - demand.arrived_ns[0]
    ends = np.unique(np.linspace(len(demand) - 1 - free, len(demand), _INSTANTS + 1).astype(int))
    for first, end in pairwise(ends.tolist()):  # the last one that meets its targets is one of these
        own = _without_dearest(decodes * (by <= demand.prompt_by_ns[first]), free)
        if not (queue[first:end] + own > late_after[first:end]).all():
            return True
    return False


def _without_dearest(cost: FloatArray, free: int) -> float:
    """Return the sum without so many of the largest."""
    whole = float(cost.sum())
    return whole - float(np.partition(cost, len(cost) - free)[len(cost) - free :].sum()) if free else whole
