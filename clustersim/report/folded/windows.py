"""Of which parts of a run a page keeps every operator, where it can't hold all: the busiest, the slowest, faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_S, Int64Array
from clustersim.report.figures.fault_marks import fault_marks
from clustersim.report.metrics.latencies import Columns, e2e_ns, tpot_ns, ttft_ns
from clustersim.report.traces.busiest import busiest

_HALF: Final = NS_PER_S // 2
_SLOWEST: Final = 10
"""Requests whose second around the first token is kept, by TTFT and by end-to-end latency."""
_FAULTS: Final = 20
KEPT_REQUESTS: Final = 1000
"""Requests of each order of ``request_rows`` that a page keeps where it can't hold all."""


def windows_of(
    summary: Mapping[str, Any], requests: Columns, steps: Columns, at_ns: int | None, request: int | None
) -> Int64Array:
    """Return the windows whose operators matter most, int64 of shape (windows, 2): start and end in ns."""
    found = [*_busiest(steps), *_faults(summary), *_slowest(requests), *_asked(requests, at_ns, request)]
    return np.array(found, np.int64).reshape(-1, 2)


def overlapping(start_ns: Int64Array, end_ns: Int64Array, windows: Int64Array) -> npt.NDArray[np.bool_]:
    """Tell which of some intervals overlap any window."""
    found = np.zeros(len(start_ns), np.bool_)
    for start, end in windows.tolist():
        found |= (start_ns < end) & (end_ns > start)
    return found


def kept_requests(requests: Columns, request: int | None) -> Int64Array:
    """Return the numbers of the slowest requests by each latency, of the preempted ones, and of the one asked for."""
    orders = (_present(ttft_ns(requests)), _lasting(requests), _present(tpot_ns(requests)), requests["preemptions"])
    rows = [np.argsort(-np.asarray(values, np.float64), kind="stable")[:KEPT_REQUESTS] for values in orders]
    found = np.unique(np.concatenate([*rows, np.flatnonzero(requests["request"] == request)]))
    numbers: Int64Array = np.asarray(requests["request"], np.int64)[found]
    return numbers


def _around(instant: int) -> tuple[int, int]:
    return instant - _HALF, instant + _HALF


def _busiest(steps: Columns) -> Iterator[tuple[int, int]]:
    if len(steps["start_ns"]):
        yield _around(int(steps["start_ns"][busiest(steps)]))


def _faults(summary: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    for mark in fault_marks(summary)[:_FAULTS]:
        yield _around(round(mark.start_s * NS_PER_S))
        if mark.end_s is not None:
            yield _around(round(mark.end_s * NS_PER_S))


def _slowest(requests: Columns) -> Iterator[tuple[int, int]]:
    for values in (_present(ttft_ns(requests)), _lasting(requests)):
        for row in np.argsort(-values, kind="stable")[:_SLOWEST].tolist():
            first = float(requests["first_token_ns"][row])
            if not np.isnan(first):
                yield _around(int(first))


def _asked(requests: Columns, at_ns: int | None, request: int | None) -> Iterator[tuple[int, int]]:
    if at_ns is not None:
        yield _around(at_ns)
    for row in np.flatnonzero(requests["request"] == request).tolist():
        arrived, finished = int(requests["arrived_ns"][row]), float(requests["finished_ns"][row])
        yield arrived, arrived + NS_PER_S if np.isnan(finished) else int(finished)


def _present(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.nan_to_num(np.asarray(values, np.float64), nan=-1.0)


def _lasting(requests: Columns) -> npt.NDArray[np.float64]:
    """Return end-to-end latencies; those that did not finish are the longest, the first to arrive before others."""
    found = np.asarray(e2e_ns(requests), np.float64)
    return np.where(np.isnan(found), 1e18 - np.asarray(requests["arrived_ns"], np.float64), found)
