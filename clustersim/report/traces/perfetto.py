"""A trace in the own format of https://ui.perfetto.dev, written column by column: about 1 us per span.

Messages and field numbers are those of Perfetto's ``protos/perfetto/trace`` (``trace_packet.proto``,
``track_event/track_event.proto``, ``track_descriptor.proto``, ``process_descriptor.proto``,
``thread_descriptor.proto``); see https://perfetto.dev/docs/reference/synthetic-track-event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.report.traces.counters import Counter
from clustersim.report.traces.flows import Flows
from clustersim.report.traces.protobuf import Rows, bytes_field, number_field
from clustersim.report.traces.slices import REQUESTS, Around, Row, Slices
from clustersim.report.traces.spans import SpanPieces, SpansLike, family_of
from clustersim.report.traces.tracks import Placed, Sink, Tracks

_PACKET: Final = 1  # Trace.packet
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60  # TracePacket
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK, _COUNTER_VALUE, _FLOW, _FLOW_END = 3, 4, 9, 10, 11, 30, 47, 48
_PLAIN_NAME, _DOUBLE_VALUE = 23, 44  # TrackEvent.name, .double_counter_value
_BEGIN, _END, _COUNTER = 1, 2, 4  # TrackEvent.Type
_STATE_CLEARED, _NEEDS_STATE = 1, 2  # TracePacket.SequenceFlags
_ARGUMENTS: Final = ("layer", "step", "op")
_CHUNK: Final = 1 << 17

_DEVICE_UUID, _STREAM_UUID, _GROUP_UUID, _COUNTER_UUID, _ROW_UUID = (number << 28 for number in range(1, 6))
_EXPLICIT: Final = 3  # TrackDescriptor.ChildTracksOrdering
_COUNTERS_FIRST: Final = 1  # counters have no rank, which is 0


def write_perfetto(
    file: Sink, pieces: SpanPieces, flows: Flows, tracks: Tracks, counters: Sequence[Counter], around: Around
) -> Iterator[int]:
    """Write spans, flows and counters as a Perfetto trace, and what is around them; yield how many slices were written.

    A slice carries its layer (where it has one), step and operator kind; a flow leads from the start of a
    send to the end of the receive that it feeds.
    """
    file.write(_head(pieces, around))
    file.write(b"".join(_group_descriptors(tracks.new_groups(counter.group for counter in counters))))
    for index, counter in enumerate(counters):
        file.write(_counter_descriptor(counter, index))
        for low in range(0, len(counter.at_ns), _CHUNK):
            some = slice(low, low + _CHUNK)
            file.write(_counts(counter.at_ns[some], counter.value[some], _COUNTER_UUID + index))
    names, ops = len(pieces.names) + 1, len(pieces.ops) + 1
    for piece in around:
        file.write(b"".join(_group_descriptors(tracks.new_groups(row.group for _, row in piece.rows))))
        file.write(b"".join(_row_descriptor(number, row) for number, row in piece.rows))
        file.write(_nested(piece, names, ops, around))
        yield len(piece)
    for spans in pieces:
        placed = tracks.place(spans)
        file.write(b"".join(_descriptors(placed)))
        arrows = np.zeros((2, len(spans.start_ns)), np.int64)  # 0: none
        for side in (0, 1):
            ends, numbers, _ = flows.of(spans, side)
            arrows[side, ends] = numbers
        for at in range(0, len(placed.order), _CHUNK):
            chosen = placed.order[at : at + _CHUNK]
            track = placed.of_span[at : at + _CHUNK] + _STREAM_UUID
            file.write(_slices(spans, chosen, track, arrows[0, chosen], arrows[1, chosen]))
        yield len(placed.order)


def _packet(content: bytes, flags: int | None = None) -> bytes:
    sequence = number_field(_SEQUENCE, 1) + (number_field(_FLAGS, flags) if flags else b"")
    return bytes_field(_PACKET, sequence + content)


def _interned(number: int, texts: Iterable[str]) -> bytes:
    return b"".join(
        bytes_field(number, number_field(1, index) + bytes_field(2, text)) for index, text in enumerate(texts, start=1)
    )


def _head(spans: SpanPieces, around: Around) -> bytes:
    """Open the sequence: texts are written once, and every event names them by their number from 1."""
    categories = [*(family_of(op) for op in spans.ops), *around.texts]
    interned = _interned(1, categories) + _interned(2, [*spans.names, *around.texts])
    interned += _interned(3, [*_ARGUMENTS, *around.arguments]) + _interned(29, spans.ops)
    return _packet(bytes_field(_INTERNED, interned), _STATE_CLEARED)


def _descriptors(placed: Placed) -> Iterable[bytes]:
    for pid, name in placed.processes:
        process = number_field(1, pid) + number_field(3, pid) + bytes_field(6, name)  # 3: place in the order
        content = number_field(1, _DEVICE_UUID + pid) + bytes_field(3, process)
        yield _packet(bytes_field(_DESCRIPTOR, content))
    for number, track in placed.tracks:
        thread = number_field(1, track.pid) + number_field(2, track.tid)
        thread += number_field(3, track.order) + bytes_field(5, track.name)
        content = number_field(1, _STREAM_UUID + number) + number_field(5, _DEVICE_UUID + track.pid)
        yield _packet(bytes_field(_DESCRIPTOR, content + bytes_field(4, thread)))


def _group_descriptors(groups: Iterable[tuple[int, str]]) -> Iterable[bytes]:
    for group, name in groups:
        content = number_field(1, _GROUP_UUID + group - REQUESTS) + bytes_field(2, name)
        content += number_field(11, _EXPLICIT) + number_field(12, group - REQUESTS)
        yield _packet(bytes_field(_DESCRIPTOR, content))


def _row_descriptor(number: int, row: Row) -> bytes:
    content = number_field(1, _ROW_UUID + number) + bytes_field(2, row.name)
    content += number_field(5, _GROUP_UUID + row.group - REQUESTS) + number_field(12, row.order + _COUNTERS_FIRST)
    return _packet(bytes_field(_DESCRIPTOR, content))


def _counter_descriptor(counter: Counter, index: int) -> bytes:
    content = number_field(1, _COUNTER_UUID + index) + bytes_field(2, counter.name)
    content += number_field(5, _GROUP_UUID + counter.group - REQUESTS) + bytes_field(8, b"")
    return _packet(bytes_field(_DESCRIPTOR, content))


def _events(at_ns: Int64Array, event: Rows) -> Rows:
    """Wrap track events into packets."""
    packet = Rows(len(at_ns)).numbers(_TIMESTAMP, at_ns, 8)
    packet.constant(number_field(_SEQUENCE, 1) + number_field(_FLAGS, _NEEDS_STATE))
    return Rows(len(at_ns)).message(_PACKET, packet.message(_TRACK_EVENT, event))


def _slices(
    spans: SpansLike, chosen: Int64Array, track: Int64Array, flow_out: Int64Array, flow_in: Int64Array
) -> bytes:
    count = len(chosen)
    op = spans.op[chosen].astype(np.int64) + 1
    layer = spans.layer[chosen].astype(np.int64)
    begin = Rows(count).constant(number_field(_TYPE, _BEGIN)).numbers(_TRACK, track, 5)
    begin.numbers(_NAME, spans.name[chosen].astype(np.int64) + 1, 3).numbers(_CATEGORY, op, 2)
    begin.message(_ANNOTATION, _argument(count, 0).numbers(4, np.maximum(layer, 0), 3), layer >= 0)
    begin.message(_ANNOTATION, _argument(count, 1).numbers(4, spans.step[chosen].astype(np.int64), 6))
    begin.message(_ANNOTATION, _argument(count, 2).numbers(17, op, 2))
    begin.fixed64(_FLOW, flow_out, flow_out > 0)
    end = Rows(count).constant(number_field(_TYPE, _END)).numbers(_TRACK, track, 5)
    end.fixed64(_FLOW_END, flow_in, flow_in > 0)
    both = _events(spans.start_ns[chosen], begin)
    both.pieces.extend(_events(spans.end_ns[chosen], end).pieces)  # each begin is followed by its end
    return both.encoded()


def _argument(count: int, index: int) -> Rows:
    return Rows(count).constant(number_field(1, index + 1))


def _counts(at_ns: Int64Array, value: npt.NDArray[Any], uuid: int) -> bytes:
    event = Rows(len(at_ns)).constant(number_field(_TYPE, _COUNTER) + number_field(_TRACK, uuid))
    if value.dtype.kind == "f":
        event.fixed64(_DOUBLE_VALUE, np.ascontiguousarray(value, "<f8").view("<i8"))
    else:
        event.numbers(_COUNTER_VALUE, value, 9)
    return _events(at_ns, event).encoded()


def _nested(piece: Slices, names: int, categories: int, around: Around) -> bytes:
    """Encode slices that lie in each other, from the numbers on that their names and categories have."""
    of, closes = piece.opened_and_closed()
    opens = closes == 0
    event = Rows(len(of)).constant(number_field(_TYPE, _BEGIN), opens).constant(number_field(_TYPE, _END), ~opens)
    event.numbers(_TRACK, piece.row[of] + _ROW_UUID, 5)
    numbered = opens & (piece.number[of] >= 0)
    for name in np.unique(piece.name[piece.number >= 0]).tolist():
        mine = numbered & (piece.name[of] == name)
        event.numbered(_PLAIN_NAME, around.texts[name] + " ", np.maximum(piece.number[of], 0), mine)
    event.numbers(_NAME, piece.name[of] + names, 3, opens & ~numbered)
    event.numbers(_CATEGORY, piece.category[of] + categories, 2, opens)
    for at, argument in enumerate(around.arguments, start=len(_ARGUMENTS)):
        if argument in piece.arguments:
            value = piece.arguments[argument][of]
            width = max(1, -(-int(value.max(initial=0)).bit_length() // 7))
            inner = _argument(len(of), at).numbers(4, np.maximum(value, 0), width)
            event.message(_ANNOTATION, inner, opens & (value >= 0))
    for arrows in (piece.out, piece.into):
        for column in arrows.T:
            event.fixed64(_FLOW, column[of], opens & (column[of] > 0))
    return _events(np.where(opens, piece.start_ns[of], piece.end_ns[of]), event).encoded()
