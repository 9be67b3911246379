"""Device lanes: the window, the rows, and that packing loses nothing."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import pytest
from report_data import PlainSpans, pipeline_spans, spans_of

from clustersim.graph.blueprint import OPS, STRUCTURAL_OPS
from clustersim.report.figures.device_spans import busy_ranks, busy_window, lane_table, pack, views
from clustersim.report.figures.devices import first_view
from clustersim.report.traces.spans import family_of, lanes


def unpack(packed: dict[str, Any]) -> dict[str, np.ndarray]:
    """Read a packed table as ``page/lanes.js`` does."""
    octets = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    found, at = {}, 0
    for name, width in packed["columns"]:
        planes = octets[at : at + width * packed["count"]].reshape(width, -1).astype(np.int64)
        found[name] = (planes << (8 * np.arange(width))[:, None]).sum(axis=0)
        at += width * packed["count"]
    assert at == len(octets)
    for low, high in zip(packed["offsets"], packed["offsets"][1:], strict=False):
        found["wait"][low:high] = np.cumsum(found["wait"][low:high])
    return found


def test_packing_keeps_every_span_exactly() -> None:
    spans = pipeline_spans(steps=2, stages=2, tp=2, layers=3, start_ns=5_000_000_001)
    table = lane_table(spans, ["a", "b", "c", "d"], 10**6)
    packed = pack(spans, table)
    found = unpack(packed)
    np.testing.assert_array_equal(found["wait"] + table.window_ns[0], spans.start_ns[table.order])
    np.testing.assert_array_equal(found["duration"], (spans.end_ns - spans.start_ns)[table.order])
    np.testing.assert_array_equal(found["layer"] - 1, spans.layer[table.order])
    np.testing.assert_array_equal(found["step"] + packed["step_base"], spans.step[table.order])
    assert [packed["names"][i] for i in found["name"]] == [spans.names[i] for i in spans.name[table.order]]


def test_rows_are_streams_of_devices_in_rank_order() -> None:
    spans = spans_of(
        [(0, 5, 1, 0, "x", "gemm", 0, 0, 0, 0), (0, 5, 0, 1, "y", "all_reduce", 0, 0, 0, 0),
         (5, 9, 0, 0, "x", "gemm", 0, 0, 0, 0)]
    )  # fmt: skip
    table = lane_table(spans, ["n0.g4", "n0.g6"], 100)
    assert table.labels == ("n0.g4 compute", "n0.g4 comm", "n0.g6 compute")
    assert table.device_rows == (0, 2)
    assert table.offsets.tolist() == [0, 1, 2, 3]


def test_spans_that_overlap_on_a_stream_get_rows_of_their_own() -> None:
    start, end = np.array([0, 5, 10, 12]), np.array([10, 8, 20, 30])
    assert lanes(start, end, np.zeros(4, int)).tolist() == [0, 1, 0, 1]
    assert lanes(start, end, np.array([0, 1, 0, 2])).tolist() == [0, 0, 0, 0]


def test_spans_beyond_the_budget_are_left_out_and_counted() -> None:
    spans = pipeline_spans(steps=1, stages=1, tp=1, layers=3)
    table = lane_table(spans, ["a"], 10)
    assert (len(table.order), table.left_out) == (10, len(spans.start_ns) - 10)


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


@pytest.mark.parametrize(
    ("world", "most", "ranks"), [(8, 64, range(8)), (200, 64, range(64)), (4, 2, range(2)), (8, 4, range(4))]
)
def test_of_many_ranks_those_from_the_busiest_replica_on_are_shown(world: int, most: int, ranks: range) -> None:
    assert busy_ranks(STEPS, world, most) == ranks


def test_ranks_shown_stay_within_the_cluster() -> None:
    busy_last = {**STEPS, "decode_tokens": np.array([4, 4, 5, 9000])}  # replica 1 of 2
    assert busy_ranks(busy_last, 100, 20) == range(50, 70)
    assert busy_ranks(busy_last, 100, 64) == range(36, 100)


def two_layers() -> PlainSpans:
    """A host span of [0, 10), then layers 0 and 1 of 10 ns each."""
    return spans_of(
        [(0, 10, 0, 4, "schedule", "schedule", -1, 0, 0, 0)]
        + [(10 * (i + 1), 10 * (i + 2), 0, 0, "qkv_proj", "gemm", i, 0, 0, 0) for i in range(2)]
    )


def test_views_are_the_window_a_step_and_layers_of_it() -> None:
    spans = two_layers()
    shown = views(spans, lane_table(spans, ["a"], 100))
    assert [(view.start_ns, view.end_ns) for view in shown] == [(0, 30), (0, 30), (10, 30), (10, 20)]
    assert shown[0].label == "whole window (30 ns)"


def test_the_view_of_a_layer_stays_on_one_stage() -> None:
    rows = [
        (10 * i + 1000 * stage, 10 * i + 10 + 1000 * stage, stage, 0, "x", "gemm", 2 * stage + i, 0, 0, stage)
        for stage in (0, 1)
        for i in (0, 1)
    ]
    spans = spans_of(rows)
    assert max(view.end_ns - view.start_ns for view in views(spans, lane_table(spans, ["a", "b"], 9))[2:]) == 20


def test_the_first_view_is_the_widest_that_fits() -> None:
    spans = two_layers()
    table = lane_table(spans, ["a"], 100)
    assert first_view(spans, table, 3).label.startswith("whole window")
    assert first_view(spans, table, 2).label.startswith("four layers")
    assert first_view(spans, table, 1).label.startswith("one layer")


def test_every_operator_of_the_step_graph_has_a_family() -> None:
    assert [op for op in OPS if op not in STRUCTURAL_OPS and family_of(op) == "other"] == []
