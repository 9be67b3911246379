"""What plans reached so far, or promise, and what another one has to reach to be among the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from clustersim.search.plans.bounds.limits import RATE
from clustersim.search.plans.finals import KEPT, TIES
from clustersim.search.plans.grid import GRID, rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.values import dataclass

_HALF: Final = 0.5
"""Of the best bound: what reaches less is not told apart while there is nothing to compare."""
_FAR: Final = 700
"""Steps: a thousandth. Bounds spread prompts over replicas in lockstep evenly, and are far above what these reach."""
_ABOVE: Final = 2
"""Steps of the grid above the worst of the best at which a plan is screened: 2 %."""
_DOWN: Final = 24
"""Steps below its bound at which a plan is first tried: a fifth …"""
_NEAR: Final = 3
"""… below what a pool fails at by itself, doubled each time (measured: prefill pools reach 0 to 2 steps less) …"""
_NEARER: Final = 2
"""… and below what two pools fail at together, but for lockstep (measured: 2; in lockstep 3 to 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What plans are held against.

    Parameters
    ----------
    worth : callable
        What one request per second is worth on a plan: 1 over its devices, its price, or 1.
    exhaustive : bool
        Whether every plan is simulated up to its capacity.

    Attributes
    ----------
    values : list of float
        What the capacities of those that were simulated are worth …
    going : list of float
        … and what those reached so far that are being simulated …
    promised : list of float
        … and what looks let expect, while no level is.
    """

    worth: Callable[[Standing], float]
    exhaustive: bool
    values: list[float] = field(default_factory=list, init=False)
    going: list[float] = field(default_factory=list, init=False)
    promised: list[float] = field(default_factory=list, init=False)

    @property
    def _found(self) -> list[float]:
        return [*self.values, *self.going, *self.promised]

    @property
    def least(self) -> float:
        """What a plan has to reach to be among the best; 0 while there is none."""
        found = sorted(self._found, reverse=True)
        third = found[KEPT - 1] if len(found) >= KEPT else 0.0
        return max(third, found[0] * (1.0 - 2.0 * TIES)) if found else 0.0

    def value(self, one: Standing) -> float:
        """Return what the capacity of a plan is worth."""
        return 0.0 if one.passed is None else rate_of(one.passed) * self.worth(one)

    def most(self, one: Standing) -> float:
        """Return what a plan may reach at most as far as is known."""
        return math.inf if one.ceiling is None else rate_of(one.ceiling) * self.worth(one)

    def ties(self, one: Standing, best: float) -> float:
        """Return by how many ties a plan may reach less than the best: the same number for what ties with it."""
        most = self.most(one)
        if not 0.0 < most < math.inf:
            return math.inf if most <= 0.0 else -math.inf
        return math.floor(math.log(best / most) / math.log(1.0 + TIES))

    def step(self, one: Standing, value: float) -> int:
        """Return the first step of the grid at which a plan is worth as much."""
        return math.ceil(math.log(value / self.worth(one)) / math.log(GRID))

    def is_pruned(self, one: Standing) -> bool:
        """Whether its bound says that a plan is not among the best."""
        if one.bound.step is None:
            return False
        return one.bound.why != RATE or (not self.exhaustive and one.most * self.worth(one) <= self.least)

    def is_beaten(self, one: Standing) -> bool:
        """Whether a plan was looked at, and reaches less than it has to."""
        return one.alone is not None and one.alone <= self.first(one)

    def first(self, one: Standing) -> int:
        """Return the lowest step at which a plan would be among the best; with nothing to compare, one below its bound.

        Where the best ones tie, plans of which it is known what they reach at most have to be better than that.
        """
        if self.least <= 0.0 or self.exhaustive:
            return (one.ceiling or 0) - near(one)
        best = max(self._found)
        if one.alone is not None and self.least >= best * (1.0 - TIES):
            return self.step(one, best * (1.0 + TIES))
        return self.step(one, self.least) + _ABOVE

    def start(self, one: Standing) -> int:
        """Return the step at which a plan is tried first: near what it is expected to reach, where that is known."""
        first = self.first(one)
        return max(first, one.alone - near(one)) if one.is_told and one.alone is not None else first

    def passing(self, one: Standing, group: Sequence[Standing]) -> int:
        """Return the step that a plan has to pass to be looked at closer: with nothing to compare, half the best.

        Of that plan at least it is known what it may reach at most.
        """
        if self.least > 0.0:
            return self.first(one)
        if one.is_lockstep:
            return (one.ceiling or 0) - _FAR
        most = max(most for most in map(self.most, group) if most < math.inf)
        return self.step(one, most * _HALF)

    def passing_both(self, one: Standing, best: Standing) -> int:
        """Return the step that two pools have to pass together: with nothing to compare, half of the best ones."""
        return self.step(one, self.least or self.most(best) * _HALF)


def near(one: Standing) -> int:
    """Return how many steps below what a plan is known to fail at it is tried."""
    if not one.is_told:
        return _DOWN
    return _NEARER if one.is_paired and not one.is_lockstep else _NEAR
