"""Metrics of a run, each from a table that can be worked out in the head."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.report.metrics import latencies as metrics

NONE = float("nan")


@pytest.fixture
def requests() -> dict[str, np.ndarray]:
    """Three finished requests (the last one of a single token), one rejected, one unfinished."""
    return {
        "arrived_ns": np.array([0, 10, 20, 30, 40]),
        "first_token_ns": np.array([100, 50, 120, NONE, 140.0]),
        "finished_ns": np.array([500, 250, 120, NONE, NONE]),
        "prompt_tokens": np.array([10, 20, 30, 40, 50]),
        "generated_tokens": np.array([5, 3, 1, 0, 2]),
        "outcome": np.array(["finished", "finished", "finished", "rejected", "unfinished"], object),
    }


def test_ttft_is_first_token_minus_arrival(requests: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(metrics.ttft_ns(requests), [100, 40, 100, NONE, 100])


def test_e2e_is_last_token_minus_arrival(requests: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(metrics.e2e_ns(requests), [500, 240, 100, NONE, NONE])


def test_tpot_is_undefined_for_one_token(requests: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(metrics.tpot_ns(requests), [100, 100, NONE, NONE, NONE])


def test_summary_counts_finished_requests_only(requests: dict[str, np.ndarray]) -> None:
    found = metrics.summarise(requests)
    assert found["requests"] == {"arrived": 5, "finished": 3, "rejected": 1, "unfinished": 1, "cancelled": 0, "lost": 0}
    assert found["ttft_ms"]["mean"] == pytest.approx(80e-6)
    assert found["ttft_ms"]["max"] == 100e-6
    assert found["itl_ms"] is None
    assert found["makespan_s"] == 500e-9


def test_throughput_is_per_second_of_the_makespan(requests: dict[str, np.ndarray]) -> None:
    found = metrics.throughput(requests)
    assert found["output_tokens_per_s"] == pytest.approx((5 + 3 + 1) / 500e-9)
    assert found["total_tokens_per_s"] == pytest.approx((9 + 60) / 500e-9)
    assert found["requests_per_s"] == pytest.approx(3 / 500e-9)


def test_nothing_finished_has_no_latency_and_no_rate(requests: dict[str, np.ndarray]) -> None:
    requests["finished_ns"] = np.full(5, NONE)
    found = metrics.summarise(requests)
    assert found["ttft_ms"] is None
    assert found["makespan_s"] is None
    assert found["throughput"] == dict.fromkeys(found["throughput"], None)


def test_itl_pools_gaps_by_how_often_they_occur(requests: dict[str, np.ndarray]) -> None:
    gaps = (np.array([1_000_000, 5_000_000]), np.array([99, 1]))
    itl = metrics.summarise(requests, gaps)["itl_ms"]
    assert itl["mean"] == pytest.approx(1.04)
    assert (itl["p50"], itl["max"]) == (1.0, 5.0)
    assert itl["p99"] == pytest.approx(1.04)  # between the 99th and the 100th of 100 values, 1 % of the way


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        metrics.weighted_percentile(np.array([1.0]), np.array([0]), [50])


def test_a_target_is_met_when_p99_is_at_most_it() -> None:
    assert metrics.target_met({"p99": 50.0}, 50e6)
    assert not metrics.target_met({"p99": 50.1}, 50e6)


def test_targets_name_every_mistake() -> None:
    with pytest.raises(InputError) as caught:
        metrics.targets_ns({"ttfs": "1 s", "tpot": "50", "e2e": "9 s"})
    first, second = caught.value.problems
    assert "did you mean 'ttft'" in str(first)
    assert "targets.tpot: '50' has no unit" in str(second)


def test_attainment_is_the_weighted_share_within_the_target() -> None:
    assert metrics.attainment(np.array([1, 2, 3]), np.array([1, 1, 2]), 2.0) == 0.5


def test_kv_peak_is_the_fullest_replica() -> None:
    steps = {"kv_blocks_used": np.array([10, 30]), "kv_blocks_total": np.array([100, 40])}
    assert metrics.kv_peak(steps) == 0.75
    assert metrics.kv_peak({name: column[:0] for name, column in steps.items()}) is None
