"""The tracks of a trace: a process per device, a thread per stream, a process of counters per replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from clustersim.clock import Int64Array
from clustersim.report.metrics.latencies import Columns
from clustersim.report.traces.spans import SpansLike, lanes
from clustersim.timeline.spans import STREAMS

COUNTERS: Final = {
    "kv_blocks_used": "K/V blocks used",
    "running": "running requests",
    "waiting": "waiting requests",
}
"""Column of the steps → name of its counter."""


_MOST_LANES: Final = 64
"""Of one stream, as far as their order on the screen goes."""


class Sink(Protocol):
    """What a trace is written to."""

    def write(self, data: bytes, /) -> object:
        """Take bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A row of the trace: a stream of a rank (a lane above 0 holds spans that overlap those of lane 0).

    ``pid`` and ``tid`` are the numbers by which viewers know it. All are positive, and no two threads or
    processes share one: viewers take a thread that has a process's number for its main thread.
    """

    pid: int
    tid: int
    name: str
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The spans of a piece in the order in which a trace lists them, and what they need that no earlier piece had.

    ``of_span[i]`` is the number of the track of span ``order[i]``; spans of a track follow each other by start.
    ``processes`` (pid, name) and ``tracks`` (number, track) are the new ones.
    """

    order: Int64Array
    of_span: Int64Array
    processes: tuple[tuple[int, str], ...]
    tracks: tuple[tuple[int, Track], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A value of a replica where a window begins, and from each step on with which it changes."""

    replica: int
    name: str
    at_ns: Int64Array
    value: Int64Array


class Tracks:
    """The tracks of a trace, made as its spans come: on none do two spans overlap.

    Parameters
    ----------
    devices : sequence of str
        The device's name of each global rank.
    replicas : int
        One more than the highest that has counters.
    """

    def __init__(self, devices: Sequence[str], replicas: int = 0) -> None:
        self.devices = devices
        self.known: dict[int, Track] = {}
        """By number."""
        self.num_spans = 0
        """How many have been placed."""
        self.first_replica_pid = len(devices) + 1
        self._first_tid = self.first_replica_pid + replicas
        self._numbers: dict[tuple[int, int], int] = {}
        self._ranks: set[int] = set()
        self._ends: dict[int, list[int]] = {}

    def place(self, spans: SpansLike) -> Placed:
        """Sort the next piece of spans into tracks."""
        self.num_spans += len(spans.start_ns)
        row = spans.rank.astype(np.int64) * len(STREAMS) + spans.stream
        lane = lanes(spans.start_ns, spans.end_ns, row, self._ends)
        deepest = int(lane.max(initial=0)) + 1
        both = row * deepest + lane
        order = np.lexsort((spans.end_ns, spans.start_ns, both))
        distinct, of_span = np.unique(both[order], return_inverse=True)
        tracks: list[tuple[int, Track]] = []
        numbers = []
        for one in distinct.tolist():
            key = (one // deepest, one % deepest)
            if key not in self._numbers:
                number = self._numbers[key] = len(self._numbers)
                self.known[number] = self._track(number, *key)
                tracks.append((number, self.known[number]))
            numbers.append(self._numbers[key])
        return Placed(
            order=order,
            of_span=np.array(numbers, np.int64)[of_span.reshape(-1)],
            processes=tuple(self._processes(spans)),
            tracks=tuple(tracks),
        )

    def _track(self, number: int, row: int, lane: int) -> Track:
        rank, stream = divmod(row, len(STREAMS))
        name = STREAMS[stream] + (f" {lane + 1}" if lane else "")
        return Track(pid=rank + 1, tid=self._first_tid + number, name=name, order=stream * _MOST_LANES + lane)

    def _processes(self, spans: SpansLike) -> Iterator[tuple[int, str]]:
        ranks, first = np.unique(spans.rank, return_index=True)
        for rank, stage in zip(ranks.tolist(), spans.stage[first].tolist(), strict=True):
            if rank not in self._ranks:
                self._ranks.add(rank)
                yield rank + 1, f"{self.devices[rank]} · rank {rank} · stage {stage}"


def counters_of(steps: Columns, start_ns: int, end_ns: int) -> Iterator[Counter]:
    """Yield each replica's counters from the steps that touch ``[start_ns, end_ns)``, as far as they have columns."""
    inside = (steps["end_ns"] > start_ns) & (steps["start_ns"] < end_ns)
    for replica in np.unique(steps["replica"][inside]).tolist():
        mine = np.flatnonzero(inside & (steps["replica"] == replica))
        mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
        for column, name in COUNTERS.items():
            if column not in steps:
                continue
            value = steps[column][mine].astype(np.int64)
            changes = np.append(True, value[1:] != value[:-1])
            at_ns = np.maximum(steps["start_ns"][mine[changes]].astype(np.int64), start_ns)
            yield Counter(replica=replica, name=name, at_ns=at_ns, value=value[changes])
