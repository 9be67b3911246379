"""Laws of the report's arithmetic, on arbitrary inputs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.report.figures.bins import bin_intervals, time_edges
from clustersim.report.metrics.latencies import weighted_percentile

WEIGHTED = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 5)), min_size=1, max_size=30).filter(
    lambda pairs: any(weight for _, weight in pairs)
)
INTERVALS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 400), st.integers(0, 50)), min_size=1, max_size=20)


@given(pairs=WEIGHTED, percents=st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_weighted_percentile_equals_the_percentile_of_the_expanded_list(
    pairs: list[tuple[int, int]], percents: list[float]
) -> None:
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    expected = np.percentile(np.repeat(values, weights), percents)
    np.testing.assert_array_equal(weighted_percentile(values, weights, percents), expected)


@given(rows=INTERVALS, bins=st.integers(1, 40))
def test_bins_keep_the_integral_and_the_extremes(rows: list[tuple[int, int, int]], bins: int) -> None:
    start, length, value = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    edges = time_edges(0, 1500, bins)
    binned = bin_intervals(start, start + length, value, edges)
    covered, _ = np.histogram(np.concatenate([np.arange(a, a + n) for a, n in zip(start, length, strict=True)]), edges)
    integral = np.nansum(binned.mean * covered)  # the mean weighs each interval by its own time
    assert np.isclose(integral, (value * length).sum())
    assert np.nanmin(binned.low) == value.min()
    assert np.nanmax(binned.high) == value.max()
