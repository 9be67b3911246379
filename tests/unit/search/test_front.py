"""The front of a search, and the area below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from clustersim.plan.parallel import ParallelPlan
from clustersim.search.plans.bounds.limits import Bound
from clustersim.search.plans.front.points import Hypervolume
from clustersim.search.plans.front.runs import BELOW, Chance, Family, FrontRuns, filled
from clustersim.search.plans.front.search import FrontSearch, served_at
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pools.plan_pools import PlanPool
from clustersim.search.plans.result import Found
from clustersim.search.plans.standings import metrics


def standing(*runs: tuple[float, float], devices: int = 1) -> Standing:
    """Return a plan that met its share in runs of so many tokens per second and ms between two, first at capacity."""
    rows = [
        {"failed": None, "numbers": {"throughput.output_tokens_per_s": many, "itl_ms.mean": gap}} for many, gap in runs
    ]
    made: Any = None
    return Standing(
        candidate=made,
        words=f"{runs[0][0]:g}",
        passed=0,
        passing={-step: row for step, row in enumerate(rows)},
        row=rows[0],
        row_devices=devices,
    )


def plan(*, pools: int) -> Any:
    """Return a plan with so many pools."""
    one = SimpleNamespace(plan=ParallelPlan(tp=1))
    return SimpleNamespace(replicas=(one,) * pools, counts=(1,) * pools)


def found(*standings: Standing) -> Found:
    return Found(
        standings=standings,
        finalists=[],
        worth=lambda one: 1.0,
        objective="capacity",
        runs=0,
        share=0.9,
        load=lambda plan, rate, long: (),
    )


def test_the_area_is_that_of_the_steps_below_the_front():
    both = found(standing((300.0, 100.0)), standing((100.0, 25.0)))  # 10 and 40 tokens/s of a user
    assert both.hypervolume() == 300 * 10 + 100 * 30
    assert found().hypervolume() == 0.0
    random = np.random.default_rng(1)
    for many in (0, 5, 10):
        points = [(high, right) for high, right in random.uniform(0.0, 10.0, (many, 2)).tolist()]
        more, area = random.uniform(0.0, 12.0, (20, 2)), Hypervolume(points)
        whole = [Hypervolume([*points, (high, right)]).size - area.size for high, right in more.tolist()]
        assert area.gains(*more.T) == pytest.approx(np.array(whole))


def test_what_another_run_beats_in_both_adds_nothing_and_one_below_capacity_may():
    plans = standing((300.0, 100.0)), standing((100.0, 25.0))
    more = found(
        *plans, standing((250.0, 200.0)), standing((100.0, 50.0), (90.0, 30.0)), standing((160.0, 40.0), devices=2)
    )
    assert [one.standing.words for one in more.front()] == ["300", "100"]
    assert more.hypervolume() == found(*plans).hypervolume()
    lower = found(standing((300.0, 100.0), (200.0, 50.0)), plans[1])
    assert [(one.step, one.per_device) for one in lower.front()] == [(0, 300.0), (-1, 200.0), (0, 100.0)]
    assert lower.hypervolume() == 300 * 10 + 200 * 10 + 100 * 20


def test_a_plan_that_the_front_takes_up_to_its_capacity_is_told_as_simulated_with_numbers_of_all_its_replicas():
    one, other = standing((300.0, 100.0)), standing((100.0, 25.0))
    for plan_, why in ((one, "fails at 2/s"), (other, "fails at 3/s")):
        plan_.candidate, plan_.fate, plan_.why = SimpleNamespace(devices=4), "screened", why
    one.row["numbers"] |= {"throughput.requests_per_s": 2.0, "ttft_ms.p99": 7.0}
    assert metrics(one, one.row) == {
        "throughput.output_tokens_per_s": 1200.0,
        "throughput.requests_per_s": 8.0,
        "ttft_ms.p99": 7.0,
    }

    def simulate(alive: Sequence[Standing]) -> None:
        alive[0].fate, alive[0].why, alive[1].fate = "simulated", "", "open"  # there is no time for all of the second

    made = object.__new__(FrontSearch)
    made._walk = SimpleNamespace(simulate=simulate, probe=lambda asked: None)
    made._search = SimpleNamespace(looks=SimpleNamespace(look=lambda asked, place, plain: None))
    made._simulate([(one, 0, True), (other, 0, True)])
    assert [(plan_.fate, plan_.why) for plan_ in (one, other)] == [
        ("simulated", "for the front; before, it was screened: fails at 2/s"),
        ("screened", "fails at 3/s"),
    ]


def test_no_more_pools_are_looked_at_for_the_front_than_there_is_time_for():
    pools = [PlanPool(0, 1, 0, f"{number}", 1) for number in range(200)]
    alike = {pool: [standing((1.0, 1.0))] for pool in pools}
    for (one,) in alike.values():
        one.candidate = SimpleNamespace(devices=1)
    bounds = {pool: Bound(step=at, why="", tpot_ms=1.0) for at, pool in enumerate(pools)}
    clock = SimpleNamespace(spent_s=0.0, bounds=bounds, bound=lambda some, place: None, lacks_time=lambda *_: False)
    made = object.__new__(FrontSearch)
    made._search, made._looks_end_s = clock, 10.0
    looked = []
    for some in made._nearest(alike):
        clock.spent_s += 0.5 * len(some)
        looked += some
    assert looked == pools[: -len(looked) - 1 : -1]
    assert len(looked) == 24


class Member(NamedTuple):
    """A replica of a pool."""

    kind: None
    plan: ParallelPlan


class Runs:
    """Families as ``filled`` is asked of them, each of one plan, whose runs give a half of what is expected of them."""

    def __init__(self, *families: tuple[Standing, float, float]) -> None:
        self.families = [
            Family(
                plans=[one],
                top=0,
                expected=np.array([(high * 1.01**-below, right * 1.001**below) for below in BELOW]),
            )
            for one, high, right in families
        ]
        self.asked: list[Chance] = []
        self.took_s: float | None = None
        self.unable: dict[int, int] = {}
        self.bears: dict[int, int] = {}

    def able(self, plans: Sequence[Standing], step: int) -> tuple[Standing | None, int]:
        highest = self.unable.get(id(plans[0]), 0)
        return (plans[0] if step <= highest else None), highest

    def simulate(self, chances: Sequence[Chance]) -> None:
        self.asked.extend(chances)
        for one, step, climbs in chances:
            (family,) = (each for each in self.families if each.plans[0] is one)
            bears = self.bears.get(id(one), 0)
            if step <= bears or climbs:
                at = min(step, bears)
                high, right = family.expected[0]
                row = standing((0.5 * high * 1.01**at, 2e3 / right)).row
                row["numbers"]["work_s"] = self.took_s
                one.passing[at] = row
                one.passed = at if climbs else one.passed

    def filled(self, *others: Standing, share: float = 0.01, left_s: float = 1e3, **each: Any) -> FrontRuns:
        plans = [one for family in self.families for one in family.plans]
        parts: dict[str, Any] = {"able": self.able, "simulate": self.simulate, "cost": lambda chance: 1.0, **each}
        return filled([*plans, *others], self.families, share, left_s=lambda: left_s, **parts)


def left_out(pools: int) -> Standing:
    return replace(
        standing((1.0, 1.0)), candidate=plan(pools=pools), passed=None, passing={}, row=None, fate="screened"
    )


def test_those_runs_are_simulated_that_may_add_most_as_far_as_plans_of_their_kind_keep_what_looks_promise():
    best = replace(standing((300.0, 100.0)), candidate=plan(pools=1))
    alike = [left_out(2) for _ in range(3)]  # each is expected to reach what the one before does, and more
    slow, dark = (replace(left_out(3), fate=fate, why="least TPOT") for fate in ("pruned", "open"))

    def runs() -> Runs:
        for one in alike:
            one.passed, one.passing = None, {}
        return Runs(*((one, 200.0 + at, 60.0 + at) for at, one in enumerate(alike)))

    made = runs()
    told = made.filled(best, slow, dark)
    first, *others = made.asked
    assert first == (alike[2], 0, True)
    assert {id(one) for one, _, _ in others} == {id(alike[2])}  # half of what was hoped for: the others add nothing
    assert [climbs for _, _, climbs in others] == [False] * len(others)
    assert len({step for _, step, _ in others}) == len(others) > 3
    assert (told.plans, told.lower, told.unknown, told.spent) == (1, len(others), 2, False)
    assert told.most is not None
    assert told.together is not None
    assert 0.0 < told.most <= 0.01 < told.together
    made = runs()
    told = made.filled(best, left_s=0.5)
    assert (told.plans, made.asked, told.spent) == (0, [], True)
    assert told.most == pytest.approx(202 * 52 / 3000)
    made = runs()
    told = made.filled(best, left_s=1.5, cost=lambda one: 1.0 if one[0] is alike[0] else 2.0)
    assert {id(one) for one, _, _ in made.asked} == {id(alike[0])}  # there is time for one alone, the cheapest
    assert told.spent
    made = runs()
    made.took_s = 0.5  # of the second that was expected: there is time for others of its kind, too
    made.filled(best, left_s=1.5, cost=lambda one: 1.0 if one[0] is alike[0] else 2.0)
    assert {id(one) for one, _, _ in made.asked} == {id(alike[0]), id(alike[2])}
    told = Runs().filled(best, *alike)
    assert (told.plans, told.most, told.together, told.unknown, told.spent) == (0, None, None, 4, True)


def test_a_family_is_tried_at_no_rate_that_none_of_its_plans_bears_and_lower_where_they_fail():
    best = replace(standing((300.0, 100.0)), candidate=plan(pools=1))
    made = Runs((left_out(2), 200.0, 60.0), (left_out(2), 150.0, 50.0))
    one, other = (family.plans[0] for family in made.families)
    made.unable = {id(one): -10, id(other): -1000}
    told = made.filled(best)
    assert made.asked[0] == (one, -10, True)
    assert max(step for _, step, _ in made.asked[1:]) < -10
    assert (told.plans, told.most is not None and told.most <= 0.01) == (1, True)
    made = Runs((left_out(2), 200.0, 60.0))
    made.bears = {id(made.families[0].plans[0]): -30}
    made.filled(best)
    assert {step for _, step, climbs in made.asked if not climbs and step > -30} <= {made.asked[1][1]}
    made = Runs((left_out(2), 200.0, 60.0))
    made.filled(best, simulate=made.asked.extend)  # nothing passes
    steps = [step for _, step, _ in made.asked]
    assert len(steps) == len(set(steps)) < 16
    assert min(steps) < -100


def test_of_plans_that_decode_alike_the_cheapest_is_simulated_that_bears_a_rate():
    shared = PlanPool(1, 2, 0, "decodes", 4)
    alone = {8: 100, 4: 30, 2: -40}
    pools = {many: PlanPool(0, 2, 0, Member(None, ParallelPlan(tp=2)), many) for many in alone}
    plans = [replace(left_out(2), candidate=SimpleNamespace(many=many)) for many in (2, 8, 4)]
    looked: list[PlanPool] = []

    def failing(asked: dict[PlanPool, tuple[int, int]]) -> list[int]:
        looked.extend(asked)
        return [90 if side is shared else min(alone[side.replicas], asked[side][1]) for side in asked]

    made = object.__new__(FrontSearch)
    sides = SimpleNamespace(of=lambda one: [pools[one.many], shared])
    bounds = {shared: Bound(step=120, why="", tpot_ms=1.0)}
    made._search, made._alone = SimpleNamespace(sides=sides, bounds=bounds, looks=SimpleNamespace(failing=failing)), {}
    assert made._able(plans, -50) == (plans[0], -43)
    assert made._able(plans, 20) == (plans[1], 87)
    assert made._able(plans, 88) == (None, 87)
    looked.clear()
    assert made._able(plans[2:], 80)[0] is None  # twice as many replicas bear twice the rate: it is not looked at
    assert looked == [shared]
    plans[2].passed = 85
    assert made._able(plans[2:], 80) == (plans[2], 85)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([(8.0, 2.0), (5.0, 3.0)], [(8.0, 2.0), (5.0, 3.0)]),
        ([(8.0, 2.0), (0.0, 0.0)], [(8.0, 2.0), (8.0 * rate_of(4) / rate_of(20), 2.0)]),
        ([(8.0, 2.0), (0.0, math.nan)], [(8.0, 2.0), (8.0 * rate_of(4) / rate_of(20), 2.0)]),
        ([(8.0, 2.0), None], None),
        ([(0.0, 2.0), (5.0, 3.0)], None),
    ],
)
def test_a_rate_at_which_no_request_came_is_expected_to_give_users_what_the_one_above_does(told, found) -> None:
    both = served_at([20, 4], told)
    assert both is None if found is None else np.allclose(both, found)
