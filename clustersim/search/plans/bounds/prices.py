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

from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.search.plans.bounds.columns import Columns
from clustersim.search.plans.bounds.demand import Demand, may_miss
from clustersim.values import dataclass

_SURE: Final = 1.0 - 1e-4
"""Of prices: rounding to nanoseconds is less."""
_STRIDE: Final = 97
_INSTANTS: Final = 8
_KEPT: Final = 64
"""Demands whose deadlines are kept."""
_STARTS: Final = ((0.0, -2.0, -6.0), (1.5, 1.0, -4.0))
_MOST_STEP: Final = 2.0
_LEAST_STEP: Final = 0.12
_ROUNDS: Final = 4
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
        value, prices = dual.best()
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

    def best(self) -> tuple[float, FloatArray]:
        """Return the most that a mean request is found to cost, and the prices.

        Directions are searched on a part of the columns, to which those are added that allow least there.
        """
        with np.errstate(over="ignore", divide="ignore"):  # of what next to nothing is taken of, all is allowed
            if self.work[1:].any():
                return self._searched()
            values, all_prices, _ = self._scaled(np.full((1, 5 if self.flight else 3), -np.inf))
            return float(values[0]), all_prices[0]  # nothing else is carried than prompts

    def _searched(self) -> tuple[float, FloatArray]:
        part = np.zeros(len(self.ns), np.bool_)
        part[::_STRIDE] = True
        starts = np.array([(*start, -3.0, -3.0)[: 5 if self.flight else 3] for start in _STARTS])
        value, prices, step = 0.0, np.zeros(3), _MOST_STEP
        for _ in range(_ROUNDS):
            starts = self._only(part).climb(starts, step)[None]
            step = _MOST_STEP / 4.0
            lower = np.repeat(starts, len(_LESS), axis=0)  # columns left out may not allow as large a μ
            lower[:, 2] -= _LESS
            values, all_prices, least = self._scaled(lower)
            best = int(values.argmax())
            if values[best] > value:
                value, prices = float(values[best]), all_prices[best]
            if part[least].all():
                break
            part[least] = True
        return value, prices

    def _only(self, part: npt.NDArray[np.bool_]) -> _Dual:
        """Return the same with a part of the columns: fast, and no bound."""
        other = object.__new__(_Dual)
        other.carried, other.ns, other.work = self.carried[:, part], self.ns[part], self.work
        other.waiting = None if self.waiting is None else self.waiting[part]
        other.flight = tuple(one[part] for one in self.flight)
        return other

    def _scaled(self, at: FloatArray) -> tuple[FloatArray, FloatArray, Int64Array]:
        """Return what a mean request costs, the prices, and the column that allows least, in each of some directions.

        Parameters
        ----------
        at : array of shape (directions, 3 or 5)
            Logarithms of the shares of decodes and of keys, of μ, and of ν and ρ.

        Returns
        -------
        (array of shape (directions,), array of shape (directions, 3), array of shape (directions,))
        """
        powers = np.exp(at)
        shares = np.ones((len(at), 3))
        shares[:, 1:] = powers[:, :2]
        shares *= self.work > 0
        total = shares.sum(axis=1, keepdims=True)
        along = np.divide(shares, total * self.work, out=np.zeros_like(shares), where=(total > 0) & (self.work > 0))
        cost = self.ns[None]
        if self.flight:
            some = powers[:, 3:5]
            some = some / (1.0 + some.sum(axis=1, keepdims=True))
            cost = (1.0 - some.sum(axis=1, keepdims=True)) * cost
            cost += some[:, :1] * self.flight[0]
            cost += some[:, 1:] * self.flight[1]
        if self.waiting is not None:
            waiting = powers[:, 2:3] * self.waiting
            cost = np.add(cost, waiting, out=waiting)
        taken = along @ self.carried
        each = np.full_like(taken, np.inf)
        np.divide(cost, taken, out=each, where=(taken > 0) | (cost < 0.0))
        least = each.argmin(axis=1)
        scale = each[np.arange(len(at)), least]
        scale = np.where(np.isfinite(scale), scale, 0.0)
        prices: FloatArray = along * np.maximum(scale, 0.0)[:, None]
        return scale, prices, least

    def climb(self, starts: FloatArray, step: float) -> FloatArray:
        """Return the direction from which no step along one axis is better, from the best start; steps are halved."""
        at: FloatArray = starts[int(self._scaled(starts)[0].argmax())]
        axes = np.eye(len(at))
        moves = np.concatenate([np.zeros((1, len(at))), axes, -axes])
        while step > _LEAST_STEP:
            best = int(self._scaled(at + step * moves)[0].argmax())
            at = at + step * moves[best]
            step = step if best else step / 2.0
        return at


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
