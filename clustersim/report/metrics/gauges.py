"""What the steps of all replicas say together, as functions of time: running, waiting, K/V blocks.

A scheduler reports its state when a step starts. Between two steps of a replica the last report holds, over
the engine's own overhead too; it drops to zero where the replica had no request at all.

The rows are those of :mod:`clustersim.simulation.step_rows`, whose steps report the same; a function has no instant at
which it does not change. So both replays give the same ones, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.report.figures.bins import StepFunction
from clustersim.report.metrics.latencies import Columns
from clustersim.timeline.columns import is_one
from clustersim.timeline.rows_of import RowsOf


def gauge(steps: Columns, column: str) -> StepFunction:
    """Return the sum over replicas of what steps report in ``column``, as a function of time.

    It ends with the last step, and holds to there what was left unfinished.

    Parameters
    ----------
    steps : Columns
        Needs ``replica``, ``start_ns``, ``end_ns``, ``column`` and ``empties_ns``: from when on its replica had no
        request, −1 where it had some until its next step; rows in any order.
    """
    at, total = _alone(steps, column) or _together(steps, column)
    settled = np.append(at[1:] > at[:-1], True)[: len(at)]  # of the changes at one instant, the sum counts
    start, value = at[settled], total[settled]
    changes_there = np.append(True, value[1:] != value[:-1])[: len(value)]
    end_ns = int(at[-1]) if len(at) else 0
    return StepFunction(start_ns=start[changes_there], value=value[changes_there].astype(np.float64), end_ns=end_ns)


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


def _together(steps: Columns, column: str) -> tuple[Int64Array, FloatArray]:
    """Return instants and what holds from each on, of any replicas: the sum of what changes there."""
    times: list[Int64Array] = [np.zeros(0, np.int64)]
    changes: list[FloatArray] = [np.zeros(0)]
    last = int(steps["end_ns"].max(initial=0))
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
        times += [start, drops[empty], steps["end_ns"][mine].max(keepdims=True)]
        changes += [change, -amount[empty], np.zeros(1)]
        del amount, drops, change
    at, total = np.concatenate(times), np.concatenate(changes)
    del times, changes
    if (at[1:] < at[:-1]).any():
        order = np.argsort(at, kind="stable")
        at, total = at[order], total[order]
        del order
    np.cumsum(total, out=total)
    return at, total
