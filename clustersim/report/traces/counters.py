"""Counters of a trace: what each replica reports with its steps, and the tokens that all requests get per second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_S, Int64Array
from clustersim.report.metrics.latencies import Columns
from clustersim.report.traces.slices import REQUESTS
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.tables import Tables
from clustersim.timeline.tokens import Delivery, tokens_by_bucket
from clustersim.values import dataclass

COUNTERS: Final = {
    "kv_blocks_used": "K/V blocks used",
    "running": "running requests",
    "waiting": "waiting requests",
}
"""Column of the steps → name of its counter."""
TOKENS: Final = "output tokens per second"
_FEWEST_BINS: Final = 100
_LONGEST_BIN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A value where a window begins, and from each instant on at which it changes: of a replica, or of all requests.

    ``group`` is the replica, or ``REQUESTS``; values are whole numbers or float64.
    """

    group: int
    name: str
    at_ns: Int64Array
    value: npt.NDArray[Any]


def counters_of(steps: Columns, start_ns: int, end_ns: int) -> Iterator[Counter]:
    """Yield each replica's counters from the steps that touch ``[start_ns, end_ns)``, as far as they have columns.

    The last report of a replica holds until its next one, and drops to zero where it had no request
    (``empties_ns``, where the table says it).
    """
    inside = (steps["end_ns"] > start_ns) & (steps["start_ns"] < end_ns)
    there = np.flatnonzero(inside)
    for replica, places in RowsOf(steps["replica"][there]):
        mine = there[places]
        mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
        drops = steps["empties_ns"][mine] if "empties_ns" in steps else np.full(len(mine), -1)
        drops = drops[(drops >= 0) & (drops < end_ns)].astype(np.int64)
        for column, name in COUNTERS.items():
            if column not in steps:
                continue
            at_ns = np.concatenate((steps["start_ns"][mine].astype(np.int64), drops))
            value = np.concatenate((steps[column][mine].astype(np.int64), np.zeros(len(drops), np.int64)))
            order = np.argsort(at_ns, kind="stable")
            at_ns, value = np.maximum(at_ns[order], start_ns), value[order]
            changes = np.append(True, value[1:] != value[:-1])
            yield Counter(group=replica, name=name, at_ns=at_ns[changes], value=value[changes])


def token_counter(
    tables: Tables, requests: int, window: tuple[int, int], delivery: Delivery | None = None
) -> Iterator[Counter]:
    """Yield the tokens that requests get per second, a mean over each bin of the run; only changes are told.

    A bin is a power of ten of nanoseconds of which the run has 100 to 1000, and at most 10 s.
    """
    bin_ns = bin_of(tables.end_ns)  # type: ignore[attr-defined]
    tokens = tokens_by_bucket(tables, np.ones(requests, np.bool_), 0, bin_ns, delivery)
    rate = np.append(tokens, 0) * (NS_PER_S / bin_ns)
    at_ns = np.arange(len(rate), dtype=np.int64) * bin_ns
    some = (at_ns + bin_ns > window[0]) & (at_ns < window[1] + bin_ns)
    some[1:] &= (rate[1:] != rate[:-1]) | (at_ns[1:] <= window[0])
    if len(tokens):
        yield Counter(group=REQUESTS, name=TOKENS, at_ns=at_ns[some], value=rate[some])


def bin_of(end_ns: int) -> int:
    """Return the bin over which tokens are counted, ns."""
    bin_ns = 1
    while bin_ns * _FEWEST_BINS * 10 <= end_ns and bin_ns < _LONGEST_BIN * NS_PER_S:
        bin_ns *= 10
    return bin_ns
