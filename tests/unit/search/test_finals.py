"""Finalists at length: their capacities go up as well as down from those of short runs, and no farther than is said."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from clustersim.search.plans.bounds.limits import RATE, Bound
from clustersim.search.plans.deployments import Candidate
from clustersim.search.plans.finals import Finalist, LongRuns, at_length, confirm, last_longest, reopen, settle
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import FLATTERED, Standing
from clustersim.search.plans.result import most_open
from clustersim.search.plans.search import refined


def at(step: int) -> Standing:
    bound = Bound(step=None, why="", tpot_ms=None)
    return Standing(candidate=Candidate(replicas=(), counts=(), setting=0), words="", bound=bound, passed=step)


@pytest.mark.parametrize(("short", "bears"), [(100, 100), (100, 101), (100, 107), (100, 115), (100, 99), (100, 61)])
def test_a_finalist_reaches_at_length_what_it_bears(short: int, bears: int):
    asked = []

    def run(all_asked):
        asked.extend(step for _, step, _ in all_asked)
        return [
            {"failed": None, "numbers": {"goodput.share": 0.95 if step <= bears else 0.5}} for _, step, _ in all_asked
        ]

    plan = at(short)
    plan.row = plan.passing[short] = {"failed": None, "numbers": {}}
    left = list[int]()
    (found,) = at_length(
        [plan], run, seeds=1, share=0.9, told=lambda going: left.extend(one.rates_left for one, _ in going)
    )
    settle([found])
    between = [(more, len(left) - at) for at, more in enumerate(left) if len(left) - at < 4]
    assert bears == 115 or all(abs(more - true) <= 1 for more, true in between)  # of what lies between two rates
    assert plan.fate == ("open" if bears == 115 else "simulated")  # higher than that nothing was tried
    assert found.step == bears
    assert found.capacity == rate_of(bears)
    assert len(asked) == len(set(asked))


def test_the_mean_of_seeds_decides(monkeypatch: pytest.MonkeyPatch):
    def run(all_asked):
        return [
            {"failed": None, "numbers": {"goodput.share": (1.0, 0.86, 0.85)[seed] - 0.01 * (step - 100)}}
            for _, step, seed in all_asked
        ]

    (found,) = at_length([at(100)], run, seeds=3, share=0.9)
    assert (found.step, found.shares) == (100, [1.0, 0.86, 0.85])


@pytest.mark.parametrize(
    ("part", "whole", "looks"), [(100, 100, 99), (95, 100, 99), (100, 91, 99), (100, 100, 0), (9, 9, 3)]
)
def test_what_is_told_is_confirmed_by_a_run_of_all_replicas_or_said_not_to_be(part: int, whole: int, looks: int):
    """Its mean over seeds bears step 100, its own seed and all its replicas what is said; looks are those in time."""
    ran = list[int]()

    def run(step: int):
        ran.append(step)
        rows = [{"failed": None, "numbers": {"goodput.share": 0.95 if step <= most else 0.5}} for most in (part, whole)]
        return None if len(ran) > looks else rows[: 1 + (step <= part)]

    row: Any = {"failed": None, "numbers": {"goodput.share": 0.0}}
    one = Finalist(standing=at(120), step=100, shares=[0.95], row=row)
    confirm(one, run, 0.9)
    settle([one])
    assert (one.is_confirmed, one.ran) == ((True, min(part, whole)) if looks > 3 else (False, None))
    assert max(ran) == 100
    assert one.rate == rate_of(one.ran or 100)
    assert list(one.standing.passing) == [one.ran or 100]
    if one.is_confirmed:
        assert (one.row, one.whole) == ({"failed": None, "numbers": {"goodput.share": 0.95}},) * 2


def test_who_meets_its_targets_at_any_rate_is_tried_no_higher_than_a_sixth_above():
    def run(all_asked):
        return [{"failed": None, "numbers": {"goodput.share": 1.0}} for _ in all_asked]

    (found,) = at_length([at(100)], run, seeds=1, share=0.9)
    assert found.step == 115


def test_whoever_reached_more_in_a_short_run_than_the_best_does_at_length_is_run_at_length_too():
    plans = [at(short) for short in (400, 300, 260, 100)]
    bears = dict(zip(map(id, plans), (150, 200, 250, 90), strict=True))

    def run(all_asked):
        return [
            {"failed": None, "numbers": {"goodput.share": 0.95 if step <= bears[id(one)] else 0.5}}
            for one, step, _ in all_asked
        ]

    found = last_longest(plans, lambda one: 1.0, run, seeds=1, share=0.9)
    assert [(one.standing, one.step) for one in found] == [(plans[2], 250), (plans[1], 200), (plans[0], 150)]
    assert not any(one.is_cut for one in found)
    only = last_longest(plans, lambda one: 1.0, run, seeds=1, share=0.9, is_late=lambda _: True)
    assert [(one.standing, one.is_cut) for one in only] == [(plans[0], True)]  # the first, until it reaches anything
    assert 0 < only[0].step < 150
    few = last_longest(plans, lambda one: 1.0, run, seeds=1, share=0.9, is_late=lambda asked: len(asked) > 1)
    assert [one.standing for one in few] == [plans[1], plans[0]]  # one at a time, of those beside it; 260 is a tie
    some = last_longest(plans, lambda one: 1.0, run, seeds=1, share=0.9, is_late=lambda asked: asked[-1][0] is plans[1])
    assert [(one.standing, one.step) for one in some] == [(plans[2], 250), (plans[0], 150)]  # no time for the other


def test_what_is_left_at_length_is_told_by_what_runs_took_and_goes_down_while_they_go_on():
    left = LongRuns(5.0)
    left.begin(5.0, 10.0, 30.0)
    assert (left.left_s(5.0), left.left_s(9.0)) == (30.0, 26.0)
    left.begin(9.0, 10.0, 20.0)  # 10 took 4
    assert (left.left_s(9.0), left.left_s(12.0), left.left_s(20.0)) == (8.0, 5.0, 0.0)


def test_a_bound_that_was_held_against_what_did_not_last_leaves_a_plan_open():
    best, *plans = at(400), at(300), at(200), at(300)
    for one, why in zip(plans, (RATE, RATE, "least TTFT"), strict=True):
        one.fate, one.why, one.passed = "pruned", why, None
        one.bound = Bound(step=300 if one is not plans[1] else 200, why=why, tpot_ms=None)
    (found,) = at_length(
        [best],
        lambda asked: [
            {"failed": None, "numbers": {"goodput.share": 0.95 if step <= 250 else 0.5}} for _, step, _ in asked
        ],
        seeds=1,
        share=0.9,
    )
    reopen(plans, lambda one: 1.0, found)
    assert [(one.fate, one.why) for one in plans] == [
        ("open", FLATTERED),
        ("pruned", RATE),
        ("pruned", "least TTFT"),
    ]


@pytest.mark.parametrize(("rival", "refines"), [(104, False), (106, True), (110, False)])
def test_the_best_plan_is_found_to_a_step_where_that_tells_whether_another_one_could_be_better(
    rival: int, refines: bool
):
    """It bears step 102 and is known to three steps; a tie is three steps, too."""
    best, other, asked = at(101), at(0), list[int]()
    best.candidate, best.failed, other.alone = replace(best.candidate, replicas=(None, None), counts=(1, 1)), 104, rival
    other.passed = None

    def run(all_asked):
        asked.extend(step for _, step, _ in all_asked)
        return [{"failed": None, "numbers": {"goodput.share": 1.0 * (step <= 102)}} for _, step, _ in all_asked]

    search: Any = SimpleNamespace(
        worth=lambda one: 1.0,
        is_late=lambda asked: False,
        begin_long=lambda going: None,
        run_at_length=run,
        question=SimpleNamespace(share=0.9),
    )
    (found,) = refined(search, Finalist(standing=best, step=101, shares=[1.0], row=None), [best, other], 1)
    assert (found.step, bool(asked)) == ((102, True) if refines else (101, False))


def test_what_open_plans_reach_at_most_is_a_tie_only_beside_the_best():
    told = {"settled": True, "finalists": [{"value": 2.5}]}
    tie = "(a tie with the best)"
    for most, words in ((2.45, tie), (2.56, tie), (2.25, "(90.0% of the best)")):
        assert most_open(told | {"nearest_open": most}, "requests/s").endswith(f"by bounds and looks {words}")
    assert most_open(told | {"nearest_open": 2.45, "settled": False}, "requests/s").endswith("by bounds and looks")
