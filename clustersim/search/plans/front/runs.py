"""Runs for the front of a search: of plans that were left out for their capacity, and of all at lower rates.

Those come first that could add most for the time that they take. A plan is expected to reach what its pool that decodes
reaches by itself, at the least times of its steps (:mod:`~clustersim.search.plans.looks`): at the last rate at which
none of its pools fails, and at lower ones; times what plans of its kind reached of that at most. Measured,
Llama-3.1-8B on 4 H100: of two pools 0.92 to 0.98 of the tokens of a device and 0.99 to 1.12 of those of a user, of one
pool with SP 0.75 to 0.82 and 0.4 to 0.7.
That is no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.search.plans.bounds.limits import RATE
from clustersim.search.plans.front.points import Hypervolume, points_of
from clustersim.search.plans.outcome import Standing
from clustersim.values import dataclass

Chance = tuple[Standing, int]
"""A plan, at so many steps below its capacity."""
Expected = tuple[float, float]
"""Tokens per second of a device, and of a user."""
BELOW: Final = (0, 16, 32, 64, 128, 256)
"""Steps: a capacity, and 0.85, 0.73, 0.53, 0.28 and 0.08 of it."""
TOGETHER: Final = 2
"""Plans that are simulated at a time, however many workers there are: the answer is the same for any number."""


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


def filled(
    standings: Sequence[Standing],
    share: float,
    *,
    expect: Callable[[Sequence[Chance]], list[Expected | None]],
    simulate: Callable[[Sequence[Chance]], None],
    cost: Callable[[Chance], float],
    left_s: Callable[[], float],
    tell: Callable[[float], None] = lambda _: None,
) -> FrontRuns:
    """Simulate until no run is expected to add more than a share to the area below the front, or there is no time.

    Parameters
    ----------
    standings : sequence of Standing
    share : float
    expect : callable
        Returns what runs are expected to reach; None: unknown.
    simulate : callable
        Simulates plans: up to their capacity, or so many steps below it.
    cost, left_s : callable
        The seconds of CPU that a run takes, roughly, and those that are left.
    tell : callable, optional
        Called with the seconds of all runs that may still add something.
    """
    some = [one for one in standings if one.passed is not None or _is_left_out(one)]
    asked = [(one, below) for one in some for below in BELOW]
    told = {(id(one), below): each for (one, below), each in zip(asked, expect(asked), strict=True) if each is not None}
    ratios, plans, lower = _Calibration(), 0, 0
    for one in some:
        if one.passed is not None and (id(one), 0) in told:
            ratios.note((one, 0), max(one.passing, default=None), told[id(one), 0])
    left = [(one, at) for one, at in asked if (id(one), at) in told and (at or one.passed is None)]
    costs = np.array([cost(one) for one in left])
    while True:
        area = Hypervolume(one.both for one in points_of(standings))
        hopes = np.array([ratios.hope(one, told[id(one[0]), one[1]]) for one in left]).reshape(-1, 2)
        tell(float(costs[area.gains(*hopes.T) > share * area.size].sum()))
        chosen = _chosen(area, hopes, share, costs, left_s())
        if not chosen:
            break
        new = [left[at] for at in chosen]
        before = [set(one.passing) for one, _ in new]
        simulate(new)
        for (one, below), had in zip(new, before, strict=True):
            passed = max(one.passing.keys() - had, default=None)
            ratios.note((one, below), passed, told[id(one), below])
        plans, lower = plans + sum(not below for _, below in new), lower + sum(below > 0 for _, below in new)
        left = [one for at, one in enumerate(left) if at not in chosen]
        costs = np.delete(costs, chosen)
    every = Hypervolume([*area.corners, *((high, right) for high, right in hopes.tolist())])
    most = float(area.gains(*hopes.T).max(initial=0.0)) / area.size
    return FrontRuns(
        share=share,
        plans=plans,
        lower=lower,
        most=most if told else None,
        together=every.size / area.size - 1.0 if told else None,
        unknown=sum((id(one), 0) not in told for one in some),
        spent=most > share or (bool(some) and not told),
    )


def _is_left_out(one: Standing) -> bool:
    """Whether a plan was left out for its capacity alone, or for the time that its run takes."""
    return one.fate in ("screened", "open") or (one.fate == "pruned" and one.why == RATE)


def _chosen(area: Hypervolume, hopes: FloatArray, share: float, costs: FloatArray, left_s: float) -> list[int]:
    """Return the run that may add most for its time, and those beside it, of runs that there is time for."""
    some: list[int] = []
    grown = area
    while len(some) < min(TOGETHER, len(hopes)):
        gains = grown.gains(*hopes.T)
        worth = np.where((gains > share * area.size) & (costs <= left_s), gains / costs, 0.0)
        best = int(worth.argmax())
        if worth[best] <= 0.0:
            break
        some.append(best)
        left_s -= float(costs[best])
        high, right = hopes[best].tolist()
        grown = Hypervolume([*grown.corners, (high, right)])
    return some


class _Calibration:
    """What plans of each kind reached of what was expected, at most."""

    def __init__(self) -> None:
        self._of: dict[object, tuple[float, float]] = {}

    def note(self, chance: Chance, step: int | None, expected: Expected) -> None:
        """Take what a plan reached at a step; None: nothing."""
        key, both = _kind(*chance), (0.0, 0.0)
        if step is not None:
            (point,) = (one for one in points_of([chance[0]]) if one.step == step)
            both = point.per_device / expected[0], point.user_rate / expected[1]
        before = self._of.get(key, (0.0, 0.0))
        self._of[key] = max(before[0], both[0]), max(before[1], both[1])

    def hope(self, chance: Chance, expected: Expected) -> Expected:
        """Return what a plan may reach."""
        high, right = self._of.get(_kind(*chance), (1.0, 1.0))
        return expected[0] * high, expected[1] * right


def _kind(one: Standing, below: int) -> object:
    """Return what plans have in common whose looks are about as far from their runs."""
    plan, pools = one.candidate.replicas[-1].plan, len(one.candidate.replicas)
    return below, pools, plan.sp.degree > 1, plan.sp.decode, plan.pp > 1, plan.is_lockstep
