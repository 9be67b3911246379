"""The columns of requests: what they accept, and cutting, scaling and repeating them."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.scenario.load import load
from clustersim.workload import Requests


def requests_at(*arrived_at_ns, **columns):
    """Request i has a prompt of i tokens and an output of 10·i."""
    count = np.arange(len(arrived_at_ns))
    given = {
        "arrived_at_ns": arrived_at_ns,
        "prompt_tokens": count,
        "output_tokens": 10 * count,
        "source": "test",
    }
    return Requests(**(given | columns))


def test_columns_are_read_only_copies():
    arrived = np.array([0, 1, 2])
    requests = requests_at(0, 1, 2, arrived_at_ns=arrived)
    arrived[0] = 9
    assert requests.arrived_at_ns.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        requests.prompt_tokens[0] = 1


def test_equal_columns_are_equal():
    hashes = {"prefix_hashes": ([1], [1, 2]), "hash_block_tokens": 16}
    assert requests_at(0, 1) == requests_at(0, 1)
    assert requests_at(0, 1) != requests_at(0, 2)
    assert requests_at(0, 1) != requests_at(0, 1, source="other")
    assert requests_at(0, 1) != requests_at(0, 1, **hashes)
    assert requests_at(0, 1, **hashes) == requests_at(0, 1, **hashes)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"prompt_tokens": [1]},
            "columns of unequal length: arrived_at_ns 2, prompt_tokens 1, output_tokens 2",
        ),
        ({"prompt_tokens": [1, -2]}, "prompt_tokens: found -2 at index 1; expected 0 or more"),
        ({"arrived_at_ns": [5, 4]}, "arrived_at_ns: request 1 arrives before request 0"),
        (
            {"output_tokens": [1.0, 2.0]},
            r"output_tokens: found shape \(2,\) of float64; expected a one-dimensional array of integers",
        ),
        (
            {"output_tokens": [[1], [2]]},
            r"output_tokens: found shape \(2, 1\) of int64; expected a one-dimensional",
        ),
        ({"output_tokens": [True, False]}, r"output_tokens: found shape \(2,\) of bool"),
        (
            {"output_tokens": np.array([1, 2**63], dtype=np.uint64)},
            "found 9223372036854775808; expected numbers below",
        ),
        ({"hash_block_tokens": 16}, "prefix_hashes and hash_block_tokens are given together"),
        ({"prefix_hashes": ([1],), "hash_block_tokens": 16}, "output_tokens 2, prefix_hashes 1"),
        ({"concurrency": 0}, "concurrency: found 0; expected a whole number from 1"),
    ],
)
def test_columns_that_make_no_sense_are_refused(columns, message):
    with pytest.raises(InputError, match=message):
        requests_at(0, 1, **columns)


def test_take_keeps_the_first():
    assert requests_at(0, 5, 7).take(2) == requests_at(0, 5)


def test_window_is_half_open_and_starts_at_its_first_request():
    kept = requests_at(100, 110, 120, 130).window(10, 30)
    assert kept.arrived_at_ns.tolist() == [0, 10]
    assert kept.prompt_tokens.tolist() == [1, 2]


def test_window_without_requests_is_empty():
    assert len(requests_at(0, 100).window(1, 100)) == 0
    assert len(requests_at().window(0, 1)) == 0


def test_scaled_rounds_half_to_even():
    assert requests_at(1, 3, 5).scaled(2.0).arrived_at_ns.tolist() == [0, 2, 2]


def test_scaled_takes_the_decimal_that_was_written():
    # In binary, 1.1 is 8.9e-17 too large: dividing by it would lose a nanosecond.
    assert requests_at(0, 11 * 10**17).scaled(1.1).arrived_at_ns.tolist() == [0, 10**18]


def test_scaled_is_exact_where_products_leave_int64():
    # 1.125 = 9/8, and 9e18 · 8 is above 2⁶³.
    assert requests_at(0, 9 * 10**18 + 5).scaled(1.125).arrived_at_ns.tolist() == [0, 8 * 10**18 + 4]


def test_repeat_starts_again_one_mean_gap_after_the_last(monkeypatch):
    repeated, many = (requests_at(0, 10, 40).repeat_to(count) for count in (7, 20))
    monkeypatch.setattr("clustersim.column.PART", 1)  # eight at a time
    assert requests_at(0, 10, 40).repeat_to(20) == many
    assert many.scaled(0.5).arrived_at_ns.tolist() == (2 * many.arrived_at_ns).tolist()
    assert repeated.arrived_at_ns.tolist() == [0, 10, 40, 60, 70, 100, 120]
    assert repeated.prompt_tokens.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert repeated.output_tokens.tolist() == [0, 10, 20, 0, 10, 20, 0]


def test_repeat_shares_prefixes_within_a_repetition_only():
    requests = requests_at(0, 1, prefix_hashes=([0, 1], [0]), hash_block_tokens=16)
    assert [row.tolist() for row in requests.repeat_to(5).prefix_hashes] == [[0, 1], [0], [2, 3], [2], [4, 5]]


def test_repeat_renumbers_hashes_that_are_far_apart():
    requests = requests_at(0, 1, prefix_hashes=([2**63 - 1, 7], [7]), hash_block_tokens=16)
    assert [row.tolist() for row in requests.repeat_to(4).prefix_hashes] == [[1, 0], [0], [3, 2], [2]]


def test_repeat_that_lasts_too_long_is_refused():
    with pytest.raises(InputError, match="1000 requests at the rate of test last longer than 292 years"):
        requests_at(0, 10**17).repeat_to(1000)


def test_repeat_of_nothing_is_refused():
    with pytest.raises(InputError, match="test has no requests to repeat"):
        requests_at().repeat_to(1)


def test_a_scenario_repeats_its_trace_until_there_are_enough_requests():
    some = load("quickstart", ("workload.trace.requests=3",)).requests()
    many = load("quickstart", ("workload.trace.requests=1200", "workload.trace.repeat=true")).requests()
    assert len(many) == 1200
    assert many.prompt_tokens[:3].tolist() == some.prompt_tokens.tolist()
    assert many.prompt_tokens[600:603].tolist() == some.prompt_tokens.tolist()  # The sample has 600 requests.
    first = load("quickstart", ("workload.trace.requests=40", "workload.trace.repeat=7")).requests()
    seven = load("quickstart", ("workload.trace.requests=7",)).requests()
    assert first == seven.repeat_to(40)  # 7 at their own rate, which all 600 have not


_NUMBER = "expected true, or how many of the first requests are repeated, such as 500, but found the "


@pytest.mark.parametrize(
    ("repeat", "told"),
    [
        ("true, requests: null", "a trace is repeated until there are enough requests; say how many with requests"),
        ("7, requests: null", "a trace is repeated until there are enough requests; say how many with requests"),
        ("0", f"{_NUMBER}number 0"),
        ("-3", f"{_NUMBER}number -3"),
        ("2.5", f"{_NUMBER}number 2.5"),
        ("99999999999999999999", f"{_NUMBER}number 99999999999999999999"),
        ("often", f"{_NUMBER}text 'often'"),
        ("601", "asked for 601 requests, but "),
    ],
)
def test_a_trace_that_can_not_be_repeated_so_is_refused(repeat: str, told: str):
    trace = f"{{path: traces/azure-conv-sample.csv, requests: 40, repeat: {repeat}}}"
    if "null" in repeat:
        trace = trace.replace("requests: 40, ", "")
    with pytest.raises(InputError) as error:
        load("quickstart", (f"workload.trace={trace}",)).requests()
    (problem,) = error.value.problems
    assert problem.path == "workload.trace.repeat"
    assert problem.message.startswith(told)
