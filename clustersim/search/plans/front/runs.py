"""Runs for the front of a search: of plans that were left out for their capacity, and of all at lower rates.

Plans that decode in the same pool give users their tokens as fast as each other at a rate, and differ in how far up
they go: they are a family, of which the cheapest plan that bears a rate is simulated there. A family is expected to
reach what its pool that decodes does by itself, at the least times of its steps
(:mod:`~clustersim.search.plans.looks`): at the last rate at which that does not fail, and at lower ones; times what
plans of its kind reached of that at most. Those runs come first that could add most for the time that they take; only
then it is looked at what computes the prompts. Measured, Llama-3.1-8B on 4 H100: of two pools 0.92 to 0.98 of the
tokens of a device and 0.99 to 1.12 of those of a user, of one pool with SP 0.75 to 0.82 and 0.4 to 0.7.
That is no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.search.plans.bounds.limits import RATE
from clustersim.search.plans.front.points import Hypervolume, points_of
from clustersim.search.plans.outcome import Standing
from clustersim.values import dataclass

Chance = tuple[Standing, int, bool]
"""A plan, at a step of the grid; and whether it is taken up to its capacity from there."""
BELOW: Final = (0, 16, 32, 64, 128, 256, 448)
"""Steps below the last one at which a pool that decodes does not fail, at which it is looked at what it serves: 0.85,
0.73, 0.53, 0.28, 0.08 and 0.01 of that rate. Between, it is interpolated …"""
_DOWN: Final = np.array([*range(0, 64, 4), *range(64, 128, 8), *range(128, 256, 16), *range(256, 449, 32)])
"""… for those at which plans may be simulated."""
TOGETHER: Final = 2
"""Plans that are simulated at a time, however many workers there are: the answer is the same for any number."""
NEAR: Final = 3
"""Steps below that at which a pool fails by itself that plans with it are expected to bear."""
_BACK: Final = 4
"""Steps below a rate at which a plan fails that it is tried again, doubled each time."""
_NOWHERE: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontRuns:
    """What was done for the front.

    Parameters
    ----------
    share : float
        Asked: of its area, that nothing may be expected to add.
    plans, lower : int
        Plans that were simulated up to their capacity for it, and runs at lower rates.
    most, together : float or None
        What a run of those looked at is still expected to add at most, and all of them, as shares of the area; None:
        none was looked at.
    unknown : int
        Plans of which nothing is expected: their pools can't be looked at, or there was no time for it.
    spent : bool
        Whether the effort ended before nothing more was expected.
    possible : float or None
        The largest area that is possible, of all plans at any rate, proven; None: nothing is.
    """

    share: float
    plans: int
    lower: int
    most: float | None
    together: float | None
    unknown: int
    spent: bool
    possible: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Family:
    """Plans that decode in the same pool, and have as many devices.

    Parameters
    ----------
    plans : sequence of Standing
        The cheapest first.
    top : int
        The last step of the grid at which the pool is not known to fail.
    expected : array of shape (len(BELOW), 2)
        So many steps below: tokens per second of a device, and of a user.
    """

    plans: Sequence[Standing]
    top: int
    expected: FloatArray


def is_left_out(one: Standing) -> bool:
    """Whether a plan was left out for its capacity alone, or for the time that its run takes."""
    return one.fate in ("screened", "open") or (one.fate == "pruned" and one.why == RATE)


def filled(
    standings: Sequence[Standing],
    families: Sequence[Family],
    share: float,
    *,
    able: Callable[[Sequence[Standing], int], tuple[Standing | None, int]],
    simulate: Callable[[Sequence[Chance]], None],
    cost: Callable[[Chance], float],
    left_s: Callable[[], float],
    tell: Callable[[float], None] = lambda _: None,
) -> FrontRuns:
    """Simulate until no run is expected to add more than a share to the area below the front, or there is no time.

    Parameters
    ----------
    standings : sequence of Standing
    families : sequence of Family
        Of those that were simulated or left out, as many as were looked at.
    share : float
    able : callable
        Returns the first of some plans that is expected to bear the rate of a step, and the highest that any does.
    simulate : callable
    cost, left_s : callable
        The seconds of CPU that a run takes, roughly, and those that are left.
    tell : callable, optional
        Called with the seconds of all runs that may still add something.
    """
    hopes, plans, lower = _Chances(families, cost), 0, 0
    while True:
        area = Hypervolume(one.both for one in points_of(standings))
        tell(float(hopes.costs[area.gains(*hopes.both.T) > share * area.size].sum()))
        chosen = _chosen(area, hopes, share, able, left_s)
        if not chosen:
            break
        before = [set(one.passing) for _, (one, _, _) in chosen]
        simulate([chance for _, chance in chosen])
        for (place, chance), had in zip(chosen, before, strict=True):
            hopes.note(place, chance, had)
        climbed = sum(climbs for _, (_, _, climbs) in chosen)
        plans, lower = plans + climbed, lower + len(chosen) - climbed
    every = Hypervolume([*area.corners, *((high, right) for high, right in hopes.both.tolist())])
    most = float(area.gains(*hopes.both.T).max(initial=0.0)) / area.size
    known = {id(one) for family in families for one in family.plans}
    some = [one for one in standings if one.passed is not None or is_left_out(one)]
    return FrontRuns(
        share=share,
        plans=plans,
        lower=lower,
        most=most if known else None,
        together=every.size / area.size - 1.0 if known else None,
        unknown=sum(id(one) not in known for one in some),
        spent=most > share or (bool(some) and not known),
    )


def _chosen(
    area: Hypervolume,
    hopes: _Chances,
    share: float,
    able: Callable[[Sequence[Standing], int], tuple[Standing | None, int]],
    left_s: Callable[[], float],
) -> list[tuple[int, Chance]]:
    """Return the run that may add most for its time, and those beside it, of runs that there is time for; each with the
    number of its family."""
    some: list[tuple[int, Chance]] = []
    grown, taken_s = area, 0.0
    while len(some) < TOGETHER:
        gains = grown.gains(*hopes.both.T)
        in_time = hopes.costs <= left_s() - taken_s
        worth = np.where((gains > share * area.size) & in_time, gains / hopes.costs, 0.0)
        best = int(worth.argmax()) if len(worth) else 0
        if not len(worth) or worth[best] <= 0.0:
            break
        place, step, climbs = hopes.chance(best)
        one, highest = able(hopes.families[place].plans, step)
        if one is None:
            hopes.lower(place, highest)
        elif not hopes.is_dearer(best, (one, step, climbs)):
            some.append((place, (one, step, climbs)))
            taken_s += float(hopes.costs[best])
            grown = Hypervolume([*grown.corners, tuple(hopes.both[best].tolist())])
            hopes.take(best)
    return some


class _Chances:
    """What each family may reach, at each of some rates.

    Parameters
    ----------
    families : sequence of Family
    cost : callable
        The seconds of a run.

    Attributes
    ----------
    both : array of shape (families × rates, 2)
        Tokens per second of a device, and of a user; 0 of what was simulated.
    costs : array of shape (families × rates,)
        Seconds of a run.
    """

    def __init__(self, families: Sequence[Family], cost: Callable[[Chance], float]) -> None:
        self.families, self._cost = families, cost
        kinds: dict[object, int] = {}
        self._kind = np.array([kinds.setdefault(_kind(one.plans[0]), len(kinds)) for one in families], np.int64)
        self._top = np.array([one.top for one in families], np.int64)
        self._limit, self._climbs = self._top.copy(), np.ones(len(families), np.bool_)
        self._back = np.full(len(families), _BACK)
        self._expected = np.log([one.expected for one in families]).reshape(len(families), len(BELOW), 2)
        self._less: dict[int, int] = {}
        """Kind → steps that the best of its plans reached less than expected …"""
        self._short = np.zeros(len(kinds), np.int64)
        """… or, of those of which none passed yet, that it reached less at least."""
        self._ratios = np.zeros((len(kinds), len(BELOW), 2))
        self._simulated: list[dict[int, None]] = [{} for _ in families]
        self._dearer: dict[tuple[int, int], Standing] = {}
        self._took: dict[object, float] = {}
        """Kind → what the first run of it took, of what it was expected to."""
        self._steps = np.full((len(families), len(_DOWN)), _NOWHERE)
        self._expected_s = np.zeros(self._steps.shape)
        for place, family in enumerate(families):
            for one in family.plans:
                self._passed(place, one, one.passing.keys())
                if one.passed is not None:
                    self._reached(place, one, one.passed)
        self._tell()

    def chance(self, at: int) -> tuple[int, int, bool]:
        """Return the family of a number, the step, and whether its plan is taken up to its capacity."""
        place, rate = divmod(at, len(_DOWN))
        return place, int(self._steps[place, rate]), bool(self._climbs[place]) and rate == 0

    def is_dearer(self, at: int, chance: Chance) -> bool:
        """Whether a run takes longer than was expected of the cheapest of its family; that is noted."""
        costs_s = self._cost(chance) * self._part(chance[0])
        if costs_s <= self.costs[at]:
            return False
        self.costs[at], self._dearer[at // len(_DOWN), chance[1]] = costs_s, chance[0]
        return True

    def _part(self, one: Standing) -> float:
        """Return what part of what is expected a run of a plan takes, or so."""
        return self._took.get(_dearness(one), 1.0)

    def take(self, at: int) -> None:
        """Take note that something is simulated."""
        place, step, _ = self.chance(at)
        self._simulated[place][step] = None
        self.both[at] = 0.0

    def lower(self, place: int, step: int) -> None:
        """Take note that no plan of a family is expected to bear the rate of a higher step."""
        self._limit[place] = step - self._short_of(place)
        self._tell()

    def note(self, place: int, chance: Chance, had: set[int]) -> None:
        """Take note of what a plan reached, beside the steps at which it had passed before."""
        one, step, climbs = chance
        new = one.passing.keys() - had
        self._passed(place, one, new)
        kind = int(self._kind[place])
        if climbs and one.passed is not None:
            self._reached(place, one, one.passed)
            self._limit[place] = one.passed
            self._simulated[place][one.passed] = None
        elif not new:
            self._limit[place] = step - self._back[place]
            self._back[place] *= 2
            if kind not in self._less:
                self._short[kind] = max(int(self._short[kind]), int(self._top[place]) - step + _BACK)
        self._climbs[place] &= bool(new) and not climbs
        self._tell()

    def _reached(self, place: int, one: Standing, step: int) -> None:
        """Take note of the highest step that a plan reaches."""
        kind, top = int(self._kind[place]), int(self._top[place])
        short = max(0, (top if one.ceiling is None else min(top, one.ceiling - NEAR)) - step)
        self._less[kind] = min(self._less.get(kind, short), short)

    def _short_of(self, place: int) -> int:
        """Return how many steps less plans of a family are expected to reach than looks promise."""
        kind = int(self._kind[place])
        return self._less.get(kind, int(self._short[kind]))

    def _passed(self, place: int, one: Standing, steps: Iterable[int]) -> None:
        """Take note of what a plan gave at some steps, of what was expected there."""
        for point in points_of([one]):
            if point.step in steps:
                if took_s := point.row["numbers"].get("work_s"):
                    self._took.setdefault(_dearness(one), took_s / self._cost((one, point.step, False)))
                below = int(self._top[place]) - point.step
                high, right = np.exp([np.interp(below, BELOW, self._expected[place, :, of]) for of in (0, 1)])
                near = _nearest(below)
                found = self._ratios[self._kind[place], near]
                found[:] = np.maximum(found, (point.per_device / high, point.user_rate / right))

    def _tell(self) -> None:
        """Work out what may be reached."""
        short = np.array([self._short_of(place) for place in range(len(self.families))], np.int64)
        before, self._steps = self._steps, np.minimum(self._limit, self._top - short)[:, None] - _DOWN
        known = (self._top[:, None] - self._steps <= BELOW[-1])[:, :, None]
        below = np.clip(self._top[:, None] - self._steps, 0, BELOW[-1])
        at = np.clip(np.searchsorted(BELOW, below, side="right") - 1, 0, len(BELOW) - 2)
        part = ((below - np.take(BELOW, at)) / np.take(np.diff(BELOW), at))[:, :, None]
        rows = np.arange(len(self.families))[:, None]
        expected = np.exp(self._expected[rows, at] * (1.0 - part) + self._expected[rows, at + 1] * part)
        ratios = np.where(self._ratios > 0.0, self._ratios, 1.0)[self._kind[:, None], _nearest(below)]
        self.both = np.where(known, expected * ratios, 0.0).reshape(-1, 2)
        for place, steps in enumerate(self._simulated):
            if steps:
                self.both.reshape(*self._steps.shape, 2)[place, np.isin(self._steps[place], list(steps))] = 0.0
        firsts = [family.plans[0] for family in self.families]
        for place in np.flatnonzero((self._steps != before).any(axis=1)).tolist():
            for rate in range(len(_DOWN)):
                _, step, climbs = self.chance(place * len(_DOWN) + rate)
                self._expected_s[place, rate] = self._cost((firsts[place], step, climbs))
        costs = self._expected_s * np.array([self._part(one) for one in firsts])[:, None]
        for (place, step), one in self._dearer.items():
            for rate in np.flatnonzero(self._steps[place] == step).tolist():
                climbs = bool(self._climbs[place]) and rate == 0
                costs[place, rate] = self._cost((one, step, climbs)) * self._part(one)
        self.costs = costs.ravel()


def _nearest(below: Any) -> Any:
    """Return the number of the step of those looked at that is nearest."""
    return np.abs(np.subtract.outer(below, BELOW)).argmin(axis=-1)


def _dearness(one: Standing) -> object:
    """Return what plans have in common whose runs take about as much of what is expected of them."""
    plans = [each.plan for each in one.candidate.replicas]
    return tuple((plan.sp.degree > 1, plan.sp.decode, plan.pp > 1, plan.is_lockstep) for plan in plans)


def _kind(one: Standing) -> object:
    """Return what plans have in common whose looks are about as far from their runs."""
    plan, pools = one.candidate.replicas[-1].plan, len(one.candidate.replicas)
    return pools, plan.sp.degree > 1, plan.sp.decode, plan.pp > 1, plan.is_lockstep
