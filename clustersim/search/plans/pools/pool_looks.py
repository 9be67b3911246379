"""Looks at pools by themselves: what is known of a pool is kept, and asked once for all plans that have it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from clustersim.search.executors import Executors
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.looks.replays import are_many, is_worth_compiling
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pools.plan_pools import PlanPool, PlanPools
from clustersim.search.plans.pools.pool_bounds import failing_both_of, failing_of, served_of

_LOOKS: Final = 4
"""Times that a pool is replayed to find where it fails, or so …"""
_IN_LOCKSTEP: Final = 20
"""… and how many times as long each replay takes where every step is one of all ranks (measured: 17) …"""
_PROMPTS: Final = 4
"""… or a part of it of prompts alone (measured: a ninth, most of which fail early) …"""
_MIXED: Final = 5
"""… or has prompts and decodes (30 to 50 µs a request, in Python)."""


class PoolLooks:
    """What looks tell of pools.

    Parameters
    ----------
    sides : PlanPools
    share : float
    executors : Executors

    Attributes
    ----------
    plain, quick : int
        Requests that were replayed, or so, before there were many, and since: those are compiled.
    """

    def __init__(self, sides: PlanPools, share: float, executors: Executors) -> None:
        self._sides, self._share, self._executors = sides, share, executors
        self._fails: dict[PlanPool, int | None] = {}
        self._passes: dict[PlanPool, int] = {}
        self._ends: dict[PlanPool, int] = {}
        """Up to which step each was looked at."""
        self._both: dict[tuple[PlanPool, PlanPool], tuple[int, int | None]] = {}
        self.plain = self.quick = 0

    def _many(self, requests: int) -> bool:
        """Take note that so many requests are replayed, and return whether that is to be compiled."""
        whole = self.plain + self.quick + requests
        if not are_many(whole):
            self.plain += requests
        else:
            self.quick += requests
        return is_worth_compiling(whole)

    def look(self, asked: Sequence[tuple[Standing, int]], place: int = 0, *, plain: bool = False) -> None:
        """Note at which step one of their pools fails at the least times of its steps; each with a step it has to pass.

        What is known of a pool is kept. Plans whose run takes no longer are looked at only with ``plain``.
        """
        left = [(one, step) for one, step in asked if place < len(one.candidate.replicas)]
        left = [(one, step) for one, step in left if one.ceiling is not None and one.ceiling > step]
        sides = [self._sides.of(one.candidate)[place] for one, _ in left]
        self._look_at(sides, [(step, one.ceiling or step) for one, step in left], plain)
        for (one, _), side in zip(left, sides, strict=True):
            told = [step for step in (one.alone, self._fails[side]) if step is not None]
            if self._fails[side] is not None:
                one.looked |= {place}
            one.alone = min(told, default=None)

    def look_at_both(self, asked: Sequence[tuple[Standing, int]]) -> None:
        """Note at which step two pools fail together, one behind the other; each plan with a step it has to pass."""
        new: dict[tuple[PlanPool, PlanPool], tuple[int, int, int]] = {}
        keys = []
        for one, step in asked:
            first, second = self._sides.of(one.candidate)
            keys.append((first, second))
            low, failed = self._both.get((first, second), (math.inf, None))
            if one.alone is not None and one.alone > step and (failed is None or step < low):
                new[first, second] = self._sides.every(one.candidate), step, one.alone
        compiled = self._many(
            sum(_LOOKS * 2 * self._sides.load.count(rate_of(high)) // every for every, _, high in new.values())
        )
        found = failing_both_of(self._sides, new, self._share, self._executors, compiled)
        for both, failed in found.items():
            self._both[both] = new[both][1], failed
        for (one, _), both in zip(asked, keys, strict=True):
            _, failed = self._both.get(both, (0, None))
            if failed is not None:
                one.alone, one.is_paired = min(one.alone or failed, failed), True

    def failing(self, asked: Mapping[PlanPool, tuple[int, int]]) -> list[int | None]:
        """Return the lowest step at which each of some pools fails by itself, from one on up to another, at which it is
        taken to; None where that is not known."""
        self._look_at(list(asked), list(asked.values()), True)
        return [self._fails[side] for side in asked]

    def served(self, asked: Sequence[tuple[PlanPool, int]]) -> list[tuple[float, float] | None]:
        """Return what pools that decode serve by themselves at a step of the grid: output tokens per second, and those
        of a user; None where that can't be known."""
        compiled = self._many(sum(self._requests(side, step) for side, step in set(asked)))
        found = served_of(self._sides, asked, self._executors, compiled)
        return [None if told is None else (told[0], 1.0 / told[1]) for told in (found[one] for one in asked)]

    def _requests(self, side: PlanPool, step: int) -> int:
        """Return how many requests are replayed for a pool, those that take longer by what they take."""
        times = _IN_LOCKSTEP if side.replica.plan.is_lockstep else _MIXED if side.pools == 1 else 1
        least = _PROMPTS if side.pools > 1 and side.place == 0 else 1
        return times * self._sides.load.count(rate_of(step)) // (least * side.replicas)

    def _look_at(self, sides: Sequence[PlanPool], steps: Sequence[tuple[int, int]], plain: bool) -> None:
        """Note the lowest step at which each pool fails, from one on up to another at which it is known to."""
        ends: dict[PlanPool, tuple[int, int]] = {}
        for side, (step, most) in zip(sides, steps, strict=True):
            low, high = ends.get(side, (step, most))
            ends[side] = min(low, step), max(high, most)
        for side, (low, high) in list(ends.items()):
            failed = self._fails.get(side, high)
            if failed is not None and self._ends.get(side) == failed < high:  # it was not looked at any higher
                failed = high
            if failed is None or failed <= low or self._passes.get(side) == failed - 1:
                ends.pop(side)
            else:
                ends[side] = max(low, self._passes.get(side, low)), min(high, failed)
        compiled = self._many(sum(_LOOKS * self._requests(side, high) for side, (_, high) in ends.items()))
        found = failing_of(self._sides, ends, self._share, self._executors, compiled, plain=plain)
        for side, failed in found.items():
            self._fails[side] = failed
            if failed is not None and failed > ends[side][0]:
                self._passes[side] = failed - 1
                self._ends[side] = ends[side][1]
