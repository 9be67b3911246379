"""The search for the front, behind the answer: what may be farthest out is looked at, and simulated in time.

The best plan, its ties, and what the certificate says of the others stay what they are; of a plan that runs for the
front take up to its capacity the table says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.search.plans.bounds.limits import Bound
from clustersim.search.plans.front.bound import largest_area
from clustersim.search.plans.front.runs import BELOW, NEAR, Chance, Family, filled, is_left_out
from clustersim.search.plans.grid import GRID, SLOWEST, rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pools.plan_pools import PlanPool
from clustersim.search.plans.result import Found
from clustersim.search.plans.search import Search

_LOOKS: Final = 0.5
"""Of the effort, after which no pool that decodes is looked at any more."""
_FAR: Final = 256
"""Steps below that at which it is known to down to which it is looked for where a pool fails: a thirteenth."""
_ALIGNED: Final = 8
"""Steps between those at which it is looked at what pools serve: the requests of a rate are made once."""
_AT_ONCE: Final = 8
"""Pools that are looked at before it is asked whether there is time for more."""
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
        self._alone: dict[object, float] = {}
        """Step at which a pool of one replica fails, or so."""

    @property
    def left_s(self) -> float:
        """The seconds of effort that are left."""
        return math.inf if self._search.question.exhaustive else max(0.0, self._search.ends_s - self._search.spent_s)

    def filled(self, share: float) -> Found:
        """Simulate plans until no run is expected to add more than a share, or there is no time; return all with it."""
        search, found = self._search, self._found
        told = filled(
            found.standings,
            self._families(),
            share,
            able=self._able,
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
        for place in (1, 0):
            self._search.looks.look([(one, (one.ceiling or 0) - _FAR) for one, _, _ in chances], place, plain=True)
        climbing = [one for one, _, climbs in chances if climbs]
        fates = [(one, one.fate, one.why) for one in climbing]
        try:
            self._walk.simulate(climbing)
        finally:
            for one, fate, why in fates:
                if one.fate == "simulated":
                    one.why = f"for the front; before, it was {fate}: {why}"
                else:
                    one.fate, one.why = fate, why
        self._walk.probe([(one, step) for one, step, climbs in chances if not climbs])

    def _cost(self, chance: Chance) -> float:
        one, step, climbs = chance
        return self._search.cost(one, step) * (_CLIMB if climbs else 1.0)

    def _families(self) -> list[Family]:
        """Return plans by the pool that decodes, what is expected of these, and that can't be looked at left out.

        Those come first that could be farthest out as far as is proven. No more are looked at than the effort allows.
        """
        search, alike = self._search, dict[PlanPool, list[Standing]]()
        for one in self._found.standings:
            if one.passed is not None or is_left_out(one):
                alike.setdefault(search.sides.of(one.candidate)[-1], []).append(one)
        families = list[Family]()
        for some in self._nearest(alike):
            fails = self._failing({side: search.bounds[side].step for side in some})
            tops = {side: step - NEAR for side, step in fails.items() if step is not None}
            tops = {side: -(-top // _ALIGNED) * _ALIGNED for side, top in tops.items()}
            asked = [(side, max(top - below, SLOWEST)) for side, top in tops.items() for below in BELOW]
            told = search.looks.served(asked)
            for at, (side, top) in enumerate(tops.items()):
                some_of = slice(at * len(BELOW), (at + 1) * len(BELOW))
                each = served_at([step for _, step in asked[some_of]], told[some_of])
                if each is not None:
                    families += _by_devices(sorted(alike[side], key=lambda one: search.cost(one, 0)), top, each)
        return families

    def _nearest(self, alike: Mapping[PlanPool, Sequence[Standing]]) -> Iterator[list[PlanPool]]:
        """Yield pools, some at a time, those first with which plans could be farthest out; as far as there is time."""
        search, left = self._search, list(alike)
        for start in range(0, len(left), _AT_ONCE):
            for place in (1, 0):
                plans = [alike[side][0] for side in left[start : start + _AT_ONCE] if side.place == place]
                if search.lacks_time(plans, place):
                    left = [side for side in left if side in search.bounds]
                    break
                search.bound(plans, place)
        devices = {side: min(one.candidate.devices for one in alike[side]) for side in left}
        left.sort(key=lambda side: _nearness(search.bounds[side], devices[side]))
        for start in range(0, len(left), _AT_ONCE):
            if search.spent_s >= self._looks_end_s:
                return
            yield left[start : start + _AT_ONCE]

    def _able(self, plans: Sequence[Standing], step: int) -> tuple[Standing | None, int]:
        """Return the first of some plans none of whose pools fails at a step, and the highest that any bears."""
        highest = SLOWEST
        for start in range(0, len(plans), _AT_ONCE):
            some = plans[start : start + _AT_ONCE]
            pools = [self._search.sides.of(one.candidate) for one in some]
            second = self._failing({each[-1]: self._search.bounds[each[-1]].step for each in pools})
            first = (each for each in pools if len(each) > 1 and self._about(each[0]) >= step)
            looked = self._failing({each[0]: second[each[-1]] for each in first})
            self._note(looked)
            for one, each in zip(some, pools, strict=True):
                ends = one.failing, second[each[-1]], looked.get(each[0], self._about(each[0]))
                known = [end for end in ends if end is not None]
                limit = max(math.floor(min(known)) - NEAR, SLOWEST if one.passed is None else one.passed)
                if limit >= step:
                    return one, limit
                highest = max(highest, limit)
        return None, highest

    def _about(self, side: PlanPool) -> float:
        """Return about where a pool fails, of what is known of more or fewer of its replicas; infinite: not known."""
        return self._alone.get(_replica(side), math.inf) + _steps(side.replicas)

    def _note(self, fails: Mapping[PlanPool, int | None]) -> None:
        """Take note of where pools fail."""
        for side, step in fails.items():
            if step is not None:
                self._alone.setdefault(_replica(side), step - _steps(side.replicas))

    def _failing(self, asked: Mapping[PlanPool, int | None]) -> dict[PlanPool, int | None]:
        """Return at which step pools fail by themselves, each with one at which it is taken to; None: not known."""
        ends = {side: (high - _FAR, high) for side, high in asked.items() if high is not None}
        return dict.fromkeys(asked) | dict(zip(ends, self._search.looks.failing(ends), strict=True))

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


def served_at(steps: Sequence[int], told: Sequence[tuple[float, float] | None]) -> list[tuple[float, float]] | None:
    """Return what a pool serves at some steps, the highest first; None where nothing is known of it.

    At a low rate no request may come in the time that it is looked at: there users get their tokens as at the rate
    above, and a device makes fewer by as much as the rates differ.
    """
    found = list[tuple[float, float]]()
    for at, one in enumerate(told):
        if one is not None and min(one) > 0.0:
            found.append(one)
        elif one is None or not found:
            return None
        else:
            high, right = found[-1]
            found.append((high * rate_of(steps[at]) / rate_of(steps[at - 1]), right))
    return found


def _by_devices(plans: Sequence[Standing], top: int, served: Sequence[tuple[float, float]]) -> Iterator[Family]:
    """Yield plans with the same pool that decodes by how many devices they have."""
    for devices in dict.fromkeys(one.candidate.devices for one in plans):
        some = [one for one in plans if one.candidate.devices == devices]
        yield Family(plans=some, top=top, expected=np.array(served) / (devices, 1.0))


def _replica(side: PlanPool) -> object:
    """Return what pools that compute prompts have in common but for how many replicas they have."""
    plan = side.replica.plan
    return side.setting, side.replica.kind, replace(plan, sp=replace(plan.sp, decode=None))


def _steps(replicas: int) -> float:
    """Return by how many steps more so many replicas fail than one."""
    return math.log(replicas) / math.log(GRID)


def _nearness(bound: Bound, devices: int) -> float:
    """Return a number that is less the more requests a pool may serve for each device, and the faster."""
    return -rate_of(bound.step or 0) / devices / (bound.tpot_ms or math.inf)
