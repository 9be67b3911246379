"""Histograms and percentiles over time."""

from __future__ import annotations

import numpy as np
import pytest
from checked_figure import checked

from clustersim.report.figures.arrivals import binned_percentiles
from clustersim.report.figures.distributions import histogram, latencies_figure


def test_a_histogram_counts_weights_and_sums_to_one() -> None:
    found = histogram(np.array([0.0, 1.0, 10.0]), np.array([1, 2, 1]), log=False, bins=10)
    assert found.share[[0, 1, 9]].tolist() == [0.25, 0.5, 0.25]
    assert found.share.sum() == 1


def test_a_logarithmic_histogram_keeps_its_ends() -> None:
    values = np.array([0.1, 0.3, 1234.5])
    found = histogram(values, np.ones(3, int), log=True)
    assert found.share.sum() == pytest.approx(1)
    assert found.share[0] == pytest.approx(1 / 3)


def test_equal_values_have_a_histogram() -> None:
    found = histogram(np.array([5.0, 5.0]), np.array([1, 1]), log=False)
    assert found.share.tolist() == [1.0]


def test_a_skewed_latency_is_drawn_on_a_logarithmic_axis() -> None:
    even = (np.arange(1, 101) * 1e6, np.ones(100, int))
    skewed = (np.array([1e6, 1e9]), np.array([99, 1]))
    figure = checked(latencies_figure({"ttft": even, "itl": skewed}, {"itl": 5e6}, "auto", 500))
    assert (figure.layout.xaxis.type, figure.layout.xaxis2.type) == ("linear", "log")
    assert figure.layout.xaxis.title.text == "TTFT, time to first token (ms)"
    targets = [note.x for note in figure.layout.annotations if note.text == "target"]
    assert targets == [pytest.approx(np.log10(5))]


def test_a_target_far_off_is_named_and_does_not_squeeze_the_values() -> None:
    near, far = (
        checked(latencies_figure({"ttft": (np.array([1e6, 2e6]), np.array([1, 1]))}, {"ttft": limit}, "auto", 500))
        for limit in (5e6, 6e6)
    )
    assert [shape.x0 for shape in near.layout.shapes][-1] == 5.0
    assert 6.0 not in [shape.x0 for shape in far.layout.shapes]
    assert "target 6 ms →" in [note.text for note in far.layout.annotations]


def test_percentiles_per_bin_equal_numpys() -> None:
    bin_of, values = np.array([0, 2, 0, 0, 2]), np.array([3.0, 10.0, 1.0, 2.0, 20.0])
    found = binned_percentiles(bin_of, values, 3, (50, 90))
    np.testing.assert_allclose(found[:, 0], np.percentile([1, 2, 3], [50, 90]))
    np.testing.assert_allclose(found[:, 2], np.percentile([10, 20], [50, 90]))
    assert np.isnan(found[:, 1]).all()
