"""The best legal plan: every one is enumerated, bounded, and pruned, screened or simulated; the best at length.

::

    scenario ─► settings ─► legal plans ─► bounds ─► walk (screen, bisect) ─► finalists ─► front, best, certificate
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from clustersim.scenario.scenario import Scenario
from clustersim.search.executors import Executors
from clustersim.search.journal import Journal, key_of
from clustersim.search.load import Load, load_of
from clustersim.search.plans.bounds.limits import Bound, lesser
from clustersim.search.plans.costs import expected_s
from clustersim.search.plans.deployments import Candidate, Deployments
from clustersim.search.plans.finals import REQUESTS, SEEDS, last_longest, reopen
from clustersim.search.plans.front_bound import largest_area
from clustersim.search.plans.front_runs import Chance, Expected, filled
from clustersim.search.plans.grid import prime_up_to, rate_of, recorded
from clustersim.search.plans.looks.replays import REPLAY_S
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pools.plan_pools import PlanPool, PlanPools
from clustersim.search.plans.pools.pool_bounds import bounds_of
from clustersim.search.plans.pools.pool_looks import PoolLooks
from clustersim.search.plans.question import Question
from clustersim.search.plans.refusals import none_legal, none_serves
from clustersim.search.plans.result import Found
from clustersim.search.plans.trial import Trial, broken_rules, try_rate
from clustersim.search.plans.trials import Told, Trials
from clustersim.search.plans.walk import Walk
from clustersim.search.point import Row
from clustersim.workload.draws import DrawnWorkload

_SURE: Final = 1
"""Steps below what two pools fail at by themselves, from which on they are taken to pass."""
_FAR: Final = 256
"""Steps below its bound down to which it is looked for where a plan fails: a thirteenth …"""
_NEAR: Final = 3
"""… and below that at which it is looked at what it serves."""
_AT_ONCE: Final = 64
"""Plans that are looked at for the front before it is asked whether there is time for more."""
_FEW_PLANS: Final = 512
"""Plans of which all can be looked at in seconds, so that the front comes to its end …"""
_OF_FEW: Final = 1.0
"""… with so much of the effort for itself, at least …"""
_OF_MANY: Final = 0.1
"""… and of more."""
_CLIMB: Final = 4.0
"""Runs up to a capacity, or so (3 with two pools, 5 to 7 with one)."""
_AREA_S: Final = 2.2e-3
"""Of a plan, for the largest area that is possible (34,005 of 64 H100: 76 s)."""


class Search(Trials):
    """Searches the plans of one scenario for the highest rate that they bear."""

    def __init__(self, deployments: Deployments, question: Question, executors: Executors, journal: Journal) -> None:
        super().__init__(deployments, question, executors, journal)
        load = load_of(self.base, deployments.variants.requests, question.lasting_s)
        played = replace(self.base, workload=load.played(load.first))
        deployments.variants.requests(played)  # refuses more than may be simulated, before bounds draw it
        self.recorded = recorded(self.base)
        self._given = load
        load = replace(load, requests=min(load.requests, REQUESTS))
        part = None if self.recorded is None else prime_up_to(self.recorded)
        self.load: Load = replace(load, part=part, recorded=None)
        self.sides = PlanPools(deployments, self.load)
        self._bounds: dict[PlanPool, Bound] = {}
        self.looks = PoolLooks(self.sides, question.share, executors)
        self._each_s: dict[int, float] = {}

    def left_s(self) -> float:
        """Return the seconds of effort that are not spent."""
        return math.inf if self.question.exhaustive else max(0.0, self.question.effort_s - self.spent_s)

    def standings(self) -> list[Standing]:
        """Return every legal plan, nothing of which is known; where requests are dealt out in turn one replica does."""
        found = super().standings()
        for one in found:
            one.row_devices = one.candidate.devices // self.sides.every(one.candidate)
        return found

    def load_changes(self, candidate: Candidate, rate: float, long: bool) -> tuple[str, ...]:
        """Return what makes requests come to a plan at a rate, as many as in a short run or a long one."""
        load = self._given
        load = self._long(load, candidate) if long else replace(load, requests=self.load.requests)
        return load.changes(rate)

    def bound(self, standings: Iterable[Standing], place: int = 0) -> None:
        """Bound plans by one of their pools."""
        left = [one for one in standings if place < len(one.candidate.replicas)]
        sides = [self.sides.of(one.candidate)[place] for one in left]
        new = [side for side in dict.fromkeys(sides) if side not in self._bounds]
        self._bounds |= bounds_of(self.sides, new, self.question.share, self._executors)
        for one, side in zip(left, sides, strict=True):
            one.bound = lesser([one.bound, self._bounds[side]])

    def expect(self, asked: Sequence[Chance], effort_s: float) -> list[Expected | None]:
        """Return what plans are expected to reach so many steps below their capacity; None: unknown.

        Those come first that could be farthest out as far as is proven. No more are looked at than the effort allows.
        """
        standings = list({id(one): one for one, _ in asked}.values())
        most, known = self.looks.replayed + effort_s / REPLAY_S, set[int]()
        for some in self._nearest(standings) if effort_s > 0.0 else ():
            for place in (1, 0):
                self.looks.look([(one, (one.ceiling or 0) - _FAR) for one in some], place, plain=True)
            known |= {id(one) for one in some if one.ceiling is not None}
            if self.looks.replayed > most:
                break
        places = [at for at, (one, _) in enumerate(asked) if id(one) in known]
        steps = [(asked[at][0], (asked[at][0].ceiling or 0) - _NEAR - asked[at][1]) for at in places]
        told = dict(zip(places, self.looks.served(steps), strict=True))
        return [told.get(at) for at in range(len(asked))]

    def _nearest(self, standings: Sequence[Standing]) -> Iterator[list[Standing]]:
        """Yield plans, some at a time, those first that could be farthest out; bounded when they come."""
        self.bound(standings, 1)
        whole, left = set[int](), list(standings)
        while left:
            left.sort(key=lambda one: (id(one) in whole or one.ceiling is not None, _nearness(one)))
            first = [one for one in left[: 4 * _AT_ONCE] if id(one) not in whole]
            if first:
                self.bound(first, 0)
                whole |= {id(one) for one in first}
            else:
                yield left[:_AT_ONCE]
                left = left[_AT_ONCE:]

    def largest_area(self, standings: Sequence[Standing]) -> float:
        """Return the largest area below the front that is possible; infinite where nothing is proven."""
        for place in (1, 0):
            self.bound(standings, place)
        return largest_area(standings, self.sides, self._bounds, self._executors)

    def worth(self, standing: Standing) -> float:
        """Return what one request per second is worth on a plan."""
        one, room = standing.candidate, self.question.room
        if self.question.objective == "capacity":
            return 1.0
        return 1.0 / one.devices if self.question.objective == "capacity_per_device" else 1.0 / (room.cost(one) or 1.0)

    def trial(self, standing: Standing) -> tuple[Scenario, int]:
        """Return what is simulated of a plan, and how many replicas that stands for."""
        one = standing.candidate
        every = self.sides.every(one)
        counts = tuple(count // every for count in one.counts)
        return self.deployments.scenario(replace(one, counts=counts)), every

    def run(self, asked: Sequence[tuple[Standing, int]]) -> list[Row]:
        """Simulate plans, each at a step of the grid; what was simulated before is looked up."""
        share = 0.0 if self.question.exhaustive else self.question.share
        unfit = (self.not_launched(one) for one, _ in asked)
        found = {number: row for number, row in enumerate(unfit) if row is not None}
        refused = [] if self.question.exhaustive else self._refused_alone(asked)
        found |= {number: row for number, row in enumerate(refused) if row is not None and number not in found}
        left = [number for number in range(len(asked)) if number not in found]
        trials = (self.trial_at(*asked[number], share) for number in left)
        found |= dict(zip(left, self.rows(trials, try_rate), strict=True))
        return [found[number] for number in range(len(asked))]

    def run_at_length(self, asked: Sequence[tuple[Standing, int, int]]) -> list[Row]:
        """Simulate plans, each at a step of the grid and with so much added to its seed, checked (P and G) and long.

        What was simulated as long before is only checked. With a single seed a run is cut short that fails.
        """
        trials = [self._long_trial(*one) for one in asked]
        keys = [key_of(replace(one, audit=False).told, False) for one in trials]
        known = {at: self._journal.rows[key] for at, key in enumerate(keys) if key in self._journal.rows}
        for at in known:
            if broken := broken_rules(trials[at].scenario):
                known[at] = {"failed": broken, "numbers": {}}
        self.ran += len(known)
        left = [at for at in range(len(trials)) if at not in known]
        known |= dict(zip(left, self.rows((trials[at] for at in left), try_rate), strict=True))
        return [known[at] for at in range(len(trials))]

    def cost(self, standing: Standing, step: int) -> float:
        """Return the seconds that a run of a plan at a step of the grid takes, roughly."""
        if id(standing) not in self._each_s:
            scenario, every = self.trial(standing)
            self._each_s[id(standing)] = expected_s(scenario, 1.0 / every)
        return self._each_s[id(standing)] * self.load.count(rate_of(step))

    def trial_at(self, standing: Standing, step: int, share: float) -> Trial:
        """Return the run of a plan at a step of the grid, which ends once that share can't be reached any more."""
        scenario, every = self.trial(standing)
        hopeful = _is_hopeful(standing, step)
        return Trial(scenario=scenario, load=self.load, step=step, every=every, share=share, hopeful=hopeful)

    def _long_trial(self, standing: Standing, step: int, seed: int) -> Trial:
        scenario, every = self.trial(standing)
        scenario = replace(scenario, seed=scenario.seed + seed)
        load, drawn = self._load(standing, step), isinstance(self.base.workload, DrawnWorkload)
        share = 0.0 if drawn or self.question.exhaustive else self.question.share
        return Trial(scenario=scenario, load=load, step=step, every=every, share=share, audit=True)

    def _refused_alone(self, asked: Sequence[tuple[Standing, int]]) -> list[Row | None]:
        """Return, of each plan with two pools whose prefill pool fails at a step by itself, the row of that.

        It is not run by itself where it is expected to pass.
        """
        known = [(self.sides.prefill_alone(standing.candidate), step) for standing, step in asked]
        new = {
            (id(one), step): (one, step)
            for (one, step), (standing, _) in zip(known, asked, strict=True)
            if one is not None and not one.tells(step) and not _is_hopeful(standing, step)
        }
        share = self.question.share
        trials = (replace(one.trial, step=step, share=share) for one, step in new.values())
        for (one, step), row in zip(new.values(), self.rows(trials, try_rate), strict=True):
            one.note(step, row, share)
        return [None if one is None else one.refusal(step) for one, step in known]

    def _load(self, standing: Standing, step: int) -> Load:
        """Return the load of a finalist; the short one where it has as many requests at a step."""
        long = self._long(self.load, standing.candidate)
        return self.load if self.load.count(rate_of(step)) == long.count(rate_of(step)) else long

    def _long(self, load: Load, candidate: Candidate) -> Load:
        """Return a load with as many requests as finalists get."""
        return replace(load, requests=max(self._given.requests, REQUESTS * max(candidate.counts)))


