"""Plans in the order of their bounds: pruned, screened by one run, or simulated up to their capacity.

A plan goes on while it may be among the best :data:`KEPT`, and within two ties of the best: its bound is above what
the worst of them reaches, and so is the rate of its first run. What fails there is screened; what does not is tried at
ever higher rates until it fails, and cut in half between. Plans that cost alike to simulate are taken :data:`TOGETHER`
at a time, however many workers there are: the answer is the same for any number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from clustersim.search.plans.finals import TIES
from clustersim.search.plans.grid import GRID, rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.point import Row

KEPT: Final = 3
TOGETHER: Final = 4
_ABOVE: Final = 2
"""Steps of the grid above the worst of the best at which a plan is screened: 2 %."""
_UP: Final = 6
"""Steps by which a plan goes up from the rate of its first run, doubled each time."""
_DOWN: Final = 24
"""Steps below its bound at which the first plans are tried, and by which they go down: a fifth."""

Run = Callable[[Sequence[tuple[Standing, int]]], list[Row]]
"""Simulates plans, each at a step of the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """How plans are compared and simulated.

    Parameters
    ----------
    worth : callable
        What one request per second is worth on a plan: 1 over its devices, its price, or 1.
    share : float
    run : callable
    exhaustive : bool
        Whether every plan is simulated up to its capacity.
    effort : callable
        How dear a plan is to simulate; plans come in its order.
    told : callable, optional
        Called with how many plans are done, and how many there are.
    """

    worth: Callable[[Standing], float]
    share: float
    run: Run
    exhaustive: bool
    effort: Callable[[Standing], int]
    told: Callable[[int, int], None] | None = None

    def through(self, standings: Sequence[Standing]) -> None:
        """Take all plans, best bounds first; each ends pruned, screened, simulated or failed."""
        waiting = list(standings)
        while waiting:
            least = self.least(standings)
            alike = sum(self.effort(one) == self.effort(waiting[0]) for one in waiting[:TOGETHER])
            some, waiting = waiting[:alike], waiting[alike:]
            alive = []
            for one in some:
                if one.bound.step is not None and (
                    one.bound.why != "most requests per second"
                    or (not self.exhaustive and one.most * self.worth(one) <= least)
                ):
                    one.fate, one.why = "pruned", one.bound.why
                else:
                    alive.append(one)
            if alive:
                self._simulated(alive, least)
            if self.told is not None:
                self.told(len(standings) - len(waiting), len(standings))

    def least(self, standings: Sequence[Standing]) -> float:
        """Return what a plan has to reach to be among the best; 0 while there is none."""
        found = sorted((self.value(one) for one in standings if one.passed is not None), reverse=True)
        if not found:
            return 0.0
        worst = found[KEPT - 1] if len(found) >= KEPT else 0.0
        return max(worst, found[0] * (1.0 - 2.0 * TIES))

    def value(self, one: Standing) -> float:
        """Return what the capacity of a plan is worth."""
        return 0.0 if one.passed is None else rate_of(one.passed) * self.worth(one)

    def _simulated(self, alive: Sequence[Standing], least: float) -> None:
        climbs = {id(one): self._climb(one, least) for one in alive}
        going = [(one, next(climbs[id(one)])) for one in alive]
        while going:
            rows = self.run(going)
            left = []
            for (one, _), row in zip(going, rows, strict=True):
                try:
                    left.append((one, climbs[id(one)].send(row)))
                except StopIteration:
                    continue
            going = left

    def _climb(self, one: Standing, least: float) -> Generator[int, Row, None]:
        """Yield the steps at which a plan is tried, and take what came of each; last say what became of it."""
        step = self._first(one, least)
        screening = least > 0.0 and not self.exhaustive
        up = _UP
        while True:
            row = yield step
            if row["failed"] is not None:
                one.fate, one.why, one.row = "failed", row["failed"], row
                return
            if row["numbers"]["goodput.share"] >= self.share:
                one.passed, one.row = step, row
            else:
                one.failed = step
                one.row = one.row or row
                if screening and one.passed is None:
                    alone = row["numbers"].get("alone")
                    who = f"its {alone} by itself " if alone else ""
                    one.fate, one.why, one.row = "screened", f"{who}fails at {rate_of(step):g}/s", row
                    return
            if one.passed is None:
                step -= _DOWN
            elif one.failed is None and one.bound.step is None:
                step, up = step + up, 2 * up
            else:
                high = min(end for end in (one.failed, one.bound.step) if end is not None)
                if high - one.passed <= 1:
                    one.fate = "simulated"
                    return
                middle = (one.passed + high) // 2
                step, up = (middle, up) if one.failed is not None else (min(middle, one.passed + up), 2 * up)

    def _first(self, one: Standing, least: float) -> int:
        if least > 0.0 and not self.exhaustive:
            return math.ceil(math.log(least / self.worth(one)) / math.log(GRID)) + _ABOVE
        return (one.bound.step or 0) - _DOWN
