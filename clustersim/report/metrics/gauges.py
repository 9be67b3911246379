"""What the steps of all replicas say together, as functions of time: running, waiting, K/V blocks.

A scheduler reports its state when a step starts. Between two steps of a replica the last report holds, over
the engine's own overhead too; it drops to zero where the replica had no request at all.

The rows are those of :mod:`clustersim.simulation.step_rows`, whose steps report the same; a function has no instant at
which it does not change. So both replays give the same ones, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.column import Column
from clustersim.memory import let_go
from clustersim.report.figures.bins import StepFunction
from clustersim.report.metrics.latencies import Columns
from clustersim.timeline.columns import is_one
from clustersim.timeline.rows_of import RowsOf

_AT_A_TIME: Final = 1 << 20
"""Changes of all replicas that are put in order together."""


def gauge(steps: Columns, column: str) -> StepFunction:
    """Return the sum over replicas of what steps report in ``column``, as a function of time.

    It ends with the last step, and holds to there what was left unfinished.

    Parameters
    ----------
    steps : Columns
        Needs ``replica``, ``start_ns``, ``end_ns``, ``column`` and ``empties_ns``: from when on its replica had no
        request, −1 where it had some until its next step; rows in any order.
    """
    alone = _alone(steps, column)
    start, value, end_ns, last = Column("int64"), Column("float64"), 0, np.empty(0)
    for at, total in _together(steps, column) if alone is None else (alone,):
        settled = np.append(at[1:] > at[:-1], True)[: len(at)]  # of the changes at one instant, the sum counts
        when, held = at[settled], total[settled].astype(np.float64)
        changes_there = np.append(last, held)[:-1] != held if len(last) else np.append(True, held[1:] != held[:-1])
        changes_there = changes_there[: len(held)]
        start.append(when[changes_there])
        value.append(held[changes_there])
        end_ns, last = (int(at[-1]), held[-1:]) if len(at) else (end_ns, last)
    return StepFunction(start_ns=start.whole(), value=value.whole(), end_ns=end_ns)


def blocks_of_all(steps: Columns) -> int:
    """Return how many K/V blocks all replicas have together."""
    return sum(int(steps["kv_blocks_total"][mine].max()) for _, mine in RowsOf(steps["replica"]))


def _alone(steps: Columns, column: str) -> tuple[Int64Array, Any] | None:
    """Return instants and what holds from each on, where there is one replica whose rows are in order; else None."""
    start, drops = steps["start_ns"], steps["empties_ns"]
    if not is_one(steps["replica"]):
        return None
    last = int(steps["end_ns"].max())
    empty = np.flatnonzero((drops >= 0) & (drops <= last))
    at, total = np.append(start, last), np.append(steps[column], steps[column][-1])
    if len(empty):
        at, total = np.insert(at, empty + 1, drops[empty]), np.insert(total, empty + 1, 0)
        total[-1] = 0 if empty[-1] == len(start) - 1 else total[-1]
    return (at, total) if (at[1:] >= at[:-1]).all() else None


def _together(steps: Columns, column: str) -> Iterator[tuple[Int64Array, FloatArray]]:
    """Yield instants and what holds from each on, of any replicas: the sum of what changes there.

    Of many rows one stretch of time after the other; no instant is in two of them.
    """
    times, changes, bounds = Column("int64"), Column("float64"), [0]
    last, given_up = int(steps["end_ns"].max(initial=0)), 0
    for _, mine in RowsOf(steps["replica"]):
        start = steps["start_ns"][mine]
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            mine, start = mine[order], start[order]
        amount = steps[column][mine].astype(np.float64)
        drops = steps["empties_ns"][mine]
        empty = np.flatnonzero((drops >= 0) & (drops <= last))
        change = np.diff(amount, prepend=0.0)
        after = empty[empty < len(amount) - 1] + 1
        change[after] = amount[after]
        when = np.concatenate((start, drops[empty], steps["end_ns"][mine].max(keepdims=True)))
        change = np.concatenate((change, -amount[empty], np.zeros(1)))
        if len(empty):
            order = np.argsort(when, kind="stable")
            when, change = when[order], change[order]
        times.append(when)
        changes.append(change)
        bounds.append(bounds[-1] + len(when))
        if bounds[-1] - given_up > _AT_A_TIME:
            let_go()
            given_up = bounds[-1]
    at, total, before = times.whole(), changes.whole(), 0.0
    edges = _edges(at)
    cuts = [low + np.searchsorted(at[low:high], edges) for low, high in pairwise(bounds)]
    for stretch in range(len(edges) - 1):
        some = [slice(cut[stretch], cut[stretch + 1]) for cut in cuts]
        when, change = (
            np.concatenate([np.empty(0, values.dtype), *(values[one] for one in some)]) for values in (at, total)
        )
        order = np.argsort(when, kind="stable")
        when, change = when[order], change[order]
        if len(change):
            change[0] += before
            np.cumsum(change, out=change)
            before = change[-1]
            yield when, change
        if len(edges) > 2:
            let_go()


def _edges(at: Int64Array) -> Int64Array:
    """Return from when to when stretches of time are that have some ``_AT_A_TIME`` instants each, ascending."""
    many = -(-len(at) // _AT_A_TIME)
    seen = np.sort(at[:: max(1, len(at) // (64 * many))]) if many > 1 else at[:0]
    inner = np.unique(seen[len(seen) // many :: max(1, len(seen) // many)]) if many > 1 else seen
    low, high = (int(found) for found in (at.min(initial=0), at.max(initial=0)))
    return np.unique(np.concatenate(([low], inner, [high + 1])))