def found_by(search: Search, told: Told | None = None) -> Found:
    """Search, and return what was found.

    Raises
    ------
    InputError
        When no plan is legal, or none can serve the workload.
    """
    question, standings = search.question, search.standings()
    if not standings:
        raise none_legal(search.base, search.refused, question.room)
    worth, walk = search.worth, _walk(search, told, exhaustive=question.exhaustive, effort_s=question.effort_s)
    standings.sort(key=lambda one: _effort(one.candidate))
    walk.through(standings)
    simulated = sorted((one for one in standings if one.passed is not None), key=walk.value, reverse=True)
    if not simulated:
        raise none_serves(standings, question.share)
    drawn = isinstance(search.base.workload, DrawnWorkload)
    finalists = last_longest(simulated, worth, search.run_at_length, seeds=SEEDS if drawn else 1, share=question.share)
    reopen(standings, worth, finalists[0])
    return Found(
        standings=standings,
        finalists=finalists,
        worth=worth,
        objective=question.objective,
        share=question.share,
        runs=search.ran,
        load=search.load_changes,
        recorded=search.recorded,
        part=search.load.part,
    )


def with_front(search: Search, found: Found) -> Found:
    """Simulate plans for the front, as far as the effort for it goes, and return what was found with it.

    The best plan, its ties and what is left open stay what they are.
    """
    question, standings = search.question, found.standings
    if question.front is None or not found.hypervolume():  # where requests have one token, no user waits for a second
        return found
    own = _OF_FEW if len(standings) <= _FEW_PLANS else _OF_MANY
    effort_s = max(search.left_s(), own * question.effort_s) if question.front_s is None else question.front_s
    left_s = math.inf if question.exhaustive else effort_s
    ends_s = search.spent_s + left_s
    walk = _walk(search, None, exhaustive=True, effort_s=ends_s)

    def simulate(chances: Sequence[Chance]) -> None:
        walk.simulate([one for one, below in chances if not below])
        walk.probe([(one, _step(one) - below) for one, below in chances if below])

    def cost(chance: Chance) -> float:
        one, below = chance
        return search.cost(one, _step(one) - below) * (1.0 if below else _CLIMB)

    told = filled(
        standings,
        question.front,
        expect=partial(search.expect, effort_s=left_s),
        simulate=simulate,
        cost=cost,
        left_s=lambda: ends_s - search.spent_s,
    )
    if question.front_s is not None or len(standings) * _AREA_S <= ends_s - search.spent_s:
        most = search.largest_area(standings)
        told = replace(told, possible=most if math.isfinite(most) else None)
    return replace(found, filled=told, runs=search.ran)


