"""A trace in the Trace Event Format of Chrome [1]_: JSON that chrome://tracing, Perfetto and others open.

Times are microseconds with three decimals, so nanoseconds are exact.

.. [1] "Trace Event Format", Google, 2016,
   https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from clustersim.report.traces.flows import Flows
from clustersim.report.traces.spans import SpanPieces, SpansLike, family_of
from clustersim.report.traces.tracks import Counter, Placed, Sink, Track, Tracks

_BATCH: Final = 10_000


def write_chrome(file: Sink, pieces: SpanPieces, flows: Flows, tracks: Tracks, counters: Sequence[Counter]) -> None:
    """Write spans (``X``), flows of sends (``s``, ``f``), counters (``C``) and names (``M``).

    The process of rank ``r`` has pid ``r + 1``; those of replicas follow.
    """
    events = _events(pieces, flows, tracks, counters)
    file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    separator = b""
    while batch := list(islice(events, _BATCH)):
        file.write(separator + ",\n".join(batch).encode("utf-8"))
        separator = b",\n"
    file.write(b"\n]}\n")


def _events(pieces: SpanPieces, flows: Flows, tracks: Tracks, counters: Sequence[Counter]) -> Iterator[str]:
    first = tracks.first_replica_pid
    for replica in sorted({counter.replica for counter in counters}):
        yield from _process(first + replica, f"replica {replica}")
    for counter in counters:
        name = json.dumps(counter.name, ensure_ascii=False)
        head = f'{{"ph":"C","name":{name},"pid":{first + counter.replica},"ts":'
        for at, value in zip(counter.at_ns.tolist(), counter.value.tolist(), strict=True):
            yield f'{head}{_micros(at)},"args":{{"value":{value}}}}}'
    for spans in pieces:
        placed = tracks.place(spans)
        yield from _names(placed)
        yield from _slices(spans, placed, tracks)
        yield from _flows(spans, placed, flows, tracks)


def _names(placed: Placed) -> Iterator[str]:
    for pid, name in placed.processes:
        yield from _process(pid, name)
    for _, track in placed.tracks:
        yield _metadata("thread_name", track.pid, track.tid, {"name": track.name})
        yield _metadata("thread_sort_index", track.pid, track.tid, {"sort_index": track.order})


def _process(pid: int, name: str) -> Iterator[str]:
    yield _metadata("process_name", pid, 0, {"name": name})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})


def _metadata(kind: str, pid: int, tid: int, args: dict[str, str | int]) -> str:
    event = {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)


def _slices(spans: SpansLike, placed: Placed, tracks: Tracks) -> Iterator[str]:
    heads = {
        (name, op): f'{{"ph":"X","name":{json.dumps(spans.names[name], ensure_ascii=False)},'
        f'"cat":"{family_of(spans.ops[op])}","args":{{"op":{json.dumps(spans.ops[op])},"step":'
        for name, op in np.unique(np.stack([spans.name, spans.op], axis=1), axis=0).tolist()
    }
    order = placed.order
    columns = (spans.name, spans.op, spans.step, spans.layer, spans.start_ns, spans.end_ns)
    rows = zip(*(column[order].tolist() for column in columns), placed.of_span.tolist(), strict=True)
    for name, op, step, layer, start, end, track in rows:
        in_layer = f',"layer":{layer}' if layer >= 0 else ""
        time = f'"ts":{_micros(start)},"dur":{_micros(end - start)}'
        yield f"{heads[name, op]}{step}{in_layer}}},{_place(tracks.known[track])},{time}}}"


def _flows(spans: SpansLike, placed: Placed, flows: Flows, tracks: Tracks) -> Iterator[str]:
    """Yield a start in each send, and a finish in the receive it feeds when both are under way."""
    track_of = np.empty(len(placed.order), np.int64)
    track_of[placed.order] = placed.of_span
    for side, phase in enumerate(('"ph":"s"', '"ph":"f","bp":"e"')):
        for span, number, at in zip(*(column.tolist() for column in flows.of(spans, side)), strict=True):
            place = _place(tracks.known[int(track_of[span])])
            yield f'{{{phase},"name":"send","cat":"flow","id":{number},{place},"ts":{_micros(at)}}}'


def _place(track: Track) -> str:
    return f'"pid":{track.pid},"tid":{track.tid}'


def _micros(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
