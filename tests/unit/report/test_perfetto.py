"""Perfetto traces, decoded by a reader of the wire format that shares no code with the writer."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from perfetto_trace import Trace, read_message, read_varint
from report_data import OnePiece, PlainSpans, pipeline_spans, spans_of

from clustersim.errors import InputError
from clustersim.report.traces.counters import counters_of
from clustersim.report.traces.flows import send_pairs
from clustersim.report.traces.protobuf import padded_varints
from clustersim.report.traces.trace import write_trace

DEVICES = ["n0.g0", "n0.g1", "n1.g0", "n1.g1"]
PIPELINE = pipeline_spans(steps=2, stages=2, tp=2, layers=2)
STEPS = {
    "replica": np.array([0, 0]),
    "start_ns": np.array([0, 500_000]),
    "end_ns": np.array([500_000, 900_000]),
    "kv_blocks_used": np.array([7, 300]),
    "running": np.array([2, 3]),
    "waiting": np.array([0, 1]),
}
COUNTERS = tuple(counters_of(STEPS, 0, 10**6))


def written(tmp_path: Path, spans: PlainSpans = PIPELINE, name: str = "run.pftrace") -> Trace:
    write_trace(tmp_path / name, OnePiece(spans), DEVICES, COUNTERS)
    return Trace(tmp_path / name)


def test_every_span_is_a_slice_of_its_device_and_stream(tmp_path: Path) -> None:
    trace = written(tmp_path)
    found = sorted(
        (
            start,
            end,
            trace.process_of(uuid),
            trace.stream_of(uuid),
            name,
            tuple(sorted(arguments.items())),
        )
        for uuid, start, end, name, arguments in trace.slices
    )
    streams = ("compute", "comm", "send", "recv", "host")
    expected = []
    for i in range(len(PIPELINE.start_ns)):
        rank, layer = int(PIPELINE.rank[i]), int(PIPELINE.layer[i])
        arguments = {"op": PIPELINE.ops[PIPELINE.op[i]], "step": int(PIPELINE.step[i])}
        arguments |= {"layer": layer} if layer >= 0 else {}
        process = f"{DEVICES[rank]} · rank {rank} · stage {PIPELINE.stage[i]}"
        expected.append(
            (int(PIPELINE.start_ns[i]), int(PIPELINE.end_ns[i]), process, streams[PIPELINE.stream[i]],
             PIPELINE.names[PIPELINE.name[i]], tuple(sorted(arguments.items())))
        )  # fmt: skip
    assert found == sorted(expected)


def test_a_flow_leads_from_each_send_to_its_receive(tmp_path: Path) -> None:
    trace = written(tmp_path)
    sends, receives = send_pairs(PIPELINE)
    assert len(sends) == 4  # 2 steps × 2 ranks of the first stage
    assert (PIPELINE.rank[receives] - PIPELINE.rank[sends]).tolist() == [2, 2, 2, 2]
    assert sorted(trace.flow_starts.values()) == sorted(PIPELINE.start_ns[sends].tolist())
    assert sorted(trace.flow_ends.values()) == sorted(PIPELINE.end_ns[receives].tolist())
    assert all(trace.flow_starts[flow] < trace.flow_ends[flow] for flow in trace.flow_starts)


def test_a_send_without_its_receive_has_no_flow() -> None:
    spans = spans_of(
        [(0, 1, rank, 2, "send", "send", -1, 0, 0, 0) for rank in (0, 1)] + [(0, 1, 2, 3, "recv", "recv", -1, 0, 0, 1)]
    )
    assert [len(side) for side in send_pairs(spans)] == [0, 0]


def test_counters_follow_the_steps(tmp_path: Path) -> None:
    trace = written(tmp_path)
    assert trace.counters["K/V blocks used"] == [(0, 7), (500_000, 300)]
    assert trace.counters["waiting requests"] == [(0, 0), (500_000, 1)]


def test_no_thread_has_the_number_of_a_process(tmp_path: Path) -> None:
    tracks = written(tmp_path).tracks.values()
    pids = [read_message(track[3][0])[1][0] for track in tracks if 3 in track]
    tids = [read_message(track[4][0])[2][0] for track in tracks if 4 in track]
    assert pids == [1, 2, 3, 4]
    assert len({0, *pids, *tids}) == 1 + len(pids) + len(tids)


def test_only_the_first_packet_clears_the_state(tmp_path: Path) -> None:
    trace = written(tmp_path)
    assert trace.flags[0] == 1
    assert set(trace.flags[1:]) == {None, 2}


def test_abutting_empty_and_overlapping_spans_stay_apart(tmp_path: Path) -> None:
    row = ("x", "gemm", 0, 0, 0, 0)
    spans = spans_of([(0, 10, 0, 0, *row), (10, 10, 0, 0, *row), (10, 20, 0, 0, *row), (15, 25, 0, 0, *row)])
    trace = written(tmp_path, spans)
    assert sorted((start, end) for _, start, end, _, _ in trace.slices) == [
        (0, 10),
        (10, 10),
        (10, 20),
        (15, 25),
    ]
    assert sorted(trace.stream_of(uuid) for uuid in {one[0] for one in trace.slices}) == [
        "compute", "compute 2"]  # fmt: skip


def test_the_same_run_gives_the_same_bytes_compressed_or_not(tmp_path: Path) -> None:
    for name in ("a.pftrace.gz", "b.pftrace.gz", "c.pftrace"):
        write_trace(tmp_path / name, OnePiece(PIPELINE), DEVICES, COUNTERS)
    first, second = (tmp_path / "a.pftrace.gz").read_bytes(), (tmp_path / "b.pftrace.gz").read_bytes()
    assert first == second
    assert gzip.decompress(first) == (tmp_path / "c.pftrace").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pftrace.gz", "b.pftrace.gz", "c.pftrace"]


def test_large_numbers_survive(tmp_path: Path) -> None:
    hour = 3600 * 10**9
    spans = spans_of([(1000 * hour, 1000 * hour + 7, 3, 0, "x", "gemm", 1023, 10**10, 70, 9)])
    ((_, start, end, _, arguments),) = written(tmp_path, spans).slices
    assert (start, end) == (1000 * hour, 1000 * hour + 7)
    assert arguments == {"layer": 1023, "step": 10**10, "op": "gemm"}


def test_an_empty_window_is_a_trace(tmp_path: Path) -> None:
    assert written(tmp_path, spans_of([])).slices == []


@pytest.mark.parametrize("name", ["run.pftrce", "run.json.bz2", "run"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="unknown trace format"):
        write_trace(tmp_path / name, OnePiece(PIPELINE), DEVICES)
    assert list(tmp_path.iterdir()) == []


def test_a_padded_varint_reads_as_the_number() -> None:
    for octets, value in zip(padded_varints(np.array([0, 1, 300, 2**35 - 1]), 5), (0, 1, 300, 2**35 - 1), strict=True):
        assert read_varint(bytes(octets), 0) == (value, 5)
