"""Perfetto traces, decoded by a reader of the wire format that shares no code with the writer."""

from __future__ import annotations

import gzip
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_data import OnePiece, PlainSpans, pipeline_spans, spans_of

from clustersim.errors import InputError
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


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = data[at]
        value |= (octet & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if octet < 0x80:
            return value, at


def read_message(data: bytes) -> dict[int, list[Any]]:
    """Return field number → values in order (numbers, or bytes that the caller reads on)."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind == 1:
            value, at = int.from_bytes(data[at : at + 8], "little"), at + 8
        else:
            assert kind == 2, f"wire type {kind}"
            size, at = read_varint(data, at)
            value, at = data[at : at + size], at + size
            assert len(value) == size
        found[key >> 3].append(value)
    return found


class Trace:
    """A decoded trace: tracks by uuid, slices, counters and flows."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        packets = [
            read_message(one) for one in read_message(gzip.decompress(data) if path.suffix == ".gz" else data)[1]
        ]
        interned = read_message(packets[0][12][0])
        self.texts = {
            kind: {e[1][0]: e[2][0].decode() for e in map(read_message, interned[kind])} for kind in (1, 2, 3, 29)
        }
        self.flags = [packet.get(13, [None])[0] for packet in packets]
        self.tracks: dict[int, dict[int, list[Any]]] = {}
        self.slices: list[tuple[int, int, int, str, dict[str, Any]]] = []
        self.counters: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.flow_starts: dict[int, int] = {}
        self.flow_ends: dict[int, int] = {}
        opened: dict[int, Any] = {}
        for packet in packets[1:]:
            for descriptor in packet.get(60, []):
                track = read_message(descriptor)
                self.tracks[track[1][0]] = track
            for event in map(read_message, packet.get(11, [])):
                self._event(packet[8][0], event, opened)
        assert opened == {}

    def _event(self, at: int, event: dict[int, list[Any]], opened: dict[int, Any]) -> None:
        uuid = event[11][0]
        if event[9] == [4]:
            self.counters[self.tracks[uuid][2][0].decode()].append((at, event[30][0]))
        elif event[9] == [1]:
            assert uuid not in opened, "two slices open on one track"
            arguments = {}
            for note in map(read_message, event[4]):
                arguments[self.texts[3][note[1][0]]] = note[4][0] if 4 in note else self.texts[29][note[17][0]]
            opened[uuid] = (at, self.texts[2][event[10][0]], arguments)
            self.flow_starts.update(dict.fromkeys(event.get(47, []), at))
        else:
            start, name, arguments = opened.pop(uuid)
            self.slices.append((uuid, start, at, name, arguments))
            self.flow_ends.update(dict.fromkeys(event.get(48, []), at))

    def stream_of(self, uuid: int) -> str:
        return read_message(self.tracks[uuid][4][0])[5][0].decode()

    def process_of(self, uuid: int) -> str:
        return read_message(self.tracks[self.tracks[uuid][5][0]][3][0])[6][0].decode()


def written(tmp_path: Path, spans: PlainSpans = PIPELINE, name: str = "run.pftrace") -> Trace:
    write_trace(tmp_path / name, OnePiece(spans), DEVICES, [STEPS])
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
        write_trace(tmp_path / name, OnePiece(PIPELINE), DEVICES, [STEPS])
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
