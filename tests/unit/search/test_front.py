"""The front of a search, and the area below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clustersim.plan.parallel import ParallelPlan
from clustersim.search.plans.front.points import Hypervolume
from clustersim.search.plans.front.runs import Chance, Expected, filled
from clustersim.search.plans.front.search import FrontSearch
from clustersim.search.plans.outcome import Standing
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
    made._simulate([(one, 0), (other, 0)])
    assert [(plan_.fate, plan_.why) for plan_ in (one, other)] == [
        ("simulated", "for the front; before, it was screened: fails at 2/s"),
        ("screened", "fails at 3/s"),
    ]


def test_no_more_plans_are_looked_at_for_the_front_than_there_is_time_for():
    plans = [standing((1.0, 1.0)) for _ in range(200)]
    for one in plans:
        one.candidate = SimpleNamespace(devices=1)
    clock = SimpleNamespace(spent_s=0.0, prepared_s=0.0, bound=lambda some, place: None, lacks_time=lambda *_: False)
    made = object.__new__(FrontSearch)
    made._search, made._looks_end_s = clock, 10.0
    looked = 0
    for some in made._nearest(plans):
        clock.spent_s += 0.5 * len(some)
        looked += len(some)
    assert 20 <= looked <= 21


def test_those_runs_are_simulated_that_may_add_most_as_far_as_plans_of_their_kind_keep_what_looks_promise():
    best, cut = standing((300.0, 100.0)), "most requests per second"
    best.candidate = plan(pools=1)
    alike = [standing((1.0, 1.0)) for _ in range(3)]  # each is expected to reach what the one before does, and more
    for one in alike:
        one.candidate, one.passed, one.passing, one.fate, one.why = plan(pools=2), None, {}, "pruned", cut
    slow, dark = (replace(alike[0], fate=fate, why="least TPOT") for fate in ("pruned", "open"))
    dark.candidate = plan(pools=3)
    asked: list[tuple[Any, int]] = []

    def expect(chances: Sequence[Chance]) -> list[Expected | None]:
        hopes = {id(one): (200.0 + at, 60.0 + at) for at, one in enumerate(alike)} | {id(best): (300.0, 10.0)}
        return [None if below or id(one) not in hopes else hopes[id(one)] for one, below in chances]

    def simulate(chances: Sequence[Chance]) -> None:
        asked.extend(chances)
        for one, _ in chances:
            other = standing((100.0, 1000.0 / 30.0))  # half of what was hoped for
            one.passed, one.passing, one.row = 0, other.passing, other.row

    each = {"expect": expect, "simulate": simulate, "cost": lambda one: 1.0}
    told = filled([best, *alike, slow, dark], 0.01, **each, left_s=lambda: 2.0)
    assert asked == [(alike[2], 0)]  # beside it the others add nothing, and then less than it found
    assert (told.plans, told.lower, told.unknown) == (1, 0, 1)
    assert told.most == told.together == 0.0
    asked.clear()
    alike[2].passed, alike[2].passing, alike[2].fate = None, {}, "screened"
    told = filled([best, *alike], 0.01, **each, left_s=lambda: 0.5)
    assert (told.plans, asked, told.spent) == (0, [], True)
    assert told.most == pytest.approx(202 * 52 / 3000)
    each["cost"] = lambda one: 1.0 if one[0] is alike[0] else 2.0
    told = filled([best, *alike], 0.01, **each, left_s=lambda: 1.5)  # there is time for one alone, the cheapest
    assert (asked, told.spent) == ([(alike[0], 0)], True)
    told = filled([best, *alike], 0.01, **{**each, "expect": lambda some: [None] * len(some)}, left_s=lambda: 9.0)
    assert (told.plans, told.most, told.together, told.unknown, told.spent) == (0, None, None, 4, True)
