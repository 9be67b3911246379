"""A trace in the Trace Event Format of Chrome [1]_: JSON that chrome://tracing, Perfetto and others open.

Times are microseconds with three decimals, so nanoseconds are exact.

.. [1] "Trace Event Format", Google, 2016,
   https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

import numpy as np

from clustersim.report.traces.counters import Counter
from clustersim.report.traces.flows import Flows
from clustersim.report.traces.slices import Around, Slices
from clustersim.report.traces.spans import SpanPieces, SpansLike, family_of
from clustersim.report.traces.tracks import Placed, Sink, Track, Tracks

_BATCH: Final = 10_000


def write_chrome(
    file: Sink, pieces: SpanPieces, flows: Flows, tracks: Tracks, counters: Sequence[Counter], around: Around
) -> Iterator[int]:
    """Write spans (``X``), flows of sends (``s``, ``f``), counters (``C``) and names (``M``); yield how many slices.

    The process of rank ``r`` has pid ``r + 1``; those of the requests and of replicas follow.
    """
    file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    separator = b""
    for count, events in _parts(pieces, flows, tracks, counters, around):
        while batch := list(islice(events, _BATCH)):
            file.write(separator + ",\n".join(batch).encode("utf-8"))
            separator = b",\n"
        yield count
    file.write(b"\n]}\n")


def _parts(
    pieces: SpanPieces, flows: Flows, tracks: Tracks, counters: Sequence[Counter], around: Around
) -> Iterator[tuple[int, Iterator[str]]]:
    """Yield events, and how many slices are among them."""
    yield 0, _counts(counters, tracks)
    rows: dict[int, tuple[int, int]] = {}
    for piece in around:
        yield len(piece), _nested(piece, around.texts, rows, tracks)
    for spans in pieces:
        placed = tracks.place(spans)
        events = (_names(placed), _slices(spans, placed, tracks), _flows(spans, placed, flows, tracks))
        yield len(placed.order), chain(*events)


def _counts(counters: Sequence[Counter], tracks: Tracks) -> Iterator[str]:
    yield from _groups(tracks, (counter.group for counter in counters))
    for counter in counters:
        name = json.dumps(counter.name, ensure_ascii=False)
        head = f'{{"ph":"C","name":{name},"pid":{tracks.pid_of(counter.group)},"ts":'
        for at, value in zip(counter.at_ns.tolist(), counter.value.tolist(), strict=True):
            yield f'{head}{_micros(at)},"args":{{"value":{value}}}}}'


def _groups(tracks: Tracks, groups: Iterable[int]) -> Iterator[str]:
    for group, name in tracks.new_groups(groups):
        yield from _process(tracks.pid_of(group), name)


def _nested(piece: Slices, texts: Sequence[str], rows: dict[int, tuple[int, int]], tracks: Tracks) -> Iterator[str]:
    """Yield slices and their arrows; ``rows`` has pid and tid of each row, and gets those of new ones."""
    yield from _groups(tracks, (row.group for _, row in piece.rows))
    for number, row in piece.rows:
        pid, tid = rows[number] = tracks.pid_of(row.group), tracks.new_tid()
        yield _metadata("thread_name", pid, tid, {"name": row.name})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": row.order})
    columns = (piece.row, piece.name, piece.number, piece.category, piece.start_ns, piece.end_ns)
    arguments = {name: values.tolist() for name, values in piece.arguments.items()}
    for at, (row_number, name, number, category, start, end) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        pid, tid = rows[row_number]
        called = texts[name] + (f" {number}" if number >= 0 else "")
        told = {key: values[at] for key, values in arguments.items() if values[at] >= 0}
        place = f'"pid":{pid},"tid":{tid},"ts":{_micros(start)}'
        yield (
            f'{{"ph":"X","name":{json.dumps(called, ensure_ascii=False)},"cat":{json.dumps(texts[category])},'
            f'"args":{json.dumps(told)},{place},"dur":{_micros(end - start)}}}'
        )
        for phase, arrows in (('"ph":"s"', piece.out), ('"ph":"f","bp":"e"', piece.into)):
            for arrow in arrows[at][arrows[at] > 0].tolist():
                yield f'{{{phase},"name":"served","cat":"flow","id":{arrow},{place}}}'


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
