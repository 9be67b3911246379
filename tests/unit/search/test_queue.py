"""Rates are judged by queues of which the limit is known: one server, or 32, each of which takes a second a request."""

from __future__ import annotations

import heapq
from functools import partial

import numpy as np
import pytest

from clustersim.scenario import load
from clustersim.search.queue import GROWTH, LEFT, SHARE, growth_of, is_borne, is_growing, queue_numbers, until_steady

SEEDS = range(12)


def row(growth: float = 0.0, left: float = 0.0, share: float = 1.0) -> dict:
    return {"failed": None, "numbers": {GROWTH: growth, LEFT: left, SHARE: share}}


def served(rate: float, count: int, *, servers: int = 1, cv: float = 1.0, seed: int = 0) -> list[dict]:
    """Serve requests in turn, at a rate as a part of the limit; all meet their targets."""
    gaps = np.random.default_rng(seed).gamma(1 / cv**2, cv**2 / rate / servers, count)
    arrived, free, ended = np.cumsum(gaps), [0.0] * servers, []
    for at in arrived:
        ended.append(max(at, heapq.heappop(free)) + 1.0)
        heapq.heappush(free, ended[-1])
    growth, left = growth_of(arrived, np.array(ended)) or (0.0, 0.0)
    return [row(growth, left)]


def is_told_to_bear(count: int, rate: float, **queue: float) -> bool:
    """Judge a rate by a run of so many requests, or more where these don't tell."""
    ((_, rows),) = until_steady(lambda asked: [served(rate, times * count, **queue) for _, times in asked], 1, 0.9)
    return is_borne(rows, 0.9)


@pytest.mark.parametrize(
    ("count", "servers", "cv"), [(50, 1, 1.0), (50, 32, 1.0), (1600, 1, 1.0), (1600, 1, 3.0), (1600, 32, 3.0)]
)
def test_a_rate_below_the_limit_is_borne_and_one_above_is_not(count: int, servers: int, cv: float):
    """Growth is 1 - 1/1.3 = 0.23 above. Of 50 Poisson arrivals one seed of a dozen may tell too little."""
    judged = partial(is_told_to_bear, count, servers=servers, cv=cv)
    assert sum(judged(0.8, seed=seed) for seed in SEEDS) == len(SEEDS)
    assert sum(judged(1.3, seed=seed) for seed in SEEDS) <= (1 if count == 50 else 0)


def test_a_queue_grows_by_what_is_not_served():
    """Evenly, at 1.25 times the limit: a fifth of all, and half of that lies between its second and fourth quarter."""
    arrived = np.arange(1000.0)
    assert growth_of(arrived, 1.25 * np.arange(1, 1001)) == pytest.approx((0.2, 0.175), abs=2e-3)
    assert growth_of(arrived, arrived + 20.0) == pytest.approx((0.0, 0.02), abs=1e-3)  # none waits, each takes 20
    assert growth_of(arrived, arrived + 2000.0) == pytest.approx((1.0, 0.875), abs=2e-3)  # none has ended
    assert growth_of(np.zeros(3), np.ones(3)) is None
    assert growth_of(np.zeros(0), np.zeros(0)) is None


def test_requests_that_failed_where_they_were_recorded_do_not_arrive():
    """A queue of a server that takes 1.25 s, with and without a failed request beside each fourth one."""
    scenario = load("quickstart")
    arrived = np.arange(1000) * 10**9
    ended = (np.arange(1, 1001) * 1.25e9).astype(np.int64)
    alone = {
        "arrived_ns": arrived,
        "first_token_ns": ended,
        "finished_ns": ended,
        "output_tokens": np.ones(1000, np.int64),
        "outcome": np.full(1000, "finished"),
    }
    failed = {
        "arrived_ns": arrived[::4],
        "first_token_ns": arrived[::4],
        "finished_ns": arrived[::4],
        "output_tokens": np.zeros(250, np.int64),
        "outcome": np.full(250, "rejected"),
    }
    both = {name: np.concatenate([alone[name], failed[name]]) for name in alone}
    assert queue_numbers(both, scenario) == queue_numbers(alone, scenario)
    assert queue_numbers(alone, scenario)[GROWTH] == pytest.approx(0.2, abs=2e-3)


@pytest.mark.parametrize(
    ("runs", "times", "borne"),
    [
        ([row(share=0.8, growth=0.5)], 1, False),  # too few in time: no longer run is needed
        ([row(growth=0.04, left=0.1)], 1, True),
        ([row(growth=1.0, left=0.875), row(growth=0.01, left=0.12)], 7, True),  # it filled up
        ([row(growth=0.3, left=0.3), row(growth=0.29, left=0.3)], 3, False),  # more come than are served
        ([row(growth=1.0, left=0.9)] * 9, 64, False),
        ([row(growth=0.3, left=0.3), row(growth=0.01, left=0.1, share=0.5)], 3, False),
    ],
)
def test_a_run_is_made_longer_until_it_tells(runs, times, borne):
    left = iter(runs)
    ((told, rows),) = until_steady(lambda asked: [[next(left)] for _ in asked], 1, 0.9)
    assert (told, is_borne(rows, 0.9)) == (times, borne)


def test_seeds_are_judged_together():
    assert not is_growing([row(growth=0.12), row(growth=-0.03)])
    assert is_borne([row(share=0.85), row(share=0.96)], 0.9)
    assert is_growing([row(left=0.1), row(left=0.2)])
