"""Plans in the order of their bounds: pruned, screened by one run, or simulated up to their capacity.

A plan goes on while it may be among the best :data:`KEPT`, and within two ties of the best: its bound is above what
the worst of them reaches, and so is the rate of its first run. What fails there is screened; what does not is tried at
ever higher rates until it fails, and cut in half between. Plans that cost alike to simulate are taken :data:`TOGETHER`
at a time, however many workers there are: the answer is the same for any number.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from clustersim.search.plans.finals import TIES
from clustersim.search.plans.grid import GRID, rate_of
from clustersim.search.plans.limits import RATE
from clustersim.search.plans.outcome import Standing
from clustersim.search.point import Row

SPENT: Final = "the effort was spent"
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
    is_spent : callable
        Whether nothing more is to be simulated, once some plan has reached something.
    told : callable, optional
        Called with how many plans are done, and how many there are.
    """

    worth: Callable[[Standing], float]
    share: float
    run: Run
    exhaustive: bool
    effort: Callable[[Standing], int]
    is_spent: Callable[[], bool]
    told: Callable[[int, int], None] | None = None

    def through(self, standings: Sequence[Standing]) -> None:
        """Take all plans, best bounds first; each ends pruned, screened, simulated, failed or open."""
        waiting = deque(standings)
        reached: list[float] = []
        while waiting:
            least = _least(reached)
            some = self._next(waiting, least)
            if some:
                self._simulated(some, least)
                reached += [self.value(one) for one in some if one.passed is not None]
            if self.told is not None:
                self.told(len(standings) - len(waiting), len(standings))

    def _next(self, waiting: deque[Standing], least: float) -> list[Standing]:
        """Take the next plans that go on, of those that cost alike, and say of those before them why they don't."""
        some: list[Standing] = []
        while waiting and len(some) < TOGETHER:
            one = waiting.popleft()
            bounded = one.bound.step is not None
            if bounded and (one.bound.why != RATE or (not self.exhaustive and one.most * self.worth(one) <= least)):
                one.fate, one.why = "pruned", one.bound.why
            elif least > 0.0 and self.is_spent():
                one.fate, one.why = "open", SPENT
            elif some and self.effort(one) != self.effort(some[0]):
                waiting.appendleft(one)
                break
            else:
                some.append(one)
        return some

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
            if self.is_spent() and (least > 0.0 or any(one.passed is not None for one in alive)):
                for one, _ in going:
                    reached = "" if one.passed is None else f"; reaches {rate_of(one.passed):g}/s at least"
                    one.fate, one.why = "open", SPENT + reached
                return

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


def _least(reached: Sequence[float]) -> float:
    """Return what a plan has to reach to be among the best, of what others reached; 0 while there is none."""
    if not reached:
        return 0.0
    found = sorted(reached, reverse=True)
    return max(found[KEPT - 1] if len(found) >= KEPT else 0.0, found[0] * (1.0 - 2.0 * TIES))
