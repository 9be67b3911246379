"""Plans that are simulated while there is time: no run is begun that has none left for itself and what must follow."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from clustersim.plan.parallel import ParallelPlan
from clustersim.search.plans.bounds.limits import RATE, Bound
from clustersim.search.plans.grid import SLOWEST, rate_of
from clustersim.search.plans.looks.alone import lowest
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.walk.order import Order
from clustersim.search.plans.walk.reached import Reached
from clustersim.search.plans.walk.walk import SPENT, Walk

BEARS = 80
FAILS: Any = {"failed": None, "numbers": {"goodput.share": 0.5, "alone": "prefill pool"}}


def plan(step: int) -> Standing:
    """Return a plan with one pool that may reach a step."""
    candidate: Any = SimpleNamespace(replicas=(SimpleNamespace(plan=ParallelPlan(tp=1)),), counts=(1,))
    return Standing(candidate=candidate, words=f"{step}", bound=Bound(step=step, why=RATE, tpot_ms=None))


def test_no_run_is_begun_that_has_no_time_left():
    """Four plans bear step 80; each run takes a second, of the last three plans four, and their last run one more."""
    first, *others = plans = [plan(step) for step in (100, 99, 98, 97)]
    late, dear = plan(96), plan(95)
    asked: list[Standing] = []

    def run(some):
        asked.extend(one for one, _ in some)
        return [{"failed": None, "numbers": {"goodput.share": 0.95 if step <= BEARS else 0.5}} for _, step in some]

    def spent_s() -> float:
        return sum(1.0 if one in plans else 4.0 for one in asked)

    def walked(effort_s: float, fails: tuple[Standing, ...] = ()) -> int:
        asked.clear()
        for one in (*plans, dear):
            one.fate, one.why, one.passed, one.failed, one.passing = "open", "", None, None, {}
        reached = Reached(worth=lambda one: 1.0, exhaustive=False)
        order: Any = SimpleNamespace(of=lambda groups: (groups[0], [late], 0.0) if groups else ([], [], 0.0))
        made = Walk(
            reached=reached,
            order=order,
            share=0.9,
            run=run,
            refused=lambda some: [FAILS if one in fails else None for one, _ in some],
            effort=lambda one: 0,
            begins=lambda one, step: 0.1 if one in fails else 2.0 if one in plans else 5.0,
            cost=lambda one, step: 1.0 if one in plans else 4.0,
            last=lambda one: 1.0,
            is_spent=lambda more_s: spent_s() + more_s > effort_s,
            told=lambda done, total: None,
        )
        made.through([*plans, dear])
        return len(asked)

    whole = walked(1000.0)
    assert (first.fate, first.passed, late.fate, late.why) == ("simulated", BEARS, "open", SPENT)
    asked_dear = asked.count(dear)
    assert asked_dear
    for effort_s, dear_runs in ((spent_s() - 4.0 * asked_dear + 4.9, 0), (spent_s() - 4.0 * asked_dear + 5.0, 1)):
        assert walked(effort_s) == whole - asked_dear + dear_runs
        assert {one.fate for one in others} == {"simulated"}
    assert (walked(6.0), dear.why) == (6, SPENT)  # all four have a run, and two of them another one
    assert [one.fate for one in plans[2:]] == ["open"] * 2
    assert walked(6.5, (dear,)) == 6  # there is no time for the dear one, but to see that it fails
    assert (dear.fate, dear.why) == ("screened", "its prefill pool by itself fails at 2.15152/s")


def test_a_plan_waits_for_what_those_before_it_take_where_there_is_time_for_it_alone():
    plans, dear = [plan(step) for step in (100, 99, 98)], []
    made: Any = SimpleNamespace(
        waiting=deque(plans),
        reached=SimpleNamespace(
            least=1.0, is_pruned=lambda one: False, is_beaten=lambda one: False, start=lambda one: 0
        ),
        begins=lambda one, step: 7.0 if one is plans[2] else 5.0,
        is_spent=lambda more_s: more_s > 6.0,
        _spare=dear.append,
    )
    assert [Walk._next(made), Walk._next(made)] == [plans[:1], plans[1:2]]
    assert dear == plans[2:]


def test_a_plan_that_fails_at_what_another_one_reached_beside_it_is_not_tried_any_lower():
    good, bad = (
        Standing(
            candidate=with_two_pools(plan(100).candidate), words=words, bound=plan(100).bound, alone=100,
            looked=frozenset((0, 1)),
        )
        for words in ("good", "bad")
    )  # fmt: skip
    asked: list[tuple[str, int]] = []

    def run(some):
        asked.extend((one.words, step) for one, step in some)
        bears = {"good": BEARS, "bad": 20}
        return [{"failed": None, "numbers": {"goodput.share": 1.0 * (step <= bears[one.words])}} for one, step in some]

    reached = Reached(worth=lambda one: 1.0, exhaustive=False)
    reached.values.append(1.01)
    made: Any = SimpleNamespace(
        reached=reached, share=0.9, run=run, refused=lambda some: [None] * len(some), _in_time=lambda going, left: left
    )
    Walk.simulate(made, [good, bad])
    assert (good.fate, good.failed - good.passed <= good.apart) == ("simulated", True)
    assert bad.fate == "screened"
    assert min(step for words, step in asked if words == "bad") > 40
    assert not reached.going


def test_of_plans_that_tie_the_cheapest_come_first_and_of_those_that_take_as_long_the_best():
    plans = [
        Standing(candidate=with_two_pools(plan(200).candidate), words=f"{alone}", bound=plan(200).bound, alone=alone)
        for alone in (100, 99, 98, 96, 103)
    ]
    for one in plans[:4]:
        one.looked = frozenset((0, 1))
    costs = dict(zip(map(id, plans), (100.0, 10.0, 12.0, 1.0, 0.1), strict=True))
    reached: Any = Reached(worth=lambda one: 1.0, exhaustive=False)
    order: Any = SimpleNamespace(reached=reached, _cost=lambda one: costs[id(one)])
    assert [one.alone for one in Order._placed(order, plans)] == [99, 98, 100, 96, 103]  # 96 is more than a tie below


def with_two_pools(candidate: Any) -> Any:
    """Return a plan with two pools that are alike."""
    return SimpleNamespace(replicas=candidate.replicas * 2, counts=candidate.counts * 2)


def test_a_plan_has_to_pass_half_of_the_best_of_which_something_is_known():
    known, unknown = plan(200), plan(150)
    unknown.bound = Bound(step=None, why=RATE, tpot_ms=None)
    reached = Reached(worth=lambda one: 1.0, exhaustive=False)
    assert reached.passing(known, [known, unknown]) == reached.step(known, rate_of(known.ceiling) / 2)


def test_nobody_looks_for_what_fails_at_any_rate_below_a_request_in_hours():
    asked = []
    assert lowest(lambda step: bool(asked.append(step)), -3_000, -400) == SLOWEST
    assert asked == [SLOWEST]
