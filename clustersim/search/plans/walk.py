"""Plans in the order of their bounds: pruned, screened by one run, or simulated up to their capacity.

Plans that cost alike to simulate are taken together. Before any with two pools, stages or SP is simulated, each of its
pools is looked at by itself (:mod:`~clustersim.search.plans.pool_alone`), level by level from the highest bound down:
what fails at all rates of a level waits for the next one. So the many that reach less than what was found are looked at
once, at an overload that shows soon. Of a level those come first whose simulation takes least; as it is known to some
steps what they reach, only those go on that could be better than a tie once enough are simulated.

A plan goes on while it may be among the best :data:`KEPT`, and within two ties of the best: its bound is above what
the worst of them reaches, and so is the rate of its first run. What fails there is screened; what does not is tried at
ever higher rates until it fails, and cut in half between. Plans that cost alike to simulate are taken :data:`TOGETHER`
at a time, however many workers there are: the answer is the same for any number.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from clustersim.search.plans.finals import KEPT, TIES
from clustersim.search.plans.grid import GRID, rate_of
from clustersim.search.plans.limits import RATE
from clustersim.search.plans.outcome import Standing
from clustersim.search.point import Row

SPENT: Final = "the effort was spent"
TOGETHER: Final = 4
FEW: Final = 2
"""Of those with two pools: each takes a while, and what it reaches spares the next ones that."""
_COARSE: Final = 3
"""Steps between the last two rates of two pools: as many as tie; the best ones are looked at closer, at length."""
_LEVEL: Final = 5
"""Steps of the grid at which two pools are looked at together: 5 %."""
_ABOVE: Final = 2
"""Steps of the grid above the worst of the best at which a plan is screened: 2 %."""
_UP: Final = 6
"""Steps by which a plan goes up from the rate of its first run, doubled each time."""
_DOWN: Final = 24
"""Steps below its bound at which the first plans are tried, and by which they go down: a fifth."""
_NEAR: Final = 3
"""… and where a pool fails by itself, doubled each time (measured: prefill pools reach 0 to 2 steps less)."""

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
        How dear a plan is to simulate; plans come in its order …
    cost : callable
        … and those of one level with two pools in that of the seconds that a run takes, at a step.
    look : callable
        Notes at which step pools of plans fail by themselves; the plans come with the steps they have to pass.
    is_spent : callable
        Whether there is no time left for a run of so many seconds, once some plan has reached something.
    told : callable, optional
        Called with how many plans are done, and how many there are.

    Attributes
    ----------
    reached : list of float
        What the capacities of those that were simulated are worth.
    """

    worth: Callable[[Standing], float]
    share: float
    run: Run
    exhaustive: bool
    effort: Callable[[Standing], int]
    cost: Callable[[Standing, int], float]
    look: Callable[[Sequence[tuple[Standing, int]]], None]
    is_spent: Callable[[float], bool]
    told: Callable[[int, int], None] | None = None
    reached: list[float] = field(default_factory=list, init=False)

    def through(self, standings: Sequence[Standing]) -> None:
        """Take all plans, best bounds first; each ends pruned, screened, simulated, failed or open."""
        done = 0
        for _, group in groupby(standings, key=self.effort):
            left = list(group)
            while left:
                waiting, left = self._level(left)
                while waiting:
                    before = len(waiting)
                    some = self._next(waiting)
                    if some:
                        self._simulated(some)
                        self.reached.extend(self.value(one) for one in some if one.passed is not None)
                    done += before - len(waiting)
                    if self.told is not None:
                        self.told(done, len(standings))

    def _level(self, group: Sequence[Standing]) -> tuple[deque[Standing], list[Standing]]:
        """Return the plans that come next, with the best or the cheapest first, and those that are left for later."""
        known = [one for one in group if one.ceiling is not None and not self._pruned(one)]
        if self.exhaustive or all(one.is_plain for one in known):
            return deque(sorted(group, key=lambda one: -self._most(one))), []
        floor = max(map(self._most, known)) / GRID**_LEVEL
        firsts = [self._first(one) if self._least > 0.0 else -math.inf for one in known]
        steps = [max(self._step(one, floor), first) for one, first in zip(known, firsts, strict=True)]
        asked = zip(known, steps, strict=True)
        self.look([(one, int(step)) for one, step in asked if one.ceiling is not None and one.ceiling > step])
        tried = zip(known, steps, firsts, strict=True)
        later = {id(one) for one, step, first in tried if first < step and (one.ceiling or 0) <= step}
        here = [one for one in group if id(one) not in later]
        here.sort(key=lambda one: (self._cost(one), -self._most(one)))
        return deque(here), [one for one in group if id(one) in later]

    def _cost(self, one: Standing) -> float:
        """Return what a run takes of two pools that were looked at; the others come behind them."""
        return math.inf if one.alone is None else self.cost(one, one.alone)

    def _step(self, one: Standing, value: float) -> int:
        """Return the first step of the grid at which a plan is worth as much."""
        return math.ceil(math.log(value / self.worth(one)) / math.log(GRID))

    @property
    def _least(self) -> float:
        """What a plan has to reach to be among the best, of what others reached; 0 while there is none."""
        found = sorted(self.reached, reverse=True)
        third = found[KEPT - 1] if len(found) >= KEPT else 0.0
        return max(third, found[0] * (1.0 - 2.0 * TIES)) if found else 0.0

    def _most(self, one: Standing) -> float:
        return math.inf if one.ceiling is None else rate_of(one.ceiling) * self.worth(one)

    def _pruned(self, one: Standing) -> bool:
        """Whether its bound says that a plan is not among the best."""
        if one.bound.step is None:
            return False
        return one.bound.why != RATE or (not self.exhaustive and one.most * self.worth(one) <= self._least)

    def _next(self, waiting: deque[Standing]) -> list[Standing]:
        """Take the next plans that go on, of those that cost alike, and say of those before them why they don't."""
        some: list[Standing] = []
        takes = 0.0
        while waiting and len(some) < (FEW if waiting[0].is_told else TOGETHER):
            one = waiting.popleft()
            if self._pruned(one):
                one.fate, one.why = "pruned", one.bound.why
            elif self._least > 0.0 and one.alone is not None and one.alone <= self._first(one):
                one.fate, one.failed = "screened", one.alone
                who = "it" if len(one.candidate.replicas) == 1 else "one of its pools by itself"
                one.why = f"at the least times of its steps {who} fails at {rate_of(one.alone):g}/s"
            elif self._least > 0.0 and (
                self.is_spent(takes) or self.is_spent(takes + self.cost(one, self._first(one)))
            ):
                one.fate, one.why = "open", SPENT
            else:
                some.append(one)
                takes += self.cost(one, self._first(one)) if self._least > 0.0 else 0.0
        return some

    def value(self, one: Standing) -> float:
        """Return what the capacity of a plan is worth."""
        return 0.0 if one.passed is None else rate_of(one.passed) * self.worth(one)

    def _simulated(self, alive: Sequence[Standing]) -> None:
        climbs = {id(one): self._climb(one) for one in alive}
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
            if self.is_spent(0.0) and (self._least > 0.0 or any(one.passed is not None for one in alive)):
                for one, _ in going:
                    reached = "" if one.passed is None else f"; reaches {rate_of(one.passed):g}/s at least"
                    one.fate, one.why = "open", SPENT + reached
                return

    def _climb(self, one: Standing) -> Generator[int, Row, None]:
        """Yield the steps at which a plan is tried, and take what came of each; last say what became of it."""
        first = self._first(one)
        screening, up, down = self._least > 0.0 and not self.exhaustive, _UP, _NEAR if one.is_told else _DOWN
        step = max(first, one.alone - _NEAR) if one.is_told and one.alone is not None else first
        fine = _COARSE if one.is_told else 1
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
                if screening and one.passed is None and step <= first:
                    alone = row["numbers"].get("alone")
                    who = f"its {alone} by itself " if alone else ""
                    one.fate, one.why, one.row = "screened", f"{who}fails at {rate_of(step):g}/s", row
                    return
            if one.passed is None:
                step = max(first, step - down) if screening else step - down
                down *= 2 if one.is_told else 1
            elif one.failed is None and one.ceiling is None:
                step, up = step + up, 2 * up
            else:
                high = min(end for end in (one.failed, one.ceiling) if end is not None)
                if high - one.passed <= fine:
                    one.fate = "simulated"
                    return
                middle = (one.passed + high) // 2
                step, up = (middle, up) if one.failed is not None else (min(middle, one.passed + up), 2 * up)

    def _first(self, one: Standing) -> int:
        """Return the lowest step at which a plan would be among the best; with nothing to compare, one below its bound.

        Where the best ones tie, plans of which it is known what they reach at most have to be better than that.
        """
        if self._least <= 0.0 or self.exhaustive:
            return (one.ceiling or 0) - (_NEAR if one.is_told else _DOWN)
        best = max(self.reached)
        if one.alone is not None and self._least >= best * (1.0 - TIES):
            return self._step(one, best * (1.0 + TIES))
        return self._step(one, self._least) + _ABOVE
