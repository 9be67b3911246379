"""The tracks of a trace: a process per device, a thread per stream, a group per replica, and one of the requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np

from clustersim.clock import Int64Array
from clustersim.report.traces.slices import REQUESTS
from clustersim.report.traces.spans import SpansLike, lanes
from clustersim.timeline.spans import STREAMS
from clustersim.values import dataclass

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


class Tracks:
    """The tracks of a trace, made as its spans come: on none do two spans overlap.

    Parameters
    ----------
    devices : sequence of str
        The device's name of each global rank.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = devices
        self.known: dict[int, Track] = {}
        """By number."""
        self.num_spans = 0
        """How many have been placed."""
        self._first_group_pid = len(devices) + 1
        self._next_tid = self._first_group_pid + 1 + len(devices)  # a replica has one at least
        self._groups: set[int] = set()
        self._numbers: dict[tuple[int, int], int] = {}
        self._ranks: set[int] = set()
        self._ends: dict[int, list[int]] = {}

    def pid_of(self, group: int) -> int:
        """Return the number of a group of rows and counters as a process: of the requests, or of a replica."""
        return self._first_group_pid + group - REQUESTS

    def new_groups(self, groups: Iterable[int]) -> list[tuple[int, str]]:
        """Return which of some groups are new, and their names."""
        new = sorted(set(groups) - self._groups)
        self._groups.update(new)
        return [(group, "requests" if group == REQUESTS else f"replica {group}") for group in new]

    def new_tid(self) -> int:
        """Return a number that no process and no other thread has."""
        self._next_tid += 1
        return self._next_tid - 1

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
                self.known[number] = self._track(*key)
                tracks.append((number, self.known[number]))
            numbers.append(self._numbers[key])
        return Placed(
            order=order,
            of_span=np.array(numbers, np.int64)[of_span.reshape(-1)],
            processes=tuple(self._processes(spans)),
            tracks=tuple(tracks),
        )

    def _track(self, row: int, lane: int) -> Track:
        rank, stream = divmod(row, len(STREAMS))
        name = STREAMS[stream] + (f" {lane + 1}" if lane else "")
        return Track(pid=rank + 1, tid=self.new_tid(), name=name, order=stream * _MOST_LANES + lane)

    def _processes(self, spans: SpansLike) -> Iterator[tuple[int, str]]:
        ranks, first = np.unique(spans.rank, return_index=True)
        for rank, stage in zip(ranks.tolist(), spans.stage[first].tolist(), strict=True):
            if rank not in self._ranks:
                self._ranks.add(rank)
                yield rank + 1, f"{self.devices[rank]} · rank {rank} · stage {stage}"
