"""Chrome traces: valid JSON, no overlap on a thread, flows in pairs."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_data import OnePiece, pipeline_spans, spans_of

from clustersim.report.traces.counters import counters_of
from clustersim.report.traces.trace import write_trace

DEVICES = ["n0.g0", "n0.g1", "n1.g0", "n1.g1"]
SPANS = pipeline_spans(steps=2, stages=2, tp=2, layers=2)
STEPS = {
    "replica": np.array([0]),
    "start_ns": np.array([500]),
    "end_ns": np.array([10**6]),
    "kv_blocks_used": np.array([7]),
    "running": np.array([2]),
    "waiting": np.array([0]),
}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("trace") / "run.json"
    write_trace(path, OnePiece(SPANS), DEVICES, tuple(counters_of(STEPS, 0, 10**6)))
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def of_phase(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def nanoseconds(micros: float) -> int:
    return round(micros * 1000)


def test_every_span_is_an_event_with_its_time_to_the_nanosecond(events: list[dict[str, Any]]) -> None:
    found = sorted((nanoseconds(e["ts"]), nanoseconds(e["dur"]), e["pid"] - 1) for e in of_phase(events, "X"))
    length = SPANS.end_ns - SPANS.start_ns
    assert found == sorted(zip(SPANS.start_ns.tolist(), length.tolist(), SPANS.rank.tolist(), strict=True))


def test_events_of_a_thread_do_not_overlap(events: list[dict[str, Any]]) -> None:
    threads = defaultdict(list)
    for event in of_phase(events, "X"):
        threads[event["pid"], event["tid"]].append((nanoseconds(event["ts"]), nanoseconds(event["dur"])))
    for spans in threads.values():
        spans.sort()
        assert all(start + length <= following for (start, length), (following, _) in pairwise(spans))


def test_processes_are_devices_and_threads_their_streams(events: list[dict[str, Any]]) -> None:
    names = {(e["name"], e["pid"], e["tid"]): e["args"] for e in of_phase(events, "M")}
    assert names["process_name", 3, 0] == {"name": "n1.g0 · rank 2 · stage 1"}
    assert {"name": "replica 0"} in names.values()
    assert all(("thread_name", e["pid"], e["tid"]) in names for e in of_phase(events, "X"))


def test_flows_pair_up_inside_a_send_and_a_receive(events: list[dict[str, Any]]) -> None:
    starts, ends = ({e["id"]: e for e in of_phase(events, phase)} for phase in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == 4
    for flow, ids in ((starts, "stage_send"), (ends, "stage_recv")):
        for event in flow.values():
            inside = [
                e["name"]
                for e in of_phase(events, "X")
                if (e["pid"], e["tid"]) == (event["pid"], event["tid"]) and e["ts"] <= event["ts"] < e["ts"] + e["dur"]
            ]
            assert inside == [ids]
    assert all(starts[flow]["ts"] <= ends[flow]["ts"] for flow in starts)


def test_counters_hold_the_state_of_a_replica(events: list[dict[str, Any]]) -> None:
    found = {event["name"]: (event["ts"], event["args"]) for event in of_phase(events, "C")}
    assert found["K/V blocks used"] == (0.5, {"value": 7})


def test_names_are_escaped_and_compression_changes_nothing(tmp_path: Path) -> None:
    spans = spans_of([(0, 1500, 0, 0, 'a "b" \\ é', "gemm", -1, 3, 0, 0)])
    for name in ("x.json", "x.json.gz"):
        write_trace(tmp_path / name, OnePiece(spans), DEVICES)
    text = (tmp_path / "x.json").read_bytes()
    assert gzip.decompress((tmp_path / "x.json.gz").read_bytes()) == text
    (event,) = of_phase(json.loads(text)["traceEvents"], "X")
    assert (event["name"], event["dur"], event["args"]) == ('a "b" \\ é', 1.5, {"op": "gemm", "step": 3})


def test_an_empty_window_is_valid_json(tmp_path: Path) -> None:
    write_trace(tmp_path / "x.json", OnePiece(spans_of([])), DEVICES)
    assert json.loads((tmp_path / "x.json").read_text())["traceEvents"] == []
