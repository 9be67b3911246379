"""What ranks did with their time, counted instant by instant over unfolded spans: the plain way, for small runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.timeline import Timeline
from clustersim.timeline.usage import Usage

_QUIET = ("compute", "host")


def plain_usage(timeline: Timeline, replicas: int) -> dict[str, Int64Array]:
    """Return the fields of :class:`Usage`."""
    spans = timeline.unfold()
    ranks = replicas * timeline.stages * timeline.sp_tp[0] * timeline.sp_tp[1]
    busy = np.zeros((ranks, len(STREAMS)), np.int64)
    np.add.at(busy, (spans.rank, spans.stream), spans.end_ns - spans.start_ns)
    held = np.zeros((replicas, timeline.stages), np.int64)
    inside = [STREAMS.index(name) for name in ("compute", "comm", "host")]
    passes: dict[tuple[int, int, int], tuple[int, int]] = {}
    for replica, stage, step, stream, start, end in zip(
        *(getattr(spans, name).tolist() for name in ("replica", "stage", "step", "stream", "start_ns", "end_ns")),
        strict=True,
    ):
        if stream in inside:
            first, last = passes.get((replica, stage, step), (start, end))
            passes[replica, stage, step] = min(first, start), max(last, end)
    for (replica, stage, _), (first, last) in passes.items():
        held[replica, stage] += last - first
    return {
        "busy_ns": busy,
        "exposed_ns": np.array([exposed_ns(spans, rank) for rank in range(ranks)], np.int64),
        "held_ns": held,
        "in_flight_ns": np.array([_in_flight(timeline, replica) for replica in range(replicas)], np.int64),
    }


def exposed_ns(spans: Any, rank: int) -> int:
    """Walk over the instants at which something starts or ends on the rank."""
    mine = np.flatnonzero(spans.rank == rank)
    quiet = [STREAMS.index(name) for name in _QUIET]
    changes: list[tuple[int, int, int]] = []
    for i in mine.tolist():
        side = 0 if spans.stream[i] in quiet else 1
        changes += [(int(spans.start_ns[i]), 1, side), (int(spans.end_ns[i]), -1, side)]
    running, total, before = [0, 0], 0, 0
    for instant, change, side in sorted(changes):
        if running[1] and not running[0]:
            total += instant - before
        before = instant
        running[side] += change
    return total


def _in_flight(timeline: Timeline, replica: int) -> int:
    steps = timeline.steps
    mine = sorted(
        (int(start), int(end))
        for start, end, of in zip(steps["start_ns"], steps["end_ns"], steps["replica"], strict=True)
        if of == replica
    )
    total, until = 0, 0
    for start, end in mine:
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def assert_plain(found: Usage, timeline: Timeline, replicas: int) -> None:
    """Raise AssertionError where the folded sums are not those of the spans."""
    for name, values in plain_usage(timeline, replicas).items():
        np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)
