"""The front of a search, and the area below it."""

from __future__ import annotations

from typing import Any

from clustersim.search.plans.bounds.limits import Bound
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.result import Found


def standing(tokens_per_s: float, gap_ms: float, *, devices: int = 1) -> Standing:
    numbers: dict[str, Any] = {"throughput.output_tokens_per_s": tokens_per_s, "tpot_ms.p50": gap_ms}
    made: Any = None
    return Standing(
        candidate=made,
        words=f"{tokens_per_s:g}",
        bound=Bound(step=None, why="", tpot_ms=None),
        passed=0,
        row={"failed": None, "numbers": numbers},
        row_devices=devices,
    )


def found(*standings: Standing) -> Found:
    return Found(
        standings=standings, finalists=[], worth=lambda one: 1.0, objective="capacity", runs=0, rated=lambda rate: ()
    )


def test_the_area_is_that_of_the_steps_below_the_front():
    both = found(standing(300.0, 100.0), standing(100.0, 25.0))  # 10 and 40 tokens/s of a user
    assert both.hypervolume() == 300 * 10 + 100 * 30


def test_what_another_plan_beats_in_both_adds_nothing():
    plans = standing(300.0, 100.0), standing(100.0, 25.0)
    more = found(*plans, standing(250.0, 200.0), standing(100.0, 50.0), standing(160.0, 40.0, devices=2))
    assert [one.words for one in more.front()] == ["300", "100"]
    assert more.hypervolume() == found(*plans).hypervolume()


def test_nothing_simulated_has_no_area():
    one = standing(300.0, 100.0)
    one.passed = None
    assert found(one).hypervolume() == 0.0
