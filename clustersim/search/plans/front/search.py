"""The search for the front, behind the answer: what may be farthest out is looked at, and simulated in time.

The best plan, its ties, and what the certificate says of the others stay what they are; of a plan that runs for the
front take up to its capacity the table says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from clustersim.search.plans.front.bound import largest_area
from clustersim.search.plans.front.runs import Chance, Expected, filled
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.result import Found
from clustersim.search.plans.search import Search

_LOOKS: Final = 0.5
"""Of the effort, after which no plan is looked at any more."""
_FAR: Final = 256
"""Steps below its bound down to which it is looked for where a plan fails: a thirteenth …"""
_NEAR: Final = 3
"""… and below that at which it is looked at what it serves."""
_AT_ONCE: Final = 64
"""Plans that are looked at before it is asked whether there is time for more, at most …"""
_AT_FIRST: Final = 8
"""… and before it is known how long that takes."""
_PLACE_S: Final = 5e-6
"""Of each plan, each time that they are put in order (34,005 take 0.15 s)."""
_CLIMB: Final = 4.0
"""Runs up to a capacity, or so (3 with two pools, 5 to 7 with one)."""
_AREA_S: Final = 2.2e-3
"""Of a plan, for the largest area that is possible (34,005 of 64 H100: 76 s)."""


class FrontSearch:
    """Searches for the front among the plans of a search that has its answer.

    Parameters
    ----------
    search : Search
    found : Found
    """

    def __init__(self, search: Search, found: Found) -> None:
        self._search, self._found = search, found
        question = search.question
        search.waiting = None
        search.ends_s = question.effort_s if question.front_s is None else search.spent_s + question.front_s
        self._looks_end_s = search.spent_s + _LOOKS * self.left_s
        self._walk = search.walk(exhaustive=True)

    @property
    def left_s(self) -> float:
        """The seconds of effort that are left."""
        return math.inf if self._search.question.exhaustive else max(0.0, self._search.ends_s - self._search.spent_s)

    def filled(self, share: float) -> Found:
        """Simulate plans until no run is expected to add more than a share, or there is no time; return all with it."""
        search, found = self._search, self._found
        told = filled(
            found.standings,
            share,
            expect=self._expect,
            simulate=self._simulate,
            cost=self._cost,
            left_s=lambda: self.left_s,
            tell=self._tell,
        )
        area_s = len(found.standings) * _AREA_S
        if search.question.front_s is not None or area_s <= self.left_s:
            search.prepared_s += area_s
            most = self._largest_area()
            told = replace(told, possible=most if math.isfinite(most) else None)
        return replace(found, filled=told, runs=search.ran)

    def _tell(self, more_s: float) -> None:
        """Take note of the seconds of the runs that may still add something."""
        self._search.front_s = more_s
        self._search.tell()

    def _simulate(self, chances: Sequence[Chance]) -> None:
        climbing = [one for one, below in chances if not below]
        fates = [(one, one.fate, one.why) for one in climbing]
        try:
            self._walk.simulate(climbing)
        finally:
            for one, fate, why in fates:
                if one.fate == "simulated":
                    one.why = f"for the front; before, it was {fate}: {why}"
                else:
                    one.fate, one.why = fate, why
        self._walk.probe([(one, _step(one) - below) for one, below in chances if below])

    def _cost(self, chance: Chance) -> float:
        one, below = chance
        return self._search.cost(one, _step(one) - below) * (1.0 if below else _CLIMB)

    def _expect(self, asked: Sequence[Chance]) -> list[Expected | None]:
        """Return what plans are expected to reach so many steps below their capacity; None: unknown.

        Those come first that could be farthest out as far as is proven. No more are looked at than the effort allows.
        """
        looks, known = self._search.looks, set[int]()
        for some in self._nearest(list({id(one): one for one, _ in asked}.values())):
            for place in (1, 0):
                looks.look([(one, (one.ceiling or 0) - _FAR) for one in some], place, plain=True)
            known |= {id(one) for one in some if one.ceiling is not None}
        places = [at for at, (one, _) in enumerate(asked) if id(one) in known]
        steps = [(asked[at][0], (asked[at][0].ceiling or 0) - _NEAR - asked[at][1]) for at in places]
        told = dict(zip(places, looks.served(steps), strict=True))
        return [told.get(at) for at in range(len(asked))]

    def _nearest(self, standings: Sequence[Standing]) -> Iterator[list[Standing]]:
        """Yield plans, some at a time, those first that could be farthest out; bounded when they come, in time."""
        whole, left, place, count = set[int](), list(standings), 1, _AT_FIRST
        first = left
        while left and self._search.spent_s < self._looks_end_s:
            if first:
                if self._search.lacks_time(first, place):
                    return
                self._search.bound(first, place)
                whole |= {id(one) for one in first if not place}
            else:
                some, left, before_s = left[:count], left[count:], self._search.spent_s
                yield some
                each_s = (self._search.spent_s - before_s) / len(some)
                count = int(min(_AT_ONCE, max(1.0, (self._looks_end_s - self._search.spent_s) / (each_s or _PLACE_S))))
            place = 0
            self._search.prepared_s += _PLACE_S * len(left)
            left.sort(key=lambda one: (id(one) in whole or one.ceiling is not None, _nearness(one)))
            first = [one for one in left[: 4 * _AT_ONCE] if id(one) not in whole]

    def _largest_area(self) -> float:
        """Return the largest area below the front that is possible; infinite where nothing is proven."""
        search, standings = self._search, self._found.standings
        for place in (1, 0):
            search.bound(standings, place)
        return largest_area(standings, search.sides, search.bounds, search.executors)


def with_front(search: Search, found: Found, begun: Callable[[float], None]) -> Found:
    """Return what was found with the front as far as the effort for it goes; call before with the seconds of that.

    Where requests have one token, no user waits for a second, and there is none.
    """
    share = search.question.front
    if share is None or not found.hypervolume():
        return found
    front = FrontSearch(search, found)
    begun(front.left_s)
    return front.filled(share)


def _step(one: Standing) -> int:
    """Return the step of the grid that a plan reaches, or is expected to."""
    return (one.ceiling or 0) - _NEAR if one.passed is None else one.passed


def _nearness(one: Standing) -> float:
    """Return a number that is less the more requests a plan may serve for each device, and the faster."""
    return -rate_of(one.ceiling or 0) / one.candidate.devices / (one.bound.tpot_ms or math.inf)
