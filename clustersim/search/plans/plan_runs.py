"""Runs of plans: at a rate of the grid, short or at length, and what they are expected to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clustersim.scenario.scenario import Scenario
from clustersim.search.executors import Executors
from clustersim.search.journal import Journal, key_of
from clustersim.search.load import Load, load_of
from clustersim.search.plans.costs import expected_s
from clustersim.search.plans.deployments import Candidate, Deployments
from clustersim.search.plans.finals import OWN, REQUESTS, SEEDS
from clustersim.search.plans.grid import prime_up_to, rate_of, recorded
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pools.plan_pools import PlanPools
from clustersim.search.plans.question import Question
from clustersim.search.plans.trial import Trial, broken_rules, try_rate
from clustersim.search.plans.trials import Trials
from clustersim.search.point import Row
from clustersim.search.queue import until_steady
from clustersim.simulation.estimate import refuse_many
from clustersim.workload.draws import DrawnWorkload

_MOST_TIMES: Final = 16
"""As many requests as finalists get, at most, until their queue is steady (assumed)."""
_SURE: Final = 1
"""Steps below what two pools fail at by themselves, from which on they are taken to pass."""


class PlanRuns(Trials):
    """Simulates the plans of one scenario at rates of the grid.

    Parameters
    ----------
    deployments, question, executors, journal
        See :class:`~clustersim.search.plans.trials.Trials`.
    """

    def __init__(self, deployments: Deployments, question: Question, executors: Executors, journal: Journal) -> None:
        super().__init__(deployments, question, executors, journal)
        refuse_many(self.base, deployments.variants.limits)  # before any is drawn
        load = load_of(self.base, deployments.variants.requests, question.lasting_s)
        self.recorded = recorded(self.base)
        self._given = replace(load, part=None if self.recorded is None else prime_up_to(self.recorded))
        load = replace(self._given, requests=min(load.requests, REQUESTS))
        played = replace(self.base, workload=load.played(load.first))
        deployments.variants.requests(played)  # refuses a run that is too long
        self.load: Load = replace(load, recorded=None)
        self.sides = PlanPools(deployments, self.load)
        self._each_s: dict[int, float] = {}
        self._times: dict[tuple[Candidate, float], int] = {}
        """How many times as many requests a plan needs at length at a rate, until its queue is steady."""

    @property
    def is_drawn(self) -> bool:
        """Whether requests are drawn, so that there are others for each seed."""
        return isinstance(self.base.workload, DrawnWorkload)

    def load_changes(self, candidate: Candidate, rate: float, long: bool) -> tuple[str, ...]:
        """Return what makes requests come to a plan at a rate, as many as in a short run or a long one."""
        load = self._given
        load = self._long(load, candidate, rate) if long else replace(load, requests=self.load.requests)
        return load.changes(rate)

    def trial(self, standing: Standing) -> tuple[Scenario, int]:
        """Return what is simulated of a plan, and how many replicas that stands for."""
        one = standing.candidate
        every = self.sides.every(one)
        counts = tuple(count // every for count in one.counts)
        return self.deployments.scenario(replace(one, counts=counts)), every

    def run(self, asked: Sequence[tuple[Standing, int]]) -> list[Row]:
        """Simulate plans, each at a step of the grid; what was simulated before is looked up."""
        share = 0.0 if self.question.exhaustive else self.question.share
        found = {number: row for number, row in enumerate(self.refused_first(asked)) if row is not None}
        left = [number for number in range(len(asked)) if number not in found]
        trials = (self.trial_at(*asked[number], share) for number in left)
        found |= dict(zip(left, self.rows(trials, try_rate), strict=True))
        return [found[number] for number in range(len(asked))]

    def run_at_length(self, asked: Sequence[tuple[Standing, int, int]]) -> list[Row]:
        """Simulate plans, each at a step of the grid and with so much added to its seed, checked (P and G) and long.

        What was simulated as long before is only checked. With a single seed a run is cut short that fails. Where the
        queue still grows at the end, runs are longer.
        """
        alike: dict[tuple[Candidate, float], list[int]] = {}
        for place, (standing, step, _) in enumerate(asked):
            alike.setdefault((standing.candidate, rate_of(step)), []).append(place)
        keys = list(alike)

        def run(which: Sequence[tuple[int, int]]) -> list[list[Row]]:
            self._times |= {keys[number]: times for number, times in which}
            places = [alike[keys[number]] for number, _ in which]
            rows = iter(self._run_long([asked[place] for some in places for place in some]))
            return [[next(rows) for _ in some] for some in places]

        steady = until_steady(run, len(keys), self.question.share, most_times=_MOST_TIMES)
        self._times |= {key: times for key, (times, _) in zip(keys, steady, strict=True)}
        found = {
            place: row
            for key, (_, rows) in zip(keys, steady, strict=True)
            for place, row in zip(alike[key], rows, strict=True)
        }
        return [found[place] for place in range(len(asked))]

    def _run_long(self, asked: Sequence[tuple[Standing, int, int]]) -> list[Row]:
        trials = [self._long_trial(*one) for one in asked]
        keys = [key_of(replace(one, audit=False).told, False) for one in trials]
        known = {at: self.journal.rows[key] for at, key in enumerate(keys) if key in self.journal.rows}
        for at in known:
            if broken := broken_rules(trials[at].scenario):
                known[at] = {"failed": broken, "numbers": {}}
        self.ran += len(known)
        left = [at for at in range(len(trials)) if at not in known]
        known |= dict(zip(left, self.rows((trials[at] for at in left), try_rate), strict=True))
        return [known[at] for at in range(len(trials))]

    def own_trials(self, standing: Standing, step: int) -> list[Trial]:
        """Return runs at length with the scenario's own seed: of what stands for all, and of all where that does."""
        found = [self._long_trial(standing, step, 0)]
        if standing.part:
            scenario = self.deployments.scenario(standing.candidate)
            found.append(Trial(scenario=scenario, load=self._load(standing, step), step=step, every=1))
        return found

    def refused_first(self, asked: Sequence[tuple[Standing, int]]) -> list[Row | None]:
        """Return rows of plans that can't be launched, or whose prefill pool fails at a step by itself; else None."""
        refused = [None] * len(asked) if self.question.exhaustive else self._refused_alone(asked)
        return [self.not_launched(one) or row for (one, _), row in zip(asked, refused, strict=True)]

    def begins_s(self, standing: Standing, step: int) -> float:
        """Return the seconds in which it is known whether a plan goes on at a step: of its prefill pool, or of all."""
        alone = None if self.question.exhaustive else self.sides.prefill_alone(standing.candidate)
        if alone is not None and step >= alone.failed:
            return 0.0
        if alone is None or alone.tells(step) or self._is_hopeful(standing, step):
            return self.cost(standing, step) + self.last_s(standing)
        by_load = self.sides.is_by_load(self.sides.of(standing.candidate)[0])
        most = by_load and standing.is_told and not _is_flattered(standing)  # it may well pass
        return replace(alone.trial, step=step).expected_s + most * (self.cost(standing, step) + self.last_s(standing))

    def cost(self, standing: Standing, step: int) -> float:
        """Return the seconds that a run of a plan at a step of the grid takes, roughly."""
        if id(standing) not in self._each_s:
            scenario, every = self.trial(standing)
            self._each_s[id(standing)] = expected_s(scenario, 1.0 / every)
        return self._each_s[id(standing)] * self.load.count(rate_of(step))

    def last_s(self, standing: Standing) -> float:
        """Return the seconds that a plan takes at length, roughly; 0 where its short runs are as long."""
        step = standing.passed if standing.passed is not None else (standing.failing or 0)
        long = self._long(self.load, standing.candidate, rate_of(step)).count(rate_of(step))
        if not self.is_drawn and long == self.load.count(rate_of(step)):
            return 0.0
        return self.long_s(standing, step)

    def long_s(self, standing: Standing, step: int) -> float:
        """Return the seconds that a plan takes at length at a step, with each seed, roughly."""
        self.cost(standing, step)
        long = self._long(self.load, standing.candidate, rate_of(step)).count(rate_of(step))
        return self._each_s[id(standing)] * long * (SEEDS if self.is_drawn else 1)

    def trial_at(self, standing: Standing, step: int, share: float) -> Trial:
        """Return the run of a plan at a step of the grid, which ends once that share can't be reached any more."""
        scenario, every = self.trial(standing)
        hopeful = self._is_hopeful(standing, step)
        return Trial(scenario=scenario, load=self.load, step=step, every=every, share=share, hopeful=hopeful)

    def _long_trial(self, standing: Standing, step: int, seed: int) -> Trial:
        scenario, every = self.trial(standing)
        scenario = replace(scenario, seed=scenario.seed + seed)
        load = self._load(standing, step)
        share = 0.0 if self.is_drawn or self.question.exhaustive else self.question.share
        return Trial(scenario=scenario, load=load, step=step, every=every, share=share, audit=True)

    def _refused_alone(self, asked: Sequence[tuple[Standing, int]]) -> list[Row | None]:
        """Return, of each plan with two pools whose prefill pool fails at a step by itself, the row of that.

        It is not run by itself where it is expected to pass.
        """
        known = [(self.sides.prefill_alone(standing.candidate), step) for standing, step in asked]
        new = {
            (id(one), step): (one, step)
            for (one, step), (standing, _) in zip(known, asked, strict=True)
            if one is not None and not one.tells(step) and not self._is_hopeful(standing, step)
        }
        share = self.question.share
        trials = (replace(one.trial, step=step, share=share) for one, step in new.values())
        for (one, step), row in zip(new.values(), self.rows(trials, try_rate), strict=True):
            one.note(step, row, share)
        return [None if one is None else one.refusal(step) for one, step in known]

    def _load(self, standing: Standing, step: int) -> Load:
        """Return the load of a finalist; the short one where it has as many requests at a step."""
        long = self._long(self.load, standing.candidate, rate_of(step))
        return self.load if self.load.count(rate_of(step)) == long.count(rate_of(step)) else long

    def _long(self, load: Load, candidate: Candidate, rate: float) -> Load:
        """Return a load with as many requests as finalists get at a rate."""
        requests = max(min(self._given.requests, OWN), REQUESTS * max(candidate.counts))
        return replace(load, requests=requests).longer(self._times.get((candidate, rate), 1))

    def _is_hopeful(self, standing: Standing, step: int) -> bool:
        """Whether a plan is expected to reach its share at a step, of what is known of its pools.

        Where prompts go by load, the run of their pool by itself tells, once there is one (looks: 4 to 10 steps more).
        """
        one = standing.candidate
        if _is_flattered(standing):
            return False
        if self.sides.is_by_load(self.sides.of(one)[0]):
            alone = self.sides.prefill_alone(one)
            if alone is None or not alone.tells(step):
                return False
        return standing.is_told and standing.alone is not None and step < standing.alone - _SURE


def _is_flattered(standing: Standing) -> bool:
    """Whether looks tell too little of prompts: SP ranks that share experts (DeepSeek-V3) reach up to 25 steps less."""
    plan = standing.candidate.replicas[0].plan
    return plan.sp.degree > 1 and plan.ep.degree > 1
