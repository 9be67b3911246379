"""What the steps of all replicas say together, as functions of time: running, waiting, K/V blocks.

A scheduler reports its state when a step starts. Between two steps of a replica the last report holds, over
the engine's own overhead too; it drops to zero where the replica had no request at all.

The rows are those of :mod:`clustersim.run.step_rows`, whose steps report the same; a function has no instant at which
it does not change. So both replays give the same ones, to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.report.bins import StepFunction
from clustersim.report.metrics import Columns


def gauge(steps: Columns, requests: Columns, column: str) -> StepFunction:
    """Return the sum over replicas of what steps report in ``column``, as a function of time.

    Parameters
    ----------
    steps : Columns
        Needs ``replica``, ``start_ns``, ``end_ns`` and ``column``; rows in any order.
    requests : Columns
        Needs ``replica``, ``arrived_ns``, ``finished_ns``, ``outcome``: they tell when a replica was empty.
    """
    served = np.asarray(requests["outcome"]) != "rejected"
    times: list[Int64Array] = [np.zeros(0, np.int64)]
    changes: list[FloatArray] = [np.zeros(0)]
    for replica in np.unique(steps["replica"]):
        mine = np.flatnonzero(steps["replica"] == replica)
        mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
        start = steps["start_ns"][mine].astype(np.int64)
        amount = steps[column][mine].astype(np.float64)
        busy_until = np.maximum.accumulate(steps["end_ns"][mine].astype(np.int64))
        following = np.append(start[1:], np.iinfo(np.int64).max)
        theirs = served & (requests["replica"] == replica)
        empty = _empties_after(busy_until, following, requests["arrived_ns"][theirs], requests["finished_ns"][theirs])
        held = np.where(np.append(True, empty[:-1]), 0.0, np.append(0.0, amount[:-1]))
        times += [start, busy_until[empty], busy_until[-1:]]
        changes += [amount - held, -amount[empty], np.zeros(1)]
    at = np.concatenate(times)
    order = np.argsort(at, kind="stable")
    at, total = at[order], np.cumsum(np.concatenate(changes)[order])
    settled = np.append(at[1:] > at[:-1], True)[: len(at)]  # of the changes at one instant, the sum counts
    start, value = at[settled], total[settled]
    changes_there = np.append(True, value[1:] != value[:-1])[: len(value)]
    end_ns = int(at[-1]) if len(at) else 0
    return StepFunction(start_ns=start[changes_there], value=value[changes_there], end_ns=end_ns)


def _empties_after(
    busy_until: Int64Array, following: Int64Array, arrived: npt.NDArray[Any], finished: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Say after which steps the replica had no request left before its next step or its next arrival."""
    arrived = np.sort(arrived.astype(np.float64))
    finished = np.sort(finished[~np.isnan(finished.astype(np.float64))].astype(np.float64))
    come = np.searchsorted(arrived, busy_until, side="right")
    next_arrival = np.append(arrived, np.inf)[come]
    gone = np.searchsorted(finished, np.minimum(next_arrival, following.astype(np.float64)), side="left")
    return np.asarray((busy_until < following) & (come == gone))
