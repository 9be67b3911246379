"""A trace in the own format of https://ui.perfetto.dev, written column by column: about 1 us per span.

Messages and field numbers are those of Perfetto's ``protos/perfetto/trace`` (``trace_packet.proto``,
``track_event/track_event.proto``, ``track_descriptor.proto``, ``process_descriptor.proto``,
``thread_descriptor.proto``); see https://perfetto.dev/docs/reference/synthetic-track-event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.report.traces.flows import Flows
from clustersim.report.traces.protobuf import Rows, bytes_field, number_field
from clustersim.report.traces.spans import SpanPieces, SpansLike, family_of
from clustersim.report.traces.tracks import Counter, Placed, Sink, Tracks

_PACKET: Final = 1  # Trace.packet
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 8, 10, 11, 12, 13, 60  # TracePacket
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK, _COUNTER_VALUE, _FLOW, _FLOW_END = 3, 4, 9, 10, 11, 30, 47, 48
_BEGIN, _END, _COUNTER = 1, 2, 4  # TrackEvent.Type
_STATE_CLEARED, _NEEDS_STATE = 1, 2  # TracePacket.SequenceFlags
_ARGUMENTS: Final = ("layer", "step", "op")
_CHUNK: Final = 1 << 17

_DEVICE_UUID, _STREAM_UUID, _REPLICA_UUID, _COUNTER_UUID = 1 << 28, 2 << 28, 3 << 28, 4 << 28


def write_perfetto(file: Sink, pieces: SpanPieces, flows: Flows, tracks: Tracks, counters: Sequence[Counter]) -> None:
    """Write spans, flows and counters as a Perfetto trace.

    A slice carries its layer (where it has one), step and operator kind; a flow leads from the start of a
    send to the end of the receive that it feeds.
    """
    file.write(_head(pieces))
    file.write(b"".join(_counter_descriptors(counters)))
    for index, counter in enumerate(counters):
        file.write(_counts(counter, _COUNTER_UUID + index))
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


def _packet(content: bytes, flags: int | None = None) -> bytes:
    sequence = number_field(_SEQUENCE, 1) + (number_field(_FLAGS, flags) if flags else b"")
    return bytes_field(_PACKET, sequence + content)


def _interned(number: int, texts: Iterable[str]) -> bytes:
    return b"".join(
        bytes_field(number, number_field(1, index) + bytes_field(2, text)) for index, text in enumerate(texts, start=1)
    )


def _head(spans: SpanPieces) -> bytes:
    """Open the sequence: texts are written once, and every event names them by their number from 1."""
    categories = [family_of(op) for op in spans.ops]
    interned = (
        _interned(1, categories) + _interned(2, spans.names) + _interned(3, _ARGUMENTS) + _interned(29, spans.ops)
    )
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


def _counter_descriptors(counters: Sequence[Counter]) -> Iterable[bytes]:
    for replica in sorted({counter.replica for counter in counters}):
        content = number_field(1, _REPLICA_UUID + replica) + bytes_field(2, f"replica {replica}")
        yield _packet(bytes_field(_DESCRIPTOR, content))
    for index, counter in enumerate(counters):
        content = number_field(1, _COUNTER_UUID + index) + bytes_field(2, counter.name)
        content += number_field(5, _REPLICA_UUID + counter.replica) + bytes_field(8, b"")
        yield _packet(bytes_field(_DESCRIPTOR, content))


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


def _counts(counter: Counter, uuid: int) -> bytes:
    count = len(counter.at_ns)
    event = Rows(count).constant(number_field(_TYPE, _COUNTER) + number_field(_TRACK, uuid))
    return _events(counter.at_ns, event.numbers(_COUNTER_VALUE, counter.value, 9)).encoded()
