"""The best legal plan: every one is enumerated, bounded, and pruned, screened or simulated; the best at length.

::

    scenario ─► settings ─► legal plans ─► bounds ─► walk (screen, bisect) ─► finalists ─► front, best, certificate
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from clustersim.scenario.scenario import Scenario
from clustersim.search.executors import Executors
from clustersim.search.journal import Journal, key_of
from clustersim.search.load import Load, load_of
from clustersim.search.plans.bounds.limits import Bound, lesser
from clustersim.search.plans.costs import PLAN_S, bound_s, expected_s, looks_s
from clustersim.search.plans.deployments import Candidate, Deployments
from clustersim.search.plans.finals import OWN, REQUESTS, SEEDS, TIES, last_longest, reopen, settle
from clustersim.search.plans.grid import prime_up_to, rate_of, recorded
from clustersim.search.plans.order import Order
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pools.plan_pools import PlanPool, PlanPools
from clustersim.search.plans.pools.pool_bounds import bounds_of
from clustersim.search.plans.pools.pool_looks import PoolLooks
from clustersim.search.plans.question import Question
from clustersim.search.plans.reached import Reached
from clustersim.search.plans.refusals import none_legal, none_serves
from clustersim.search.plans.result import Found
from clustersim.search.plans.trial import Trial, broken_rules, try_rate
from clustersim.search.plans.trials import Told, Trials
from clustersim.search.plans.walk import Walk
from clustersim.search.point import Row
from clustersim.workload.draws import DrawnWorkload

_SURE: Final = 1
"""Steps below what two pools fail at by themselves, from which on they are taken to pass."""


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
        self.bounds: dict[PlanPool, Bound] = {}
        self.looks = PoolLooks(self.sides, question.share, executors)
        self._each_s: dict[int, float] = {}
        self._bound_s = bound_s(self.base.model)
        self.prepared_s = 0.0
        self.ends_s = math.inf
        self.kept_s = 0.0
        self.waiting: Walk | None = None
        self.done = 0, 0

    @property
    def spent_s(self) -> float:
        """The seconds of effort that were spent: on plans, bounds, looks and runs."""
        return self.prepared_s + looks_s(self.looks.replayed) + self.ran_s

    def work(self) -> tuple[float, float]:
        """Return the seconds of effort that were spent here, what was looked up left out, and those that are left.

        Runs under way are half done. Of plans that wait, those that have time for it have one run each.
        """
        done, half = self.spent_s - self.ran_s + self.fresh_s, 0.5 * self.pending_s
        left = max(0.0, self.ends_s - self.spent_s - (self.fresh_s - self.counted_s) - 2.0 * half)
        waits = left if self.waiting is None else self.waiting.left_s(left)
        return done + half, half + waits + self.kept_s

    def _note(self, done: int, total: int) -> None:
        self.done = done, total
        self.tell()

    def is_spent(self, more_s: float) -> bool:
        """Whether there is no time left for so many seconds more."""
        return not self.question.exhaustive and self.spent_s + more_s > self.ends_s

    def standings(self) -> list[Standing]:
        """Return every legal plan, nothing of which is known; where requests are dealt out in turn one replica does."""
        found = super().standings()
        self.prepared_s += PLAN_S * len(found)
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
        left, sides = self._pools(standings, place)
        new = self._unbounded(sides)
        self.prepared_s += self._bound_s * len(new)
        self.bounds |= bounds_of(self.sides, new, self.question.share, self.executors)
        self.tell()
        for one, side in zip(left, sides, strict=True):
            one.bound = lesser([one.bound, self.bounds[side]])

    def lacks_time(self, standings: Sequence[Standing], place: int) -> bool:
        """Whether there is no time left to bound plans by one of their pools."""
        return self.is_spent(self._bound_s * len(self._unbounded(self._pools(standings, place)[1])))

    def _pools(self, standings: Iterable[Standing], place: int) -> tuple[list[Standing], list[PlanPool]]:
        """Return the plans that have so many pools, and these pools."""
        left = [one for one in standings if place < len(one.candidate.replicas)]
        return left, [self.sides.of(one.candidate)[place] for one in left]

    def _unbounded(self, sides: Sequence[PlanPool]) -> list[PlanPool]:
        return [side for side in dict.fromkeys(sides) if side not in self.bounds]

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

    def last_s(self, standing: Standing) -> float:
        """Return the seconds that a plan takes at length, roughly; 0 where its short runs are as long."""
        step = standing.passed if standing.passed is not None else (standing.failing or 0)
        drawn = isinstance(self.base.workload, DrawnWorkload)
        long = self._long(self.load, standing.candidate).count(rate_of(step))
        if not drawn and long == self.load.count(rate_of(step)):
            return 0.0
        self.cost(standing, step)
        return self._each_s[id(standing)] * long * (SEEDS if drawn else 1)

    def walk(self, *, exhaustive: bool) -> Walk:
        """Return what compares and simulates plans."""
        reached = Reached(worth=self.worth, exhaustive=exhaustive)
        order = Order(
            reached=reached,
            cost=self.cost,
            bound=self.bound,
            lacks_time=self.lacks_time,
            look=self.looks.look,
            look_at_both=self.looks.look_at_both,
        )
        return Walk(
            reached=reached,
            order=order,
            share=self.question.share,
            run=self.run,
            effort=lambda one: _effort(one.candidate),
            cost=self.cost,
            last=self.last_s,
            is_spent=self.is_spent,
            told=self._note,
        )

    def last_in_time(self, simulated: Sequence[Standing]) -> int:
        """Return how many of the best plans there is time for at length; one at least."""
        taken_s = itertools.accumulate(map(self.last_s, simulated))
        return max(1, sum(not one_s or not self.is_spent(one_s) for one_s in taken_s))

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
        return replace(load, requests=max(min(self._given.requests, OWN), REQUESTS * max(candidate.counts)))


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
    search.done = 0, len(standings)
    if told is not None:
        search.tell = lambda: told(*search.done)
    search.ends_s = question.answer_s(len(standings))
    search.kept_s = question.kept_s(len(standings))
    worth, walk = search.worth, search.walk(exhaustive=question.exhaustive)
    search.waiting = walk
    standings.sort(key=lambda one: _effort(one.candidate))
    walk.through(standings)
    simulated = sorted((one for one in standings if one.passed is not None), key=walk.reached.value, reverse=True)
    if not simulated:
        raise none_serves(standings, question.share)
    drawn = isinstance(search.base.workload, DrawnWorkload)
    search.ends_s = question.effort_s
    able = simulated[: search.last_in_time(simulated)]
    finalists = last_longest(able, worth, search.run_at_length, seeds=SEEDS if drawn else 1, share=question.share)
    reopen(standings, worth, finalists[0])
    settle(finalists)
    alike = walk.reached.value(simulated[0]) * (1.0 - TIES)
    found = Found(
        standings=standings,
        finalists=finalists,
        worth=worth,
        objective=question.objective,
        share=question.share,
        runs=search.ran,
        load=search.load_changes,
        recorded=search.recorded,
        part=search.load.part,
        shorter=sum(walk.reached.value(one) >= alike for one in simulated[len(able) :]),
    )
    return replace(found, told=found.certificate())


def _is_hopeful(standing: Standing, step: int) -> bool:
    """Whether a plan is expected to reach its share at a step, of what is known of its pools."""
    return standing.is_told and standing.alone is not None and step < standing.alone - _SURE


def _effort(candidate: Candidate) -> int:
    """Return how dear a plan is to simulate, or to look at: SP takes longest."""
    plans = candidate.plans
    plain = len(plans) == 1 and plans[0].sp.degree == plans[0].pp == 1 and not plans[0].is_lockstep
    return 0 if plain else 2 if any(one.sp.degree > 1 for one in plans) else 1
