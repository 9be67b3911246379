"""The bound of plans that have their prices in common, worked out by whoever is asked; plain data in and out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_MS, NS_PER_S, FloatArray
from clustersim.plan.parallel import SequencePlan, SequenceScheme
from clustersim.report.metrics.latencies import targets_ns
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import Load
from clustersim.search.plans.bounds.columns import Columns, Duty, columns_of, most_tokens, of_duty, spread, within
from clustersim.search.plans.bounds.demand import Demand, may_miss
from clustersim.search.plans.bounds.exposure import attentions, exposed
from clustersim.search.plans.bounds.prices import Prices, best_prices, can_serve
from clustersim.search.plans.bounds.stage_prices import priced_alike
from clustersim.search.plans.bounds.stage_times import RATIO
from clustersim.search.plans.grid import SLOWEST, demand_at, step_of
from clustersim.values import dataclass

RATE: Final = "most requests per second"
ALONE: Final = "too few in time even one by one"
_EVERY: Final = 3
"""Steps between those that bounds are told at: what requests ask at one of them, many plans are held against."""
_LOWEST: Final = SLOWEST // _EVERY * _EVERY
"""The first of these at which no request waits for another one."""
_COARSE: Final = 1.08
"""Of neighbours on the grid of steps of SP ranks that have prompts and decodes: a quarter of the columns, and bounds of
these plans are 2 % higher."""
_MOST_REQUESTS: Final = 200_000
"""Of a run: what only more would tell is not proven (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What the bound of a plan depends on besides its prices.

    Parameters
    ----------
    duty : str
        ``both``, ``prefill`` (no step decodes) or ``decode`` (no step has prompts).
    ranks : int
        SP ranks, or replicas that share experts.
    scheme : str or None
        Of SP.
    decodes : bool
        Whether each of these ranks keeps sequences.
    tokens, requests : int
        Most tokens of a step, and sequences, of a replica.
    kv_tokens : int
        Tokens in the K/V pools of all its ranks.
    replicas, every : int
        Replicas that serve every so many-th request.
    open_prompts : int or None
        See :func:`~clustersim.search.plans.bounds.prices.can_serve`.
    """

    duty: Duty
    ranks: int
    scheme: SequenceScheme | None
    decodes: bool
    tokens: int
    requests: int
    kv_tokens: int
    replicas: int
    every: int
    open_prompts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The most that is proven possible: a step of the grid at which the share can't be reached, and why.

    Parameters
    ----------
    step : int or None
        None: nothing is proven.
    why : str
        ``memory``, ``least TTFT``, ``least TPOT``, :data:`ALONE` or ``most requests per second``.
    tpot_ms : float or None
        Least TPOT of a lone request.
    ttft_ms : float or None
        Where ``why`` is ``least TTFT``: the least that enough requests reach that come one by one.
    """

    step: int | None
    why: str
    tpot_ms: float | None
    ttft_ms: float | None = None


UNBOUNDED: Final = Bound(step=None, why="", tpot_ms=None)
"""Nothing is proven."""


def what_matters(member: Member) -> Member:
    """Return a pool without what is of no account: who decodes, and with what room, where no step does."""
    return replace(member, decodes=member.ranks > 1, requests=1, kv_tokens=1) if member.duty == "prefill" else member


def lesser(bounds: Sequence[Bound]) -> Bound:
    """Return the bound of two pools: the smaller one."""
    told = [one for one in bounds if one.step is not None]
    least = min(told, key=lambda one: one.step or 0) if told else bounds[0]
    tpots = [one.tpot_ms for one in bounds if one.tpot_ms is not None]
    return replace(least, tpot_ms=max(tpots) if tpots else None)


class Group:
    """Bounds of one group: its columns, and what requests ask at each rate."""

    def __init__(self, scenario: Scenario, load: Load, share: float, members: Sequence[Member]) -> None:
        self._scenario, self._load, self._share = scenario, load, share
        self._targets = targets_ns(scenario.targets)
        self._demands: dict[tuple[int, int], Demand] = {}
        self._prices: dict[Member, Prices] = {}
        self._base = step_of(load.first)
        self._beyond = 0
        own = self.demand(self._base, 1)
        self._found = priced_alike(scenario)
        self._every = partial(
            columns_of,
            scenario.plan,
            self._found,
            tokens=max(one.tokens for one in members),
            requests=max(one.requests for one in members),
            context=float((own.keys / np.maximum(own.decodes, 1.0)).mean()),
        )
        self._both = any(one.duty == "both" for one in members)
        self._of_duty: dict[tuple[Duty, bool], Columns | None] = {}
        self._of_ranks: dict[object, Columns] = {}
        self._attends: list[int] = []
        self._known: dict[Member, Bound] = {}

    def _columns(self, duty: Duty, apart: bool) -> Columns | None:
        """Return the columns of a duty; those of the parts stand among those of both."""
        alone = duty == "prefill" and self._scenario.plan.sp.scheme is not None  # knows what all ranks carry
        made = "both" if self._both and not alone else duty
        if (made, apart) not in self._of_duty:
            ratio = _COARSE if apart and made == "both" else RATIO
            self._of_duty[made, apart] = self._every(duty=made, apart=apart, ratio=ratio)
        whole = self._of_duty[made, apart]
        return None if whole is None else of_duty(whole, duty)

    def demand(self, step: int, every: int) -> Demand:
        """Return what every so many-th request asks for at a rate."""
        if (step, every) not in self._demands:
            self._demands[step, every] = demand_at(self._scenario, self._load, step, every)
        return self._demands[step, every]

    def of(self, member: Member) -> Bound:
        """Return the bound of one plan."""
        alone = self.demand(self._base, member.every)
        free = may_miss(len(alone), self._share)
        if int((alone.tokens > member.kv_tokens).sum()) > free:
            return Bound(step=_LOWEST, why="memory", tpot_ms=None)
        member = what_matters(member)
        if member not in self._known:
            self._known[member] = self._bound(member, alone, free)
        return self._known[member]

    def _bound(self, member: Member, alone: Demand, free: int) -> Bound:
        """Return the bound of a plan with room for its requests."""
        columns = self.columns(member)
        if columns is None:
            return UNBOUNDED
        least = None if member.duty == "prefill" else float(columns.latency_ns[columns.decodes > 0].min())
        why, ttft_ms = self._impossible(columns, alone, free, least, member)
        tpot_ms = None if least is None else least / NS_PER_MS
        step = self._step(columns, member) if why is None else _LOWEST
        why = ALONE if why is None and step == _LOWEST else why
        return Bound(step=step, why=why or (RATE if step is not None else ""), tpot_ms=tpot_ms, ttft_ms=ttft_ms)

    def columns(self, member: Member) -> Columns | None:
        """Return the columns that steps of a plan can fall into; None where nothing is proven."""
        columns = self._columns(member.duty, False) if member.scheme is None else self._split(member)
        if columns is None:
            return None
        per = member.ranks if member.decodes else 1
        beside = 0 if per == member.ranks else member.requests
        columns = within(
            columns,
            prompt=member.tokens / member.ranks,
            tokens=most_tokens(member.tokens, member.ranks, beside),
            requests=member.requests / per,
        )
        return spread(columns, member.ranks, decodes=member.decodes) if member.ranks > 1 else columns

    def prices(self, columns: Columns, member: Member, tpot_ns: float | None) -> Prices:
        """Return prices that no step undercuts where TPOT is so much at most in the mean."""
        whole = self.demand(self._base, 1)
        keys = member.requests * float(whole.tokens.max(initial=1.0)) if whole.shared else member.kv_tokens
        return best_prices(columns, whole, tpot_ns=tpot_ns, kv_tokens=keys, requests=member.requests)

    def _split(self, member: Member) -> Columns | None:
        """Return what one of several SP ranks takes, the exchange of K/V included."""
        alone = self._columns(member.duty, True)
        key = member.duty, member.ranks, member.scheme  # what is exchanged of prompts is the same for any decodes
        if alone is not None and key not in self._of_ranks:
            self._attends = self._attends or attentions(self._scenario)
            sp = SequencePlan(
                degree=member.ranks,
                scheme=member.scheme,
                partition="contiguous",
                decode="dp" if member.decodes else "idle",
            )
            plan = replace(self._scenario.plan, sp=sp)
            self._of_ranks[key] = exposed(alone, plan, self._scenario, self._found, self._attends)
        return None if alone is None else self._of_ranks[key]

    def _impossible(
        self, columns: Columns, alone: Demand, free: int, least: float | None, member: Member
    ) -> tuple[str | None, float | None]:
        """Say which target too many requests miss even when they come one by one, and the least TTFT that would do."""
        if least is not None and least > self._targets.get("tpot", math.inf) and int((alone.decodes > 0).sum()) > free:
            return "least TPOT", None
        if member.duty != "decode" and "ttft" in self._targets:
            late = lone_prompts(columns, alone.prompt, member.tokens) - (alone.prompt_by_ns - alone.arrived_ns)
            if int((late > 0).sum()) > free:
                would_do = (self._targets["ttft"] + float(np.sort(late)[-1 - free])) / NS_PER_MS
                return "least TTFT", None if "e2e" in self._targets else would_do
        return None, None

    def _step(self, columns: Columns, member: Member) -> int | None:
        """Return the lowest step found at which it is proven that the share can't be reached."""
        whole = self.demand(self._base, 1)
        alike = replace(member, replicas=1, every=1, open_prompts=None)
        if alike not in self._prices:
            self._prices[alike] = self.prices(columns, member, self._targets.get("tpot"))
        prices = self._prices[alike]
        mean = float((prices.of_prompts(whole) + prices.of_decodes(whole)).mean())
        if mean <= 0.0:
            return None

        def does(step: int) -> bool:
            demand = self.demand(step, member.every)
            return can_serve(
                prices, demand, replicas=member.replicas, share=self._share, open_prompts=member.open_prompts
            )

        highest = step_of(_MOST_REQUESTS / max(self._load.lasting_s, 1.0))
        guess = step_of(member.replicas * member.every * NS_PER_S / mean)
        found = _turn(does, guess + self._beyond, highest)
        if found is not None and found > _LOWEST:  # others of its prices lie about as far from their guesses
            self._beyond = found - _EVERY // 2 - guess
        return found


def _turn(does: Callable[[int], bool], guess: int, highest: int) -> int | None:
    """Return a step, a multiple of :data:`_EVERY`, from which on something does not, while it does one before; None
    where it still does at the highest."""
    low = max(_EVERY * (guess // _EVERY), _LOWEST)
    high = low + _EVERY
    while high < highest and does(high):
        low, high = high, high + 2 * (high - low)
    if high >= highest:
        return None
    while not does(low):
        if low == _LOWEST:
            return low
        low, high = max(low - 2 * (high - low), _LOWEST), low
    while high - low > _EVERY:
        middle = _EVERY * ((low + high) // (2 * _EVERY))
        low, high = (middle, high) if does(middle) else (low, middle)
    return high


def bound_all(scenario: Scenario, load: Load, share: float, members: Sequence[Member]) -> list[Bound]:
    """Return the bound of plans that have their prices in common.

    Parameters
    ----------
    scenario : Scenario
        Of one pool, with one replica at sp 1, or those that share experts.
    load : Load
    share : float
    members : sequence of Member
    """
    group = Group(scenario, load, share, members)
    return [group.of(one) for one in members]


def lone_prompts(columns: Columns, prompt: FloatArray, tokens: int) -> FloatArray:
    """Return the least nanoseconds of each prompt by itself, in as few steps as a budget of tokens allows."""
    pure = columns.least_decodes == 0
    order = np.argsort(columns.prompt[pure], kind="stable")
    ends, times = columns.prompt[pure][order], columns.latency_ns[pure][order]
    most = min(float(tokens), float(ends[-1]))
    whole, rest = np.divmod(prompt, most)
    last = np.where(rest > 0, times[np.minimum(np.searchsorted(ends, rest), len(ends) - 1)], 0.0)
    found: FloatArray = whole * times[min(int(np.searchsorted(ends, most)), len(ends) - 1)] + last
    return found
