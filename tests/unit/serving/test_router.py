"""Which replica a request goes to."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from clustersim.serving.config import ServingConfig
from clustersim.serving.router import DrawnPairs
from tests.oracle.serving.routers import make_router
from tests.oracle.serving.sequence import Sequence
from tests.round_numbers import deployment

REQUEST = Sequence(request=0, prompt_tokens=1, output_tokens=1)


@dataclass
class Loaded:
    index: int
    outstanding: int
    waiting: int = 0
    running: int = 0


def routed(router, loads, count=1):
    chosen = make_router(ServingConfig(router=router), seed=7)
    return [chosen.route(0, REQUEST, loads) for _ in range(count)]


@pytest.mark.parametrize(
    ("router", "expected"),
    [
        ("round_robin", [0, 1, 2, 0, 1]),
        ("least_outstanding", [1] * 5),  # 3 tokens; the first among equals
        ("fewest_waiting", [2] * 5),  # 4 × waiting + running: 8, 4 and 3
    ],
)
def test_a_router_takes(router, expected):
    loads = [Loaded(0, 5, 2), Loaded(1, 3, 1, 0), Loaded(2, 3, 0, 3)]
    assert routed(router, loads, 5) == expected


def test_power_of_two_takes_the_less_loaded_of_two_that_are_drawn():
    loads = [Loaded(0, 1), Loaded(1, 2), Loaded(2, 9)]
    chosen = routed("power_of_two", loads, 300)
    assert chosen == routed("power_of_two", loads, 300)
    assert 2 not in chosen  # it loses against either
    assert 150 < chosen.count(0) < 250  # two of three pairs have it: 200 of 300, σ = 8
    assert routed("power_of_two", loads[:1]) == [0]


def test_pairs_drawn_ahead_are_those_that_are_drawn_one_by_one_as_replicas_fail():
    # Each stretch: how many live, how many requests come, and how many pairs are drawn for them at least.
    router, pairs, used = make_router(ServingConfig(router="power_of_two"), 5), DrawnPairs(5), 0
    for living, count, drawn in [(3, 5, 9), (1, 4, 6), (2, 3, 3), (3, 0, 4), (4, 6, 8)]:
        loads = [Loaded(index, 10 - index) for index in range(living)]  # the later one of a pair is chosen
        expected = [router.route(0, REQUEST, loads) for _ in range(count)]
        ahead = pairs.next(used, living, drawn)[: 2 * count].reshape(-1, 2)
        assert expected == ([0] * count if living == 1 else ahead.max(axis=1).tolist())
        used = count


def test_least_outstanding_counts_prompt_and_output_tokens_of_what_has_not_finished(run, two_replicas):
    # 10 + 1 tokens go to replica 0, 2 + 1 and then 3 + 1 to replica 1 (3 < 11, 7 < 11), then 9 + 1 too (7 < 11).
    arrivals = [(0, 10, 1), (1, 2, 1), (2, 3, 1), (3, 9, 1)]
    result = run(deployment(arrivals, plan=two_replicas, router="least_outstanding"))
    assert result.replica.tolist() == [0, 1, 1, 1]


def test_least_outstanding_forgets_what_has_finished(run, two_replicas):
    # A step takes 6.6 µs + 10 ns per pair: both are done by 20 µs, so that the third finds two idle replicas.
    result = run(deployment([(0, 1, 1), (0, 10, 1), (20_000, 1, 1)], plan=two_replicas, router="least_outstanding"))
    assert result.replica.tolist() == [0, 1, 0]


def test_a_rejected_request_leaves_nothing_outstanding(run, two_replicas):
    # 5,000 tokens need 1,250 blocks of 4, the pool has 1,000.
    result = run(deployment([(0, 5000, 1), (0, 1, 1)], plan=two_replicas, router="least_outstanding"))
    assert result.replica.tolist() == [0, 0]
    assert result.reasons == {0: "needs 1250 K/V blocks for 5000 tokens, but the pool has 1000"}
