"""Binning: spikes stay, means weigh time, and an empty replica counts as zero."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.report.figures.bins import bin_intervals, time_edges
from clustersim.report.metrics.gauges import gauge


def test_a_short_spike_stays_as_the_maximum_of_its_bin() -> None:
    start, end = np.array([0, 990, 991]), np.array([990, 991, 2000])
    binned = bin_intervals(start, end, np.array([1, 50, 2]), time_edges(0, 2000, 2))
    assert binned.high.tolist() == [50, 2]
    assert binned.low.tolist() == [1, 2]
    assert binned.mean.tolist() == [(990 * 1 + 50 + 9 * 2) / 1000, 2]


def test_an_interval_over_several_bins_counts_in_each() -> None:
    binned = bin_intervals(np.array([5]), np.array([35]), np.array([7]), time_edges(0, 50, 5))
    assert binned.high[:4].tolist() == [7, 7, 7, 7]
    assert np.isnan(binned.mean[4])


def test_weights_make_the_mean_one_over_steps_not_over_time() -> None:
    start, end = np.array([0, 90]), np.array([90, 100])  # one long step of 1 token, one short of 9
    binned = bin_intervals(start, end, np.array([1, 9]), np.array([0, 100]), np.array([1, 1]))
    assert binned.mean.tolist() == [5.0]


def test_steps_are_weighed_to_the_bit_alike_whether_rows_are_one_or_several() -> None:
    """Nine steps of 7 ns in bins of 3 and 40 ns and beyond: rows of one step each, or those within a bin as one."""
    edges, ends = np.array([0, 3, 40, 63]), np.arange(7, 64, 7)
    whole = bin_intervals(ends - 7, ends, np.full(9, 11), edges, np.ones(9, int))
    few = bin_intervals(
        np.array([0, 7, 35, 42]), np.array([7, 35, 42, 63]), np.full(4, 11), edges, np.array([1, 4, 1, 3])
    )
    for name in ("low", "mean", "high", "lower", "upper"):
        assert getattr(whole, name).tolist() == getattr(few, name).tolist()


def test_where_values_are_many_a_band_leaves_out_the_rare_ones() -> None:
    """Of 1,000 values in each of two bins 2 % are 100 and 2 % are 0; the others lie between 40 and 60."""
    index = np.arange(2_000)
    value = np.where(index % 50 == 0, 100, np.where(index % 50 == 1, 0, 40 + index % 21))
    binned = bin_intervals(10 * index, 10 * index + 10, value, time_edges(0, 20_000, 2))
    assert (binned.low.tolist(), binned.high.tolist()) == ([0, 0], [100, 100])
    assert (binned.lower >= 39.5).all()
    assert (binned.lower <= 41).all()
    assert (binned.upper >= 59).all()
    assert (binned.upper <= 60.5).all()


def test_where_values_are_few_a_band_has_all_of_them() -> None:
    binned = bin_intervals(np.array([0, 1]), np.array([1, 20]), np.array([9, 1]), time_edges(0, 20, 1))
    assert (binned.lower.tolist(), binned.upper.tolist()) == ([1], [9])


def test_edges_of_a_century_increase() -> None:
    century = 100 * 365 * 86_400 * 10**9
    edges = time_edges(7, century + 7, 1000)
    assert (edges[0], edges[500], edges[-1]) == (7, century // 2 + 7, century + 7)
    assert np.all(np.diff(edges) > 0)


def test_edges_are_spread_evenly() -> None:
    assert time_edges(0, 10, 4).tolist() == [0, 2, 5, 7, 10]
    assert time_edges(3, 3, 4).tolist() == [3, 4]


def steps_of(rows: list[tuple[int, int, int, int, int]]) -> dict[str, np.ndarray]:
    names = ("replica", "start_ns", "end_ns", "running", "empties_ns")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def test_a_gauge_holds_between_steps_and_drops_when_the_replica_is_empty() -> None:
    steps = steps_of([(0, 0, 10, 2, -1), (0, 13, 20, 2, 25), (0, 50, 60, 1, 60)])  # pauses of 3 and 30 ns
    found = gauge(steps, "running")
    assert found.start_ns.tolist() == [0, 25, 50, 60]
    assert found.value.tolist() == [2, 0, 1, 0]


def test_a_gauge_adds_up_replicas() -> None:
    found = gauge(steps_of([(0, 0, 10, 2, 10), (1, 5, 15, 3, 15)]), "running")
    assert list(zip(found.start_ns.tolist(), found.value.tolist(), strict=True)) == [(0, 2), (5, 5), (10, 3), (15, 0)]


@pytest.mark.parametrize("empties", [-1, 30])
def test_a_gauge_keeps_its_value_while_a_request_is_there_and_ends_with_the_last_step(empties: int) -> None:
    found = gauge(steps_of([(0, 0, 10, 2, empties)]), "running")
    assert (found.value.tolist()[-1], found.end_ns) == (2, 10)
