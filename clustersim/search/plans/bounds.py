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

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.search.plans.columns import Columns
from clustersim.search.plans.demand import Demand, may_miss

_SURE: Final = 1.0 - 1e-4
"""Of prices: rounding to nanoseconds is less."""
_STRIDE: Final = 31
_INSTANTS: Final = 8
_STARTS: Final = ((0.0, -2.0, -6.0), (1.5, 1.0, -4.0))
_LEAST_STEP: Final = 0.2
_LESS: Final = (0.0, 0.25, 1.0, 3.0, 30.0)


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
        rough = dual.thinned()
        at = max((rough.climb(start) for start in _STARTS), key=rough.value)
        lower = [(*at[:2], at[2] - less, *at[3:]) for less in _LESS]  # columns left out may not allow as large a μ
        value, prices = max((dual.solved(one) for one in lower), key=lambda one: one[0])
        pairs = pair if columns.prompt.max() > 0 else 0.0
        found.append((value + pairs * float(demand.pairs.mean()), prices, pairs))
    _, prices, pair = max(found, key=lambda one: one[0])
    return Prices(prompt=prices[0] * _SURE, decode=prices[1] * _SURE, key=prices[2] * _SURE, pair=pair * _SURE)


class _Dual:
    """Prices as functions of directions: the most that all columns allow along each."""

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
        self.carried = np.array([columns.prompt[twice], columns.decodes[twice], both])
        self.ns = columns.stage_ns[stage][twice] + columns.key_ns[stage][twice] * both
        latency = columns.latency_ns[twice]
        self.waiting = None if tpot_ns is None else columns.decodes[twice] * (latency - tpot_ns)
        several = len(columns.pair_ns) > 1
        self.flight = (columns.decodes[twice] * latency / most, both * latency / kv) if several else ()
        self.work = work

    def thinned(self) -> _Dual:
        """Return the same with a part of the columns: fast, and no bound."""
        other = object.__new__(_Dual)
        other.carried, other.ns, other.work = self.carried[:, ::_STRIDE], self.ns[::_STRIDE], self.work
        other.waiting = None if self.waiting is None else self.waiting[::_STRIDE]
        other.flight = tuple(one[::_STRIDE] for one in self.flight)
        return other

    def solved(self, at: tuple[float, ...]) -> tuple[float, FloatArray]:
        """Return what a mean request costs, and the prices, where logarithms of shares, of μ, and of ν and ρ are so."""
        shares = np.exp(np.array([0.0, at[0], at[1]])) * (self.work > 0)
        total = float(shares.sum())
        if not total:
            return 0.0, np.zeros(3)
        along = np.divide(shares / total, self.work, out=np.zeros(3), where=self.work > 0)
        cost = self.ns
        if self.flight:
            some = np.exp(np.array(at[3:5]))
            some = some / (1.0 + some.sum())
            cost = (1.0 - some.sum()) * cost + some[0] * self.flight[0] + some[1] * self.flight[1]
        if self.waiting is not None:
            cost = cost + float(np.exp(at[2])) * self.waiting
        taken = along @ self.carried
        scale = float(np.divide(cost, taken, out=np.full(len(cost), np.inf), where=taken > 0).min())
        if float(cost[taken <= 0].min(initial=0.0)) < 0.0 or not np.isfinite(scale):
            scale = min(scale, 0.0)
        return (scale, along * scale) if scale > 0.0 else (scale, np.zeros(3))

    def value(self, at: tuple[float, ...]) -> float:
        """Return what a mean request costs."""
        return self.solved(at)[0]

    def climb(self, start: tuple[float, ...]) -> tuple[float, ...]:
        """Return where no step along one axis is better; steps are halved."""
        at = np.array([*start, -3.0, -3.0][: 5 if self.flight else 3])
        best, step = self.value(tuple(at)), 2.0
        while step > _LEAST_STEP:
            moved = False
            for axis in range(len(at)):
                for sign in (step, -step):
                    tried = at.copy()
                    tried[axis] += sign
                    value = self.value(tuple(tried))
                    if value > best:
                        at, best, moved = tried, value, True
                        break
            if not moved:
                step /= 2.0
        return tuple(at.tolist())


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
    by = np.maximum(demand.prompt_by_ns, demand.decodes_by_ns)
    if open_prompts is not None and np.isfinite(demand.prompt_by_ns).all():
        left = np.sort(prompts)[len(prompts) - open_prompts :].sum() if open_prompts else 0.0
        queue = _queues(prompts, replicas) - left
        ends = np.unique(np.linspace(len(demand) - 1 - free, len(demand), _INSTANTS + 1).astype(int))
        late = []
        for first, end in pairwise(ends.tolist()):  # the last one that meets its targets is one of these
            own = decodes * (by <= demand.prompt_by_ns[first]) if replicas == 1 else np.zeros_like(decodes)
            late += (queue[first:end] + _without_dearest(own, free) > demand.prompt_by_ns[first:end] - begin).tolist()
        if all(late):
            return False
    finite = np.sort(np.concatenate([one[np.isfinite(one)] for one in (demand.prompt_by_ns, by)]))
    if not len(finite):
        return True
    for place in np.linspace(len(finite) - 1, len(finite) // 4, _INSTANTS).astype(int).tolist():
        until = finite[place]
        cost = prompts * (demand.prompt_by_ns <= until) + decodes * (by <= until)
        if _without_dearest(cost, free) > replicas * (until - begin):
            return False
    return True


def _queues(prompts: FloatArray, replicas: int) -> FloatArray:
    """Return, at each request, what it and those before it cost that come to the same replica, under round robin."""
    found = np.empty_like(prompts)
    for replica in range(replicas):
        found[replica::replicas] = np.cumsum(prompts[replica::replicas])
    return found


def _without_dearest(cost: FloatArray, free: int) -> float:
    """Return the sum without so many of the largest."""
    whole = float(cost.sum())
    return whole - float(np.partition(cost, len(cost) - free)[len(cost) - free :].sum()) if free else whole
