"""Lanes of streams whose spans overlap, the busiest window, and families of operators."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.graph.blueprint import OPS, STRUCTURAL_OPS
from clustersim.report.traces.busiest import busy_window
from clustersim.report.traces.spans import family_of, lanes


def test_spans_that_overlap_on_a_stream_get_rows_of_their_own() -> None:
    start, end = np.array([0, 5, 10, 12]), np.array([10, 8, 20, 30])
    assert lanes(start, end, np.zeros(4, int)).tolist() == [0, 1, 0, 1]
    assert lanes(start, end, np.array([0, 1, 0, 2])).tolist() == [0, 0, 0, 0]


STEPS = {
    "replica": np.array([0, 0, 0, 1]),
    "start_ns": np.array([0, 100, 150, 0]),
    "end_ns": np.array([100, 150, 450, 500]),
    "count": np.array([10, 1, 30, 1]),
    "prefill_tokens": np.array([0, 512, 0, 0]),
    "decode_tokens": np.array([4, 4, 5, 5]),
}


@pytest.mark.parametrize(("count", "window"), [(1, (100, 150)), (2, (90, 150)), (4, (90, 170))])
def test_the_window_holds_the_busiest_step_and_its_neighbours(count: int, window: tuple[int, int]) -> None:
    assert busy_window(STEPS, count) == window


def test_a_run_without_steps_has_an_empty_window() -> None:
    assert busy_window({name: column[:0] for name, column in STEPS.items()}, 4) == (0, 0)


def test_every_operator_of_the_step_graph_has_a_family() -> None:
    assert [op for op in OPS if op not in STRUCTURAL_OPS and family_of(op) == "other"] == []
