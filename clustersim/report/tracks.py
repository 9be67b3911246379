"""The tracks of a trace: a process per device, a thread per stream, a process of counters per replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from clustersim.clock import Int64Array
from clustersim.report.metrics import Columns
from clustersim.report.spans import SpansLike, lanes
from clustersim.timeline.spans import STREAMS

COUNTERS: Final = {
    "kv_blocks_used": "K/V blocks used",
    "running": "running requests",
    "waiting": "waiting requests",
}
"""Column of the steps → name of its counter."""


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
class Tracks:
    """Every process (pid, name), the tracks, and the spans in the order in which a trace lists them.

    ``first_replica_pid`` is the pid of the counters of replica 0. ``of_span[i]`` is the track of span
    ``order[i]``; spans of a track follow each other by start.
    """

    processes: tuple[tuple[int, str], ...]
    tracks: tuple[Track, ...]
    order: Int64Array
    of_span: Int64Array
    first_replica_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A value of a replica where a window begins, and from each step on with which it changes."""

    replica: int
    name: str
    at_ns: Int64Array
    value: Int64Array


def tracks_of(spans: SpansLike, devices: Sequence[str]) -> Tracks:
    """Sort spans into tracks on which no two overlap.

    Parameters
    ----------
    spans : SpansLike
        The spans.
    devices : sequence of str
        The device's name of each global rank.
    """
    stream_row = spans.rank.astype(np.int64) * len(STREAMS) + spans.stream
    lane = lanes(spans.start_ns, spans.end_ns, stream_row)
    deepest = int(lane.max(initial=0)) + 1
    row = stream_row * deepest + lane
    order = np.lexsort((spans.end_ns, spans.start_ns, row))
    distinct, of_span = np.unique(row[order], return_inverse=True)
    first_tid = int(spans.rank.max(initial=-1)) + 2
    found: list[Track] = []
    for one in distinct.tolist():
        rank, stream = divmod(one // deepest, len(STREAMS))
        extra = one % deepest
        name = STREAMS[stream] + (f" {extra + 1}" if extra else "")
        tid = first_tid + len(found)
        found.append(Track(pid=rank + 1, tid=tid, name=name, order=stream * deepest + extra))
    ranks, first = np.unique(spans.rank, return_index=True)
    processes = tuple(
        (rank + 1, f"{devices[rank]} · rank {rank} · stage {stage}")
        for rank, stage in zip(ranks.tolist(), spans.stage[first].tolist(), strict=True)
    )
    return Tracks(
        processes=processes,
        tracks=tuple(found),
        order=order,
        of_span=of_span.astype(np.int64),
        first_replica_pid=first_tid + len(found),
    )


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
