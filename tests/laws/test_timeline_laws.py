"""Laws of the folded timeline over random scenarios: windows, ranks and files show what the whole one holds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.timeline.digest import digest_of
from clustersim.timeline.files import load_timeline, save_timeline
from clustersim.timeline.spans import SPAN_COLUMNS, Spans
from tests.audit import simulated
from tests.effort import examples
from tests.laws.random_scenarios import documents, scenario_of


def table(spans: Spans) -> np.ndarray:
    """Return the columns of spans as rows of one table."""
    return np.stack([getattr(spans, column).astype(np.int64) for column in SPAN_COLUMNS])


@examples(25)
@given(documents(), st.floats(0, 1), st.floats(0, 0.3), st.integers(1, 4))
def test_a_window_shows_the_spans_of_the_whole_that_overlap_it(
    document: dict[str, Any], start: float, width: float, every: int
) -> None:
    timeline = simulated(scenario_of(document)).timeline
    begin, end = int(start * timeline.end_ns), int((start + width) * timeline.end_ns)
    whole = table(timeline.unfold())
    ranks = range(0, int(whole[2].max(initial=0)) + 1, every)
    expected = whole[:, (whole[0] < end) & (whole[1] > begin) & np.isin(whole[2], list(ranks))]
    assert np.array_equal(table(timeline.unfold(begin, end, ranks)), expected)


@examples(15)
@given(documents())
def test_a_timeline_read_again_is_the_same(document: dict[str, Any]) -> None:
    timeline = simulated(scenario_of(document)).timeline
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "timeline").mkdir()
        save_timeline(timeline, Path(folder) / "timeline")
        read = load_timeline(Path(folder))
    assert read.digest == digest_of(read) == timeline.digest
    assert np.array_equal(table(read.unfold()), table(timeline.unfold()))
