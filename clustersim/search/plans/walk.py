"""Plans in the order of their bounds: pruned, screened by one run, or simulated up to their capacity.

Plans that cost alike to simulate are taken together. They are bounded when they come, so that of two pools one often
tells enough. Before any with two pools, stages or SP is simulated, each of its pools is looked at by itself
(:mod:`~clustersim.search.plans.looks.alone`): what fails at the rate that is to be beaten is done with, and of the
others it is found out where they fail. The best come first, and of those that tie the cheapest to simulate; as it is
known to some steps what they reach, only those go on that could be better than a tie once enough are simulated.

A plan goes on while it may be among the best :data:`KEPT`, and within two ties of the best: its bound is above what
the worst of them reaches, and so is the rate of its first run. What fails there is screened; what does not is tried at
ever higher rates until it fails, and cut in half between. Plans that cost alike to simulate are taken :data:`TOGETHER`
at a time, however many workers there are: the answer is the same for any number.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import field
from itertools import groupby
from typing import Final

from clustersim.search.plans.bounds.limits import RATE
from clustersim.search.plans.finals import KEPT, TIES
from clustersim.search.plans.grid import GRID, rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.point import Row
from clustersim.values import dataclass

SPENT: Final = "the effort was spent"
TOGETHER: Final = 4
FEW: Final = 2
"""Of those with two pools: each takes a while, and what it reaches spares the next ones that."""
_HALF: Final = 0.5
"""Of the best bound: what reaches less is not told apart while there is nothing to compare."""
_FAR: Final = 700
"""Steps: a thousandth. Bounds spread prompts over replicas in lockstep evenly, and are far above what these reach."""
_ABOVE: Final = 2
"""Steps of the grid above the worst of the best at which a plan is screened: 2 %."""
_UP: Final = 6
"""Steps by which a plan goes up from the rate of its first run, doubled each time."""
_DOWN: Final = 24
"""Steps below its bound at which the first plans are tried, and by which they go down, doubled each time: a fifth …"""
_LOWER: Final = 48
"""… up to so many: runs at rates that are far too low last longest."""
_SPARE: Final = 8
"""Steps below what one of their pools fails at by itself that the best of several plans reach (measured: 1 to 6) …"""
_PAIRS: Final = 32
"""Plans with two pools that are looked at together at a time."""
_NEAR: Final = 3
"""Steps below what a pool fails at by itself, doubled each time (measured: prefill pools reach 0 to 2 steps less) …"""
_NEARER: Final = 2
"""… and below what two pools fail at together, but for lockstep (measured: 2; in lockstep 3 to 5)."""

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
    bound : callable
        Bounds plans by one of their pools.
    look : callable
        Notes at which step one of their pools fails by itself; the plans come with the steps they have to pass.
    look_at_both : callable
        Notes at which step two pools fail together.
    is_spent : callable
        Whether there is no time left for a run of so many seconds, once some plan has reached something.
    told : callable, optional
        Called with how many plans are done, and how many there are.

    Attributes
    ----------
    reached : list of float
        What the capacities of those that were simulated are worth …
    promised : list of float
        … and what looks let expect, while no level is simulated.
    dear : list of Standing
        What there was no time for, while there was some for others.
    """

    worth: Callable[[Standing], float]
    share: float
    run: Run
    exhaustive: bool
    effort: Callable[[Standing], int]
    cost: Callable[[Standing, int], float]
    bound: Callable[[Sequence[Standing], int], None]
    look: Callable[[Sequence[tuple[Standing, int]], int], None]
    look_at_both: Callable[[Sequence[tuple[Standing, int]]], None]
    is_spent: Callable[[float], bool]
    told: Callable[[int, int], None] | None = None
    reached: list[float] = field(default_factory=list, init=False)
    promised: list[float] = field(default_factory=list, init=False)
    dear: list[Standing] = field(default_factory=list, init=False)

    def through(self, standings: Sequence[Standing]) -> None:
        """Take all plans, best bounds first; each ends pruned, screened, simulated, failed or open."""
        done = 0
        levels = [list(group) for _, group in groupby(standings, key=self.effort)]
        for groups in (levels[:1], levels[1:]):
            waiting, promised = self._in_order_of(groups)
            while waiting:
                before = len(waiting)
                some = self._next(waiting)
                if some:
                    self.simulate(some)
                    self.reached.extend(self.value(one) for one in some if one.passed is not None)
                done += before - len(waiting)
                if some and promised > max(self.reached, default=0.0):
                    waiting, promised = self._in_order_of([list(waiting)])[0], 0.0
                if self.told is not None:
                    self.told(done, len(standings))
        self._leave(self.dear)

    def _in_order_of(self, groups: Sequence[list[Standing]]) -> tuple[deque[Standing], float]:
        """Bound plans of several levels and look at them before any is simulated; return them with the best first.

        What looks promise is taken for reached until all are looked at, so that there are few of the dearest levels. It
        is returned, too: where less is reached, plans that fell short of it alone are to be looked at again.
        """
        ordered: list[Standing] = []
        for group in groups:
            ordered += self._in_order(group)
        promised = max(self.promised, default=0.0)
        self.promised.clear()
        return deque(ordered if len(groups) == 1 else sorted(ordered, key=self._place)), promised

    def _place(self, one: Standing) -> tuple[bool, bool, float, float]:
        """Return what plans are ordered by: the best, and the cheapest of those that tie.

        Replicas in lockstep come behind those of which looks tell to a few steps what they reach, if they don't.
        """
        return not one.is_known, one.is_lockstep and not one.is_told, self._ties(one), self._cost(one)

    def _in_order(self, group: Sequence[Standing]) -> deque[Standing]:
        """Bound plans and look at them; return them with the best first, and the cheapest of those that tie.

        Of two pools the second one comes first: there are fewest of these, and most plans fail for them.
        """
        left = list(group)
        for place in (1, 0):
            self.bound(left, place)
            if self.exhaustive:
                continue
            left = [one for one in left if not self._pruned(one)]
            steps = [(one, self._passing(one, left)) for one in left if one.ceiling is not None and not one.is_plain]
            self.look(steps, place)
            left = [one for one in left if self._least <= 0.0 or not self._is_beaten(one)]
        if not self.exhaustive:
            self._look_at_both(left)
        if self.exhaustive or all(one.is_plain for one in group):
            return deque(sorted(group, key=lambda one: -self._most(one)))
        return deque(sorted(group, key=self._place))

    def _look_at_both(self, left: Sequence[Standing]) -> None:
        """Look at both pools of plans together, best first, as far as these may be among the best.

        What looks promise is noted; with ``_least`` it goes up, so that fewer and fewer are looked at.
        """
        pairs = [one for one in left if one.is_known and one.alone is not None and len(one.candidate.replicas) > 1]
        pairs.sort(key=lambda one: (-self._most(one), self._cost(one)))
        for start in range(0, len(pairs), _PAIRS):
            some = [one for one in pairs[start : start + _PAIRS] if self._least <= 0.0 or not self._is_beaten(one)]
            if not some:
                return
            least = self._least or self._most(some[0]) * _HALF
            self.look_at_both([(one, self._step(one, least)) for one in some])
            told = [rate_of(one.ceiling - _SPARE) * self.worth(one) for one in some if one.is_told and one.ceiling]
            self.promised[:] = [max([*told, *self.promised])] if told else self.promised

    def _passing(self, one: Standing, group: Sequence[Standing]) -> int:
        """Return the step that a plan has to pass to be looked at closer: with nothing to compare, half the best."""
        if self._least > 0.0:
            return self._first(one)
        if one.is_lockstep:
            return (one.ceiling or 0) - _FAR
        return self._step(one, max(map(self._most, group)) * _HALF)

    def _is_beaten(self, one: Standing) -> bool:
        """Whether a plan was looked at, and reaches less than it has to."""
        return one.alone is not None and one.alone <= self._first(one)

    def _ties(self, one: Standing) -> float:
        """Return a number that is less the more a plan may reach, and the same for what ties."""
        most = self._most(one)
        return -math.floor(math.log(most) / math.log(1.0 + TIES)) if 0.0 < most < math.inf else -most

    def _cost(self, one: Standing) -> float:
        """Return what a run takes of plans that were looked at; the others come behind them."""
        return math.inf if one.alone is None else self.cost(one, one.alone)

    def _step(self, one: Standing, value: float) -> int:
        """Return the first step of the grid at which a plan is worth as much."""
        return math.ceil(math.log(value / self.worth(one)) / math.log(GRID))

    @property
    def _least(self) -> float:
        """What a plan has to reach to be among the best, of what others reached; 0 while there is none."""
        found = sorted([*self.reached, *self.promised], reverse=True)
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
        while waiting and len(some) < (FEW if len(waiting[0].candidate.replicas) > 1 else TOGETHER):
            one = waiting.popleft()
            if self._pruned(one):
                one.fate, one.why = "pruned", one.bound.why
            elif self._least > 0.0 and one.alone is not None and self._is_beaten(one):
                self._screen(one)
            elif self._least > 0.0 and self.is_spent(self.cost(one, self._first(one))):
                one.why = SPENT
                self.dear.append(one)
            else:
                some.append(one)
        return some

    def _leave(self, left: Sequence[Standing]) -> None:
        """Say of plans for which there was no time what is known now that others were simulated."""
        for one in left:
            if self._pruned(one):
                one.fate, one.why = "pruned", one.bound.why
            elif self._is_beaten(one):
                self._screen(one)

    def _screen(self, one: Standing) -> None:
        assert one.alone is not None
        one.fate, one.failed = "screened", one.alone
        who = "it" if len(one.candidate.replicas) == 1 else "both pools" if one.is_paired else "one of its pools"
        by = "" if len(one.candidate.replicas) == 1 or one.is_paired else " by itself"
        verb = "fail" if one.is_paired else "fails"
        one.why = f"at the least times of its steps {who}{by} {verb} at {rate_of(one.alone):g}/s"

    def value(self, one: Standing) -> float:
        """Return what the capacity of a plan is worth."""
        return 0.0 if one.passed is None else rate_of(one.passed) * self.worth(one)

    def simulate(self, alive: Sequence[Standing]) -> None:
        """Simulate plans: up to their capacity, but for those that fail at the rate that they are screened at."""
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

    def probe(self, asked: Sequence[tuple[Standing, int]]) -> None:
        """Simulate plans, each at a step; what becomes of them is not told by it."""
        for (one, step), row in zip(asked, self.run(asked), strict=True):
            if row["failed"] is None and row["numbers"]["goodput.share"] >= self.share:
                one.passing[step] = row

    def _climb(self, one: Standing) -> Generator[int, Row, None]:
        """Yield the steps at which a plan is tried, and take what came of each; last say what became of it."""
        first = self._first(one)
        screening, up, down = self._least > 0.0 and not self.exhaustive, _UP, _near(one)
        step = max(first, one.alone - _near(one)) if one.is_told and one.alone is not None else first
        while True:
            row = yield step
            if row["failed"] is not None:
                one.fate, one.why, one.row = "failed", row["failed"], row
                return
            if row["numbers"]["goodput.share"] >= self.share:
                one.passed, one.row = step, row
                one.passing[step] = row
            else:
                one.failed = step
                one.row = one.row or row
                if screening and one.passed is None and step <= first:
                    alone = row["numbers"].get("alone")
                    who = f"its {alone} by itself " if alone else ""
                    one.fate, one.why, one.row = "screened", f"{who}fails at {rate_of(step):g}/s", row
                    return
            if one.passed is None and step < first - _FAR:
                one.fate, one.why = "screened", f"fails at {rate_of(step):g}/s"
                return
            if one.passed is None:
                step = max(first, step - down) if screening else step - down
                down = min(2 * down, _LOWER)
            elif one.failing is None:
                step, up = step + up, 2 * up
            else:
                high = one.failing
                assert high is not None
                if high - one.passed <= one.apart:
                    one.fate = "simulated"
                    return
                middle = (one.passed + high) // 2
                step, up = (middle, up) if one.failed is not None else (min(middle, one.passed + up), 2 * up)

    def _first(self, one: Standing) -> int:
        """Return the lowest step at which a plan would be among the best; with nothing to compare, one below its bound.

        Where the best ones tie, plans of which it is known what they reach at most have to be better than that.
        """
        if self._least <= 0.0 or self.exhaustive:
            return (one.ceiling or 0) - _near(one)
        best = max([*self.reached, *self.promised])
        if one.alone is not None and self._least >= best * (1.0 - TIES):
            return self._step(one, best * (1.0 + TIES))
        return self._step(one, self._least) + _ABOVE


def _near(one: Standing) -> int:
    """Return how many steps below what a plan is known to fail at it is tried."""
    if not one.is_told:
        return _DOWN
    return _NEARER if one.is_paired and not one.is_lockstep else _NEAR
