"""Parts of TTFT, rates per user, goodput, K/V occupancy and batches, each from a table worked out in the head."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.report.metrics import service
from clustersim.report.words.run import share_words
from clustersim.report.words.service import service_lines

NONE = float("nan")


@pytest.fixture
def requests() -> dict[str, np.ndarray]:
    """Three finished requests (the last one of a single token), one rejected, one unfinished."""
    return {
        "replica": np.zeros(5, np.int64),
        "arrived_ns": np.array([0, 10, 20, 30, 40]),
        "admitted_ns": np.array([30, 10, 40, NONE, 60.0]),
        "first_token_ns": np.array([100, 50, 120, NONE, 140.0]),
        "finished_ns": np.array([500, 250, 120, NONE, NONE]),
        "prompt_tokens": np.array([10, 20, 30, 40, 50]),
        "output_tokens": np.array([5, 3, 1, 9, 9]),
        "generated_tokens": np.array([5, 3, 1, 0, 2]),
        "outcome": np.array(["finished", "finished", "finished", "rejected", "unfinished"], object),
    }


@pytest.fixture
def steps() -> dict[str, np.ndarray]:
    """Three steps of one replica, the last row standing for two: 40 of 100 blocks for 100 ns, then 20 for 400."""
    return {
        "replica": np.zeros(3, np.int64),
        "start_ns": np.array([0, 50, 100]),
        "end_ns": np.array([50, 100, 500]),
        "empties_ns": np.array([-1, -1, 500]),
        "count": np.array([1, 1, 2]),
        "batch_requests": np.array([2, 2, 1]),
        "prefill_tokens": np.array([8, 0, 0]),
        "decode_tokens": np.array([0, 2, 1]),
        "waiting": np.array([1, 0, 0]),
        "running": np.array([2, 2, 1]),
        "kv_blocks_used": np.array([40, 40, 20]),
        "kv_blocks_total": np.array([100, 100, 100]),
    }


def test_queueing_and_prefill_add_up_to_ttft(requests):
    np.testing.assert_array_equal(service.queueing_ns(requests), [30, 0, 20, NONE, 20])
    np.testing.assert_array_equal(service.prefill_ns(requests), [70, 40, 80, NONE, 80])


def test_parts_of_ttft_cover_finished_requests(requests):
    parts = service.ttft_parts(requests)
    assert parts["ttft_queueing_ms"]["mean"] == pytest.approx(50e-6 / 3)
    assert parts["ttft_prefill_ms"]["max"] == 80e-6
    requests["finished_ns"][:] = NONE
    assert service.ttft_parts(requests) == {"ttft_queueing_ms": None, "ttft_prefill_ms": None}


def test_a_user_sees_one_over_tpot(requests):
    requests["finished_ns"][1] = 450  # two gaps of 200 ns, beside four of 100
    rates = service.user_rates(requests)
    assert list(rates) == list(service.USER_STATISTICS)
    assert (rates["mean"], rates["min"], rates["p50"]) == (7.5e6, 5e6, 7.5e6)
    assert rates["p10"] == pytest.approx(5.5e6)
    requests["generated_tokens"][:] = 1
    assert service.user_rates(requests) is None


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft": 50.0}, 1),
        ({"ttft": 100.0, "e2e": 240.0}, 2),
        ({"tpot": 99.0}, 1),  # the one-token request
        ({"itl": 1.0}, 3),
    ],
)
def test_goodput_is_what_met_every_target_of_all_that_arrived(requests, limits, good):
    found = service.goodput(requests, limits)
    assert found == {"requests_per_s": pytest.approx(good / 500e-9), "share": good / 5}


def test_a_request_that_failed_in_its_log_is_in_no_share_but_the_run_lasts_until_it_came(requests):
    requests["output_tokens"][3], requests["arrived_ns"][3] = 0, 1000
    assert service.goodput(requests, {"itl": 1.0}) == {"requests_per_s": pytest.approx(3 / 1000e-9), "share": 3 / 4}


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ({"ttft": "1 s", "itl": None}, "met every target"),
        ({"ttft": "1 s", "itl": "1 ms"}, "met every target but ITL's"),
        ({"itl": "1 ms"}, "finished (a request has no ITL of its own)"),
    ],
)
def test_goodput_is_not_said_to_ask_for_gaps(targets, words):
    lines = dict(service_lines({"goodput": {"requests_per_s": 2.0, "share": 0.9958}, "targets": targets}))
    assert lines["goodput"] == f"2.000 requests/s, 99.5% of all, {words}"


@pytest.mark.parametrize(("share", "words"), [(0.9999, "99.9%"), (1.0, "100%"), (0.987, "99%"), (0.5, "50%")])
def test_less_than_all_is_not_written_as_all(share, words):
    assert share_words(share) == words


def test_goodput_needs_targets(requests):
    assert service.goodput(requests, {}) is None


def test_occupancy_is_the_mean_over_time_and_the_maximum(steps):
    assert service.kv_occupancy(steps) == {
        "mean": pytest.approx((40 * 100 + 20 * 400) / 500 / 100),
        "max": 0.4,
        "replica_max": 0.4,
    }
    other = {name: column.copy() for name, column in steps.items()} | {"replica": np.ones(3, np.int64)}
    other["kv_blocks_used"] //= 2
    two = {name: np.concatenate([column, other[name]]) for name, column in steps.items()}
    found = service.kv_occupancy(two)
    assert found is not None
    assert (found["max"], found["replica_max"]) == (0.3, 0.4)
    steps["kv_blocks_total"][:] = 0
    assert service.kv_occupancy(steps) is None


def test_batches_weigh_every_step_alike_and_queues_every_instant(steps):
    found = service.batch_sizes(steps)
    assert found["requests"] == (2 + 2 + 1 + 1) / 4
    assert found["tokens"] == (8 + 2 + 1 + 1) / 4
    assert found["running"] == pytest.approx((2 * 100 + 1 * 400) / 500)
    assert found["waiting"] == pytest.approx(1 * 50 / 500)
