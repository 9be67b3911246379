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

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import groupby
from typing import Final

from clustersim.search.plans.finals import FINALISTS, TIES
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.walk.climb import climb
from clustersim.search.plans.walk.order import Order
from clustersim.search.plans.walk.reached import Reached
from clustersim.search.point import Row
from clustersim.search.queue import may_be_borne
from clustersim.values import dataclass

SPENT: Final = "the effort was spent"
TOGETHER: Final = 4
FEW: Final = 2
"""Of those with two pools: each takes a while, and what it reaches spares the next ones that."""
_RATES: Final = 2.5
"""At which a plan is simulated at length, or so."""
_NEXT: Final = 64
"""Plans that are next, of which it is told how long they take."""

Run = Callable[[Sequence[tuple[Standing, int]]], list[Row]]
"""Simulates plans, each at a step of the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """How plans are compared and simulated.

    Parameters
    ----------
    reached : Reached
        What they are held against.
    order : Order
    share : float
    run : callable
    refused : callable
        Returns rows of plans that fail at a step before they are run: the prefill pool does by itself; None of others.
    effort : callable
        How dear a plan is to simulate; plans come in its order.
    begins : callable
        Returns the seconds in which it is known whether a plan goes on at a step: of its prefill pool, or of all.
    cost : callable
        Returns the seconds that a run of a plan takes, at a step …
    last : callable
        … and those of its runs at length.
    is_spent : callable
        Whether there is no time left for so many seconds, once some plan has reached something.
    told : callable
        Called with how many plans are done, and how many there are.

    Attributes
    ----------
    waiting : deque of Standing
        Those of one level that are to come, best first …
    later : list of Standing
        … and those that are not in order yet.
    dear : list of Standing
        What there was no time for, while there was some for others.
    passed : list of Standing
        Those that passed at some rate.
    """

    reached: Reached
    order: Order
    share: float
    run: Run
    refused: Callable[[Sequence[tuple[Standing, int]]], list[Row | None]]
    effort: Callable[[Standing], int]
    begins: Callable[[Standing, int], float]
    cost: Callable[[Standing, int], float]
    last: Callable[[Standing], float]
    is_spent: Callable[[float], bool]
    told: Callable[[int, int], None]
    waiting: deque[Standing] = field(default_factory=deque, init=False)
    later: list[Standing] = field(default_factory=list, init=False)
    dear: list[Standing] = field(default_factory=list, init=False)
    passed: list[Standing] = field(default_factory=list, init=False)

    def through(self, standings: Sequence[Standing]) -> None:
        """Take all plans, best bounds first; each ends pruned, screened, simulated, failed or open."""
        done, waiting = 0, self.waiting
        levels = [list(group) for _, group in groupby(standings, key=self.effort)]
        for groups, later in ((levels[:1], levels[1:]), (levels[1:], [])):
            self.later[:] = itertools.chain.from_iterable([*groups, *later])
            promised = self._wait(groups)
            self.later[:] = itertools.chain.from_iterable(later)
            done += sum(map(len, groups)) - len(waiting)
            while waiting:
                before = len(waiting)
                some = self._next()
                if some:
                    self.simulate(some)
                    passed = [one for one in some if one.passed is not None]
                    self.passed.extend(passed)
                    self.reached.values.extend(map(self.reached.value, passed))
                done += before - len(waiting)
                if some and promised > max(self.reached.values, default=0.0):
                    before, promised = len(waiting), 0.0
                    self._wait([list(waiting)])
                    done += before - len(waiting)
                self.told(done, len(standings))
        self._leave(self.dear)

    def _wait(self, groups: Sequence[list[Standing]]) -> float:
        """Let plans wait in their order, but for those that there is no time to bound; return what looks promise."""
        ordered, late, promised = self.order.of(groups)
        self.waiting.clear()
        self.waiting.extend(ordered)
        for one in late:
            self._spare(one)
        return promised

    def _spare(self, one: Standing) -> None:
        one.why = SPENT
        self.dear.append(one)

    def left_s(self, most_s: float) -> float:
        """Return the seconds of one run of each plan that is next and has time for it; all where none is known."""
        if self.later:
            return most_s
        reached, found = self.reached, 0.0
        for one in itertools.islice(self.waiting, _NEXT):
            if not reached.is_pruned(one) and not (reached.least > 0.0 and reached.is_beaten(one)):
                costs_s = self.begins(one, reached.start(one))
                found += costs_s if found + costs_s <= most_s else 0.0
        return found * len(self.waiting) / _NEXT if len(self.waiting) > _NEXT and reached.exhaustive else found

    def at_length_s(self) -> float:
        """Return the seconds that the best plans so far take at length, at some rates each."""
        best = sorted(self.passed, key=self.reached.value, reverse=True)[:FINALISTS]
        least = (1.0 - 2.0 * TIES) * self.reached.value(best[0]) if best else 0.0
        return _RATES * sum(self.last(one) for one in best if self.reached.value(one) >= least)

    def _next(self) -> list[Standing]:
        """Take the next plans that go on, of those that cost alike, and say of those before them why they don't."""
        some: list[Standing] = []
        waiting, least, taken_s = self.waiting, self.reached.least, 0.0
        while waiting and len(some) < (FEW if len(waiting[0].candidate.replicas) > 1 else TOGETHER):
            one = waiting.popleft()
            if self.reached.is_pruned(one):
                one.fate, one.why = "pruned", one.bound.why
                continue
            if least > 0.0 and self.reached.is_beaten(one):
                self._screen(one)
                continue
            costs_s = self.begins(one, self.reached.start(one))
            if least > 0.0 and self.is_spent(taken_s + costs_s):
                if some and not self.is_spent(costs_s):  # the others may take less than is expected
                    waiting.appendleft(one)
                    break
                self._spare(one)
                continue
            taken_s += costs_s
            some.append(one)
        return some

    def _leave(self, left: Sequence[Standing]) -> None:
        """Say of plans for which there was no time what is known now that others were simulated."""
        for one in left:
            if self.reached.is_pruned(one):
                one.fate, one.why = "pruned", one.bound.why
            elif self.reached.is_beaten(one):
                self._screen(one)

    def _screen(self, one: Standing) -> None:
        assert one.alone is not None
        one.fate, one.failed = "screened", one.alone
        who = "" if len(one.candidate.replicas) == 1 else ", both pools," if one.is_paired else ", one pool alone,"
        one.why = f"look{who} fails at {rate_of(one.alone):.4g}/s"

    def simulate(self, alive: Sequence[Standing]) -> None:
        """Simulate plans: up to their capacity, but for those that fail at the rate that they are screened at.

        Those stay open for whose next run there is no time, once some plan has reached something.
        """
        climbs = {id(one): climb(one, self.reached, self.share) for one in alive}
        going = [(one, next(climbs[id(one)])) for one in alive]
        while going:
            told = dict(zip(range(len(going)), self.refused(going), strict=True))
            left = [number for number, row in told.items() if row is None]
            if self.reached.least > 0.0 or any(one.passed is not None for one in alive):
                left = list(self._in_time(going, left))
            told |= dict(zip(left, self.run([going[number] for number in left]), strict=True))
            before, going = going, []
            for (one, _), row in zip(before, told.values(), strict=True):
                if row is not None:
                    with suppress(StopIteration):
                        going.append((one, climbs[id(one)].send(row)))
            self.reached.going[:] = [self.reached.value(one) for one in alive if one.passed is not None]
        self.reached.going.clear()

    def _in_time(self, asked: Sequence[tuple[Standing, int]], left: Sequence[int]) -> Iterator[int]:
        """Yield the numbers of plans for whose next run there is time; the others stay open."""
        taken_s = 0.0
        for number in left:
            one, step = asked[number]
            costs_s = self.cost(one, step) + (self.last(one) if one.passed is None else 0.0)
            if self.is_spent(taken_s + costs_s):
                reached = "" if one.passed is None else f"; reaches {rate_of(one.passed):g}/s at least"
                one.fate, one.why = "open", SPENT + reached
                continue
            taken_s += costs_s
            yield number

    def probe(self, asked: Sequence[tuple[Standing, int]]) -> None:
        """Simulate plans, each at a step; what becomes of them is not told by it."""
        for (one, step), row in zip(asked, self.run(asked), strict=True):
            if may_be_borne(row, self.share):
                one.passing[step] = row
