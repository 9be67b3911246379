"""Reads Perfetto traces by the field numbers of its published ``.proto`` files; shares no code with the writer."""

from __future__ import annotations

import gzip
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any


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
        self.counts: list[tuple[int, int, float]] = []
        self.deepest: dict[int, int] = defaultdict(int)
        self.flows: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
        self.flow_starts: dict[int, int] = {}
        self.flow_ends: dict[int, int] = {}
        opened: dict[int, list[Any]] = defaultdict(list)
        for packet in packets[1:]:
            for descriptor in packet.get(60, []):
                track = read_message(descriptor)
                self.tracks[track[1][0]] = track
            for event in map(read_message, packet.get(11, [])):
                self._event(packet[8][0], event, opened)
        assert not any(opened.values()), "a slice that never closes"

    def _event(self, at: int, event: dict[int, list[Any]], opened: dict[int, list[Any]]) -> None:
        uuid = event[11][0]
        if event[9] == [4]:
            value = event[30][0] if 30 in event else struct.unpack("<d", event[44][0].to_bytes(8, "little"))[0]
            self.counters[self.tracks[uuid][2][0].decode()].append((at, value))
            self.counts.append((uuid, at, value))
        elif event[9] == [1]:
            arguments = {}
            for note in map(read_message, event[4]):
                arguments[self.texts[3][note[1][0]]] = note[4][0] if 4 in note else self.texts[29][note[17][0]]
            name = event[23][0].decode() if 23 in event else self.texts[2][event[10][0]]
            self.deepest[uuid] = max(self.deepest[uuid], len(opened[uuid]))
            opened[uuid].append((at, name, arguments))
            self._flows_of(event.get(47, []), at, uuid, name)
        else:
            start, name, arguments = opened[uuid].pop()
            self.slices.append((uuid, start, at, name, arguments))
            self.flow_ends.update(dict.fromkeys(event.get(48, []), at))

    def _flows_of(self, numbers: list[int], at: int, uuid: int, name: str) -> None:
        for number in numbers:
            self.flow_starts.setdefault(number, at)
            self.flows[number].append((self.parent_of(uuid), name, at))

    def parent_of(self, uuid: int) -> str:
        """Return the name of the group that a track is in; empty for one of a device."""
        return self.tracks[self.tracks[uuid][5][0]].get(2, [b""])[0].decode()

    def stream_of(self, uuid: int) -> str:
        return read_message(self.tracks[uuid][4][0])[5][0].decode()

    def process_of(self, uuid: int) -> str:
        return read_message(self.tracks[self.tracks[uuid][5][0]][3][0])[6][0].decode()
