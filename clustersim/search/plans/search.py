"""The best legal plan: every one is enumerated, bounded, and pruned, screened or simulated; the best at length.

::

    scenario ─► settings ─► legal plans ─► bounds ─► walk (screen, bisect) ─► finalists ─► front, best, certificate
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from clustersim.search.executors import Executors
from clustersim.search.journal import Journal
from clustersim.search.plans.bounds.limits import Bound, lesser
from clustersim.search.plans.costs import PLACED_S, PLAN_S, STARTED_S, WRITTEN_S, bound_s, looks_s
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.finals import (
    SEEDS,
    TIES,
    Finalist,
    LongRuns,
    at_length,
    confirm,
    is_settled,
    last_longest,
    reopen,
    settle,
)
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.plan_runs import PlanRuns
from clustersim.search.plans.pools.plan_pools import PlanPool
from clustersim.search.plans.pools.pool_bounds import bounds_of
from clustersim.search.plans.pools.pool_looks import PoolLooks
from clustersim.search.plans.question import Question
from clustersim.search.plans.refusals import none_legal, none_serves
from clustersim.search.plans.result import Found
from clustersim.search.plans.trial import try_rate
from clustersim.search.plans.trials import Told
from clustersim.search.plans.walk.order import Order
from clustersim.search.plans.walk.reached import Reached
from clustersim.search.plans.walk.walk import Walk
from clustersim.search.point import Row
from clustersim.search.queue import is_borne

_WHOLE: Final = 0.05
"""Of the effort, that runs of the best plan, or of all its ties, as their commands do may take when it is spent."""


class Search(PlanRuns):
    """Searches the plans of one scenario for the highest rate that they bear."""

    def __init__(self, deployments: Deployments, question: Question, executors: Executors, journal: Journal) -> None:
        super().__init__(deployments, question, executors, journal)
        self.known: list[Standing] = []
        """Every legal plan, once they are enumerated."""
        self.bounds: dict[PlanPool, Bound] = {}
        self.looks = PoolLooks(self.sides, question.share, executors)
        self._bound_s = bound_s(self.base.model)
        self.prepared_s = STARTED_S
        self.written_s = 0.0
        self.ends_s = math.inf
        self.waiting: Walk | None = None
        self.front_s = math.inf
        self.long: LongRuns | None = None
        """Those at length, once the first of them begins."""
        self.done = 0, 0

    @property
    def spent_s(self) -> float:
        """The seconds of effort that were spent: on plans, bounds, looks and runs; and what it takes to write them."""
        return self.prepared_s + self.written_s + looks_s(self.looks.plain, self.looks.quick) + self.ran_s

    def work(self) -> tuple[float, float]:
        """Return the seconds of effort that were spent here, what was looked up left out, and those that are left.

        Runs under way are half done. Of plans that wait, those that have time for it have one run each, and the best
        some at length. What is left for the front is told behind the answer, and infinite until it is known.
        """
        before = STARTED_S + self.written_s + self.ran_s
        done, half = self.spent_s - before + self.fresh_s, 0.5 * self.pending_s
        left = self.ends_s - self.spent_s - (self.fresh_s - self.counted_s) - 2.0 * half
        most = max(0.0, left)
        if self.waiting is not None:
            long_s = self.waiting.at_length_s() if self.long is None else self.long.left_s(self.fresh_s)
            waits = min(most, self.waiting.left_s(most) + max(0.0, long_s - 2.0 * half))
        else:
            waits = min(most, self.front_s) if math.isfinite(self.front_s) else math.inf
        return done + half, half + waits + self.written_s

    def _note(self, done: int, total: int) -> None:
        self.done = done, total
        self.tell()

    def is_spent(self, more_s: float) -> bool:
        """Whether there is no time left for so many seconds more."""
        return not self.question.exhaustive and self.spent_s + more_s > self.ends_s

    def standings(self) -> list[Standing]:
        """Return every legal plan, nothing of which is known; where requests are dealt out in turn one replica does."""
        found = super().standings()
        self.prepared_s += PLAN_S * len(found) + PLACED_S * len(self._placed)
        self.written_s = WRITTEN_S * len(found)
        for one in found:
            one.row_devices = one.candidate.devices // self.sides.every(one.candidate)
        return found

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
            refused=self.refused_first,
            effort=_effort,
            begins=self.begins_s,
            cost=self.cost,
            last=self.last_s,
            is_spent=self.is_spent,
            told=self._note,
        )

    def is_late(self, asked: Sequence[tuple[Standing, int]]) -> bool:
        """Whether there is no time left to simulate plans at length, each at a step, with each seed."""
        needs_s = self._length_s(*asked[-1])
        return needs_s > 0.0 and self.is_spent(sum((self._length_s(*one) for one in asked[:-1]), needs_s))

    def _length_s(self, standing: Standing, step: int) -> float:
        is_known = step == standing.passed and not self.last_s(standing)  # its short run was as long
        return 0.0 if is_known else self.long_s(standing, step)

    def begin_long(self, going: Sequence[tuple[Finalist, int]]) -> None:
        """Take note of the plans that are simulated at length next, and at which steps."""
        self.long = self.long or LongRuns(self.fresh_s)
        each = [(one, self._length_s(one.standing, step)) for one, step in going]
        self.long.begin(self.fresh_s, sum(s for _, s in each), sum(one.rates_left * s for one, s in each))

    def last_in_time(self, simulated: Sequence[Standing]) -> int:
        """Return how many of the best plans there is time for at length; one at least."""
        taken_s = itertools.accumulate(map(self.last_s, simulated))
        return max(1, sum(not one_s or not self.is_spent(one_s) for one_s in taken_s))


def found_by(search: Search, told: Told | None = None) -> Found:
    """Search, and return what was found.

    Raises
    ------
    InputError
        When no plan is legal.
    UnreachedError
        When none reaches the share that is asked for.
    """
    question, standings = search.question, search.standings()
    search.known = standings
    if not standings:
        raise none_legal(search.base, search.refused, question.room)
    search.done = 0, len(standings)
    if told is not None:
        search.tell = lambda: told(*search.done)
    search.ends_s = question.answer_s(len(standings))
    worth, walk = search.worth, search.walk(exhaustive=question.exhaustive)
    search.waiting = walk
    standings.sort(key=_effort)
    walk.through(standings)
    simulated = sorted((one for one in standings if one.passed is not None), key=walk.reached.value, reverse=True)
    if not simulated:
        raise none_serves(standings, question.share)
    search.ends_s = question.effort_s
    able = simulated[: search.last_in_time(simulated)]
    seeds = SEEDS if search.is_drawn else 1
    finalists = last_longest(
        able,
        worth,
        search.run_at_length,
        seeds=seeds,
        share=question.share,
        is_late=search.is_late,
        told=search.begin_long,
    )
    if finalists[0].step is None:
        for one in finalists:
            one.standing.why = "too few in time at length"
        raise none_serves(standings, question.share)
    finalists[:1] = refined(search, finalists[0], standings, seeds)
    reopen(standings, worth, finalists[0])
    settle(finalists)
    search.long = LongRuns(search.fresh_s)  # none is left
    alike, long = walk.reached.value(simulated[0]) * (1.0 - TIES), {id(one.standing) for one in finalists}
    shorter = sum(walk.reached.value(one) >= alike and id(one) not in long for one in simulated)
    return found_of(search, standings, finalists, shorter=shorter)


def found_of(search: Search, standings: Sequence[Standing], finalists: Sequence[Finalist], *, shorter: int) -> Found:
    """Return what a search found, with its certificate."""
    found = Found(
        standings=standings,
        finalists=finalists,
        worth=search.worth,
        objective=search.question.objective,
        share=search.question.share,
        runs=search.ran,
        load=search.load_changes,
        recorded=search.recorded,
        part=search.load.part,
        shorter=shorter,
    )
    return replace(found, told=found.certificate())


def with_whole(search: Search, found: Found, some: Sequence[Finalist]) -> Found:
    """Return what was found with some of the best plans run as their commands do: all replicas, the scenario's seed.

    Where too few requests meet their targets there, lower rates are tried. Where there is no time left, those are run
    that take a small part of the effort, all together.
    """
    until_s, share = search.spent_s + _WHOLE * search.question.effort_s, search.question.share

    def own(one: Finalist, step: int) -> list[Row] | None:
        rows: list[Row] = []
        for trial in search.own_trials(one.standing, step):
            if not rows and step == one.step and one.row is not None:
                row = one.row
            elif search.is_spent(trial.expected_s) and search.spent_s + trial.expected_s > until_s:
                return None
            else:
                (row,) = search.rows([trial], try_rate)
            if row["failed"] is not None:
                return None
            rows.append(row)
            if not is_borne([row], share):
                break
        return rows

    for one in some:
        confirm(one, partial(own, one), share)
    settle(some)
    return replace(found, runs=search.ran)


def refined(search: Search, best: Finalist, standings: Sequence[Standing], seeds: int) -> list[Finalist]:
    """Return the best plan, to a step of the grid where that tells whether any that is open could be better."""
    one, worth, high = best.standing, search.worth(best.standing), best.failed or best.standing.failing
    if best.step is None or high is None or search.is_late([(one, high)]):
        return [best]
    now, at_most = (is_settled(standings, search.worth, rate_of(step) * worth) for step in (best.step, high - 1))
    if now or not at_most:
        return [best]
    (found,) = at_length(
        [one],
        search.run_at_length,
        seeds=seeds,
        share=search.question.share,
        apart=1,
        start=best.step,
        is_late=search.is_late,
        told=search.begin_long,
    )
    found.is_cut, found.failed = best.is_cut, found.failed or best.failed
    return [found]


def _effort(one: Standing) -> int:
    """Return how dear a plan is to simulate, or to look at: SP takes longest."""
    return 0 if one.is_plain else 2 if any(each.plan.sp.degree > 1 for each in one.candidate.replicas) else 1