def _walk(search: Search, told: Told | None, *, exhaustive: bool, effort_s: float) -> Walk:
    return Walk(
        worth=search.worth,
        share=search.question.share,
        run=search.run,
        exhaustive=exhaustive,
        effort=lambda one: _effort(one.candidate),
        cost=search.cost,
        bound=search.bound,
        look=search.looks.look,
        look_at_both=search.looks.look_at_both,
        is_spent=lambda more: not search.question.exhaustive and search.spent_s + more > effort_s,
        told=told,
    )


def _step(one: Standing) -> int:
    """Return the step of the grid that a plan reaches, or is expected to."""
    return (one.ceiling or 0) - _NEAR if one.passed is None else one.passed


def _nearness(one: Standing) -> float:
    """Return a number that is less the more requests a plan may serve for each device, and the faster."""
    return -rate_of(one.ceiling or 0) / one.candidate.devices / (one.bound.tpot_ms or math.inf)


def _is_hopeful(standing: Standing, step: int) -> bool:
    """Whether a plan is expected to reach its share at a step, of what is known of its pools."""
    return standing.is_told and standing.alone is not None and step < standing.alone - _SURE


def _effort(candidate: Candidate) -> int:
    """Return how dear a plan is to simulate, or to look at: SP takes longest."""
    plans = candidate.plans
    plain = len(plans) == 1 and plans[0].sp.degree == plans[0].pp == 1 and not plans[0].is_lockstep
    return 0 if plain else 2 if any(one.sp.degree > 1 for one in plans) else 1
