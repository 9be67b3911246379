"""The order in which plans are simulated: bounded and looked at first, the best before others, of ties the cheapest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.walk.reached import Reached
from clustersim.values import dataclass

_SPARE: Final = 8
"""Steps below what one of their pools fails at by itself that the best of several plans reach (measured: 1 to 6) …"""
_PAIRS: Final = 32
"""Plans with two pools that are looked at together at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How plans are bounded, looked at, and put in order.

    Parameters
    ----------
    reached : Reached
        What they are held against.
    cost : callable
        Returns the seconds that a run of a plan takes, at a step.
    bound : callable
        Bounds plans by one of their pools.
    lacks_time : callable
        Whether there is no time left for that, once some plan has reached something.
    look : callable
        Notes at which step one of their pools fails by itself; the plans come with the steps they have to pass.
    look_at_both : callable
        Notes at which step two pools fail together.
    """

    reached: Reached
    cost: Callable[[Standing, int], float]
    bound: Callable[[Sequence[Standing], int], None]
    lacks_time: Callable[[Sequence[Standing], int], bool]
    look: Callable[[Sequence[tuple[Standing, int]], int], None]
    look_at_both: Callable[[Sequence[tuple[Standing, int]]], None]

    def of(self, groups: Sequence[list[Standing]]) -> tuple[list[Standing], list[Standing], float]:
        """Bound plans of several levels and look at them before any is simulated.

        What looks promise is taken for reached until all are looked at, so that there are few of the dearest levels.

        Returns
        -------
        list of Standing
            The best first.
        list of Standing
            Those for which there was no time.
        float
            What looks promise: where less is reached, plans that fell short of it alone are to be looked at again.
        """
        ordered: list[Standing] = []
        late: list[Standing] = []
        for group in groups:
            some, unknown = self._in_order(group)
            ordered, late = ordered + some, late + unknown
        promised = max(self.reached.promised, default=0.0)
        self.reached.promised.clear()
        return ordered if len(groups) == 1 else self._placed(ordered), late, promised

    def _placed(self, some: Sequence[Standing]) -> list[Standing]:
        """Return plans in order: those that tie with the best, of these the cheapest, and of those that take about as
        long the one that may reach most; then those that tie with the next best.

        Replicas in lockstep come behind those of which looks tell to a few steps what they reach, if they don't.
        """
        reached = self.reached
        best = max((reached.most(one) for one in some if one.is_told), default=1.0)
        return sorted(
            some,
            key=lambda one: (
                not one.is_known,
                one.is_lockstep and not one.is_told,
                reached.ties(one, best),
                _octave(self._cost(one)),
                -reached.most(one),
            ),
        )

    def _in_order(self, group: list[Standing]) -> tuple[list[Standing], list[Standing]]:
        """Bound plans and look at them; return them in order, and those for which there was no time.

        Of two pools the second one comes first: there are fewest of these, and most plans fail for them.
        """
        reached, left = self.reached, group
        for place in (1, 0):
            if reached.values and self.lacks_time(left, place):
                late = {id(one) for one in left}
                return self._placed([one for one in group if id(one) not in late]), left
            self.bound(left, place)
            if reached.exhaustive:
                continue
            left = [one for one in left if not reached.is_pruned(one)]
            some = [one for one in left if one.ceiling is not None and not one.is_plain]
            self.look([(one, reached.passing(one, left)) for one in some], place)
            left = [one for one in left if reached.least <= 0.0 or not reached.is_beaten(one)]
        if not reached.exhaustive:
            self._look_at_both(left)
        if reached.exhaustive or all(one.is_plain for one in group):
            return sorted(group, key=lambda one: -reached.most(one)), []
        return self._placed(group), []

    def _look_at_both(self, left: Sequence[Standing]) -> None:
        """Look at both pools of plans together, best first, as far as these may be among the best.

        What looks promise is noted; with what has to be reached it goes up, so that fewer and fewer are looked at.
        """
        reached = self.reached
        pairs = [one for one in left if one.is_known and one.alone is not None and len(one.candidate.replicas) > 1]
        pairs.sort(key=lambda one: (-reached.most(one), self._cost(one)))
        for start in range(0, len(pairs), _PAIRS):
            some = [one for one in pairs[start : start + _PAIRS] if reached.least <= 0.0 or not reached.is_beaten(one)]
            if not some:
                return
            self.look_at_both([(one, reached.passing_both(one, some[0])) for one in some])
            told = [rate_of(one.ceiling - _SPARE) * reached.worth(one) for one in some if one.is_told and one.ceiling]
            reached.promised[:] = [max([*told, *reached.promised])] if told else reached.promised

    def _cost(self, one: Standing) -> float:
        """Return what a run takes of plans that were looked at; the others come behind them."""
        return math.inf if one.alone is None else self.cost(one, one.alone)


def _octave(seconds: float) -> float:
    """Return the power of two that is next to some seconds: the same for what takes about as long."""
    return math.frexp(seconds)[1] if math.isfinite(seconds) else seconds
