"""The best legal plan: every one is enumerated, bounded, and pruned, screened or simulated; the best at length.

::

    scenario ─► settings ─► legal plans ─► bounds ─► walk (screen, bisect) ─► finalists ─► front, best, certificate
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from clustersim.errors import InputError, Problem
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.scenario import Scenario
from clustersim.search.executors import Executors
from clustersim.search.journal import Journal, key_of
from clustersim.search.load import Load, load_of
from clustersim.search.outcomes import Lost, outcomes
from clustersim.search.plans.deployments import Candidate, Deployments
from clustersim.search.plans.finals import REQUESTS, SEEDS, TIES, at_length
from clustersim.search.plans.grid import prime_up_to, recorded
from clustersim.search.plans.legal import candidates
from clustersim.search.plans.limits import Bound, Member, bound_all
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pool_alone import PoolAlone, failing_all
from clustersim.search.plans.prefill_alone import PrefillAlone
from clustersim.search.plans.refusals import none_legal, none_serves
from clustersim.search.plans.result import Found
from clustersim.search.plans.room import Room
from clustersim.search.plans.space import PARTITIONS, TYPICAL, Refused, Replica
from clustersim.search.plans.trial import Trial, try_rate
from clustersim.search.plans.walk import Walk
from clustersim.search.point import Row
from clustersim.workload.draws import DrawnWorkload

Told = Callable[[int, int], None]
OBJECTIVES: Final = ("capacity_per_device", "capacity_per_usd", "capacity")
FINALISTS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked."""

    room: Room
    share: float
    lasting_s: float
    objective: str
    exhaustive: bool
    effort_s: float = math.inf
    """Seconds of CPU, as expected, after which no more plans are screened."""


class Search:
    """Searches the plans of one scenario."""

    def __init__(self, deployments: Deployments, question: Question, executors: Executors, journal: Journal) -> None:
        self.deployments, self.question = deployments, question
        self._executors, self._journal = executors, journal
        self.base = deployments.base
        load = load_of(self.base, deployments.variants.requests, question.lasting_s)
        self.recorded = recorded(self.base)
        part = None if self.recorded is None else prime_up_to(self.recorded)
        self.load: Load = replace(load, part=part, recorded=None)
        self.refused = Refused()
        self.ran = 0
        self.spent_s = 0.0
        self._each_pool: dict[tuple[int, int], tuple[Scenario, ...]] = {}
        self._alone: dict[tuple[int, Replica, int], PrefillAlone] = {}
        self._partitions = PARTITIONS if question.exhaustive else (TYPICAL,)
        self._stays = getattr(self.base.workload, "cancel_after", None) is None

    def standings(self) -> list[Standing]:
        """Return every legal plan with its bound, best ones of the cheapest kind to simulate first."""
        legal = list(candidates(self.deployments.settings, self.question.room, self.refused, self._partitions))
        sides = dict.fromkeys((place, *side) for one, _ in legal for place, side in enumerate(self._sides(one)))
        bounds = self._bounds(list(sides))
        found = []
        for one, same in legal:
            each = [bounds[place, *side] for place, side in enumerate(self._sides(one))]
            alike = len(PARTITIONS) // len(self._partitions) if any(r.plan.sp.degree > 1 for r in one.replicas) else 1
            standing = Standing(candidate=one, words=self.words(one), bound=_lesser(each), same=same, partitions=alike)
            standing.row_devices = one.devices // self._every(one)
            found.append(standing)
        return found

    def words(self, one: Candidate) -> str:
        """Return a plan and its knobs in words."""
        knobs = (text.rpartition("=") for text in self.deployments.settings[one.setting].changes)
        return ", ".join([one.words(), *(f"{key.rpartition('.')[2]} {value}" for key, _, value in knobs)])

    def _sides(self, candidate: Candidate) -> list[tuple[int, int, Replica, int]]:
        pools = len(candidate.replicas)
        return [
            (pools, candidate.setting, one, count)
            for one, count in zip(candidate.replicas, candidate.counts, strict=True)
        ]

    def _bounds(self, sides: Sequence[tuple[int, int, int, Replica, int]]) -> dict[Any, Bound]:
        """Return the bound of each pool of each plan; those with their prices in common are worked out together."""
        groups: dict[Any, list[Any]] = {}
        prices: dict[tuple[int, int, int], str] = {}
        for side in sides:
            place, pools, setting, one, _ = side
            plan, pool = one.plan, (place, pools, setting)
            if pool not in prices:
                scenario = self._pool(setting, pools, place)
                prices[pool] = repr((scenario.precision, scenario.engine, scenario.serving.prefix_caching))
            groups.setdefault((plan.tp, plan.pp, plan.ep, plan.dp, one.kind, prices[pool]), []).append(side)
        calls = []
        members: list[list[Any]] = []
        found: dict[Any, Bound] = {}
        for mine in groups.values():
            here = self._alone_scenario(mine[0])
            found |= {side: Bound(step=None, why="", tpot_ms=None) for side in mine if _spreads_experts(side[3].plan)}
            mine = [side for side in mine if side not in found]
            if not mine:
                continue
            unique = dict.fromkeys(self._member(side) for side in mine)
            members.append([mine, list(unique)])
            calls.append((here, self.load, self.question.share, list(unique)))
        for number, bounds in outcomes(self._executors, bound_all, iter(enumerate(calls))):
            if isinstance(bounds, Lost):
                raise InputError(Problem(message=f"a bound could not be worked out: {bounds.reason}"))
            mine, unique = members[number]
            by_member = dict(zip(unique, bounds, strict=True))
            found |= {side: by_member[self._member(side)] for side in mine}
        return found

    def _alone_scenario(self, side: Any) -> Scenario:
        """Return the scenario of a pool with one replica of a plan at sp 1."""
        place, pools, setting, one, _ = side
        scenario = self._pool(setting, pools, place)
        plain = replace(one.plan, sp=replace(one.plan.sp, degree=1, scheme=None, partition=None, decode=None))
        topology = scenario.topology
        if one.kind is not None:
            topology = topology.seen_from(topology.of_kind(one.kind)[0])
        return replace(scenario.with_entry(plan=plain), topology=topology)

    def look(self, asked: Sequence[tuple[Standing, int]]) -> None:
        """Note of plans with two pools at which step one of these fails by itself; each with a step it has to pass."""
        sides: dict[Any, list[int]] = {}
        for standing, step in asked:
            if len(standing.candidate.replicas) > 1 and standing.bound.step is not None:
                for place, side in enumerate(self._sides(standing.candidate)):
                    ends = sides.setdefault((place, *side), [step, standing.bound.step])
                    ends[:] = min(ends[0], step), max(ends[1], standing.bound.step)
        groups: dict[Any, list[Any]] = {}
        pools = {side: self._pool_alone(side) for side in sides}
        for side in sides:
            if pools[side] is not None:
                groups.setdefault((side[0], side[2], side[3]), []).append(side)
        calls = [
            (self._alone_scenario(mine[0]), self.load, self.question.share, [(pools[one], *sides[one]) for one in mine])
            for mine in groups.values()
        ]
        members, failing = list(groups.values()), dict[Any, int]()
        for number, found in outcomes(self._executors, failing_all, iter(enumerate(calls))):
            if isinstance(found, Lost):
                raise InputError(Problem(message=f"a pool could not be looked at: {found.reason}"))
            failing |= {side: step for side, step in zip(members[number], found, strict=True) if step is not None}
        for standing, _ in asked:
            if len(standing.candidate.replicas) > 1:
                told = [failing.get((place, *side)) for place, side in enumerate(self._sides(standing.candidate))]
                standing.alone = min((step for step in told if step is not None), default=None)

    def _pool_alone(self, side: Any) -> PoolAlone | None:
        """Return one of two pools to be looked at by itself; None where it is not known who it gets, or with SP."""
        place, pools, setting, one, count = side
        scenario = self._pool(setting, pools, place)
        in_turn = self._in_turn(scenario, one.plan) and self._gets_all(count)
        if one.plan.sp.degree > 1 or not self._first_come(scenario) or not (in_turn or one.plan.is_lockstep):
            return None
        member = self._member(side)
        return PoolAlone(
            duty="decode" if place else "prefill",
            replicas=count,
            ranks=member.ranks,
            tokens=member.tokens,
            requests=member.requests,
            kv_tokens=member.kv_tokens,
        )

    def _first_come(self, scenario: Scenario) -> bool:
        """Whether requests are taken in the order in which they come, and none is given up."""
        serving = scenario.serving
        ordered = serving.scheduler in ("continuous", "chunked_prefill") and serving.order.by == "arrival"
        ordered = ordered and serving.queue_limit is None and serving.queue_timeout_ns is None and self._stays
        return ordered and not scenario.faults

    def _pool(self, setting: int, pools: int, place: int) -> Scenario:
        if (setting, pools) not in self._each_pool:
            both = self.deployments.settings[setting]
            scenario = both.single if pools == 1 else both.pools
            assert scenario is not None
            self._each_pool[setting, pools] = scenario.each_pool()
        return self._each_pool[setting, pools][place]

    def _member(self, side: Any) -> Member:
        place, pools, setting, one, count = side
        scenario = self._pool(setting, pools, place)
        serving, plan = scenario.serving, one.plan
        lockstep = plan.dp if plan.is_lockstep else 1
        ranks = lockstep if lockstep > 1 else plan.sp.degree
        every = self._alike(scenario, plan, count) if pools == 1 else 1
        ordered = self._first_come(scenario) and self._in_turn(scenario, plan) and place == 0 and lockstep == 1
        owners = plan.sp.degree if plan.sp.decode == "dp" else 1
        return Member(
            duty="both" if pools == 1 else ("prefill", "decode")[place],
            ranks=ranks,
            scheme=plan.sp.scheme,
            decodes=lockstep > 1 or plan.sp.decode == "dp",
            tokens=serving.max_batch_tokens * lockstep,
            requests=serving.max_batch_requests * lockstep,
            kv_tokens=one.kv_blocks * serving.kv_block_tokens * owners * lockstep,
            replicas=1 if every > 1 else count,
            every=every,
            open_prompts=(0 if plan.pp == 1 else plan.pp) if ordered else None,
        )

    def _in_turn(self, scenario: Scenario, plan: ParallelPlan) -> bool:
        """Whether one of several replicas gets every so many-th request, whatever the others do."""
        return not plan.is_lockstep and scenario.serving.router == "round_robin" and not scenario.faults

    def _every(self, one: Candidate) -> int:
        """Return how many parts of a plan one stands for: its replicas, or those of both pools in their ratio."""
        pools = len(one.replicas)
        each = [self._pool(one.setting, pools, place) for place in range(pools)]
        if pools == 1:
            return self._alike(each[0], one.replicas[0].plan, one.counts[0])
        if all(self._in_turn(each[place], one.replicas[place].plan) for place in range(pools)):
            return math.gcd(*one.counts) if self._gets_all(max(one.counts)) else 1
        return 1

    def _alike(self, scenario: Scenario, plan: ParallelPlan, count: int) -> int:
        """Return how many of so many replicas one stands for: all, where each gets all requests of a trace in turn."""
        return count if self._gets_all(count) and self._in_turn(scenario, plan) else 1

    def _gets_all(self, count: int) -> bool:
        """Whether each of so many replicas gets all requests of a trace that is played again and again."""
        return self.load.part is None or count < self.load.part

    def worth(self, standing: Standing) -> float:
        """Return what one request per second is worth on a plan."""
        one, room = standing.candidate, self.question.room
        if self.question.objective == "capacity":
            return 1.0
        return 1.0 / one.devices if self.question.objective == "capacity_per_device" else 1.0 / (room.cost(one) or 1.0)

    def trial(self, standing: Standing) -> tuple[Scenario, int]:
        """Return what is simulated of a plan, and how many replicas that stands for."""
        one = standing.candidate
        every = self._every(one)
        counts = tuple(count // every for count in one.counts)
        return self.deployments.scenario(replace(one, counts=counts)), every

    def run(self, asked: Sequence[tuple[Standing, int]]) -> list[Row]:
        """Simulate plans, each at a step of the grid; what was simulated before is looked up."""
        share = 0.0 if self.question.exhaustive else self.question.share
        refused = [] if self.question.exhaustive else self._refused_alone(asked)
        found = {number: row for number, row in enumerate(refused) if row is not None}
        left = [number for number in range(len(asked)) if number not in found]
        trials = (self.trial_at(*asked[number], share) for number in left)
        found |= dict(zip(left, self._rows(trials), strict=True))
        return [found[number] for number in range(len(asked))]

    def run_at_length(self, asked: Sequence[tuple[Standing, int, int]]) -> list[Row]:
        """Simulate plans, each at a step of the grid and with so much added to its seed, checked (P and G) and long."""
        return self._rows(self._long_trial(*one) for one in asked)

    def trial_at(self, standing: Standing, step: int, share: float) -> Trial:
        """Return the run of a plan at a step of the grid, which ends once that share can't be reached any more."""
        scenario, every = self.trial(standing)
        return Trial(scenario=scenario, load=self.load, step=step, every=every, share=share)

    def _long_trial(self, standing: Standing, step: int, seed: int) -> Trial:
        scenario, every = self.trial(standing)
        scenario = replace(scenario, seed=scenario.seed + seed)
        return Trial(scenario=scenario, load=self._long(standing), step=step, every=every, audit=True)

    def _refused_alone(self, asked: Sequence[tuple[Standing, int]]) -> list[Row | None]:
        """Return, of each plan with two pools whose prefill pool fails at a step by itself, the row of that."""
        known = [(self.prefill_alone(standing.candidate), step) for standing, step in asked]
        new = {(id(one), step): (one, step) for one, step in known if one is not None and not one.tells(step)}
        share = self.question.share
        trials = (replace(one.trial, step=step, share=share) for one, step in new.values())
        for (one, step), row in zip(new.values(), self._rows(trials), strict=True):
            one.note(step, row, share)
        return [None if one is None else one.refusal(step) for one, step in known]

    def prefill_alone(self, candidate: Candidate) -> PrefillAlone | None:
        """Return the prefill pool of a plan with two, by itself; None where it is not known which requests it gets."""
        if len(candidate.replicas) == 1:
            return None
        one, count = candidate.replicas[0], candidate.counts[0]
        scenario = self._pool(candidate.setting, 2, 0)
        if not self._in_turn(scenario, one.plan):
            return None
        key = candidate.setting, one, count
        if key not in self._alone:
            every = self._alike(scenario, one.plan, count)
            alone = self.deployments.prefill_alone(replace(candidate, counts=(count // every, candidate.counts[1])))
            trial = Trial(scenario=alone, load=self.load, step=0, every=every, prompts_only=True)
            self._alone[key] = PrefillAlone(trial=trial)
        return self._alone[key]

    def _rows(self, trials: Iterable[Trial]) -> list[Row]:
        """Simulate, and return the row of each trial; what was simulated before is looked up."""
        rows: dict[int, Row] = {}
        keys: dict[int, str] = {}
        made: dict[int, Trial] = {}

        def calls() -> Iterator[tuple[int, tuple[Trial]]]:
            for number, trial in enumerate(trials):
                made[number] = trial
                keys[number] = key = key_of(trial.told, trial.audit)
                if key in self._journal.rows:
                    rows[number] = self._journal.rows[key]
                    continue
                yield number, (trial,)

        for number, outcome in outcomes(self._executors, try_rate, calls()):
            row = {"failed": outcome.reason, "numbers": {}} if isinstance(outcome, Lost) else outcome
            if not isinstance(outcome, Lost):
                self._journal.add(keys[number], row)
            rows[number] = row
        self.ran += len(keys)
        for number, trial in made.items():
            self.spent_s += trial.expected_s * rows[number]["numbers"].get("cut", 1.0)
        return [rows[number] for number in range(len(keys))]

    def _long(self, standing: Standing) -> Load:
        """Return the load with as many requests as finalists get."""
        most = max(standing.candidate.counts)
        return replace(self.load, requests=max(self.load.requests, REQUESTS * most))


def _spreads_experts(plan: ParallelPlan) -> bool:
    """Whether experts are on several SP ranks: what one of these does by itself is no plan."""
    return plan.sp.degree > 1 and plan.ep.degree > 1


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
    worth = search.worth
    walk = Walk(
        worth=worth,
        share=question.share,
        run=search.run,
        exhaustive=question.exhaustive,
        effort=lambda one: _effort(one.candidate),
        cost=lambda one, step: search.trial_at(one, step, question.share).expected_s,
        look=search.look,
        is_spent=lambda: search.spent_s >= question.effort_s,
        told=told,
    )
    standings.sort(key=lambda one: _effort(one.candidate))
    walk.through(standings)
    simulated = sorted((one for one in standings if one.passed is not None), key=walk.value, reverse=True)
    if not simulated:
        raise none_serves(search.base, standings, question.share)
    least = walk.value(simulated[0]) * (1.0 - 2.0 * TIES)
    chosen = [one for one in simulated if walk.value(one) >= least][:FINALISTS]
    drawn = isinstance(search.base.workload, DrawnWorkload)
    finalists = at_length(chosen, search.run_at_length, seeds=SEEDS if drawn else 1, share=question.share)
    finalists.sort(key=lambda one: -one.capacity * worth(one.standing))
    return Found(
        standings=standings,
        finalists=finalists,
        worth=worth,
        objective=question.objective,
        runs=search.ran,
        recorded=search.recorded,
        part=search.load.part,
    )


def _effort(candidate: Candidate) -> int:
    """Return how dear a plan is to simulate: stages take ten times as long, SP a hundred times (measured)."""
    plans = candidate.plans
    sp, pools = any(one.sp.degree > 1 for one in plans), len(plans) > 1
    stages = any(one.pp > 1 for one in plans) and (sp or not pools)
    return 4 * sp + 2 * pools + stages


def _lesser(bounds: Sequence[Bound]) -> Bound:
    """Return the bound of two pools: the smaller one."""
    told = [one for one in bounds if one.step is not None]
    least = min(told, key=lambda one: one.step or 0) if told else bounds[0]
    tpots = [one.tpot_ms for one in bounds if one.tpot_ms is not None]
    return replace(least, tpot_ms=max(tpots) if tpots else None)
