"""What the steps of all replicas say together, as functions of time: running, waiting, K/V blocks.

A scheduler reports its state when a step starts. Between two steps of a replica the last report holds, over
the engine's own overhead too; it drops to zero where the replica had no request at all.

The rows are those of :mod:`clustersim.simulation.step_rows`, whose steps report the same; a function has no instant at
which it does not change. So both replays give the same ones, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.column import Column
from clustersim.memory import let_go
from clustersim.report.figures.bins import StepFunction
from clustersim.report.metrics.latencies import Columns
from clustersim.simulation.step_rows import Rows
from clustersim.timeline.columns import is_one
from clustersim.timeline.rows_of import RowsOf

_AT_A_TIME: Final = 1 << 20
"""Changes of all replicas that are put in order together."""
_ASKED: Final = ("running", "waiting")
"""Columns of the same rows that a summary and a page both ask for."""


def gauge(steps: Columns, column: str) -> StepFunction:
    """Return the sum over replicas of what steps report in ``column``, as a function of time.

    It ends with the last step, and holds to there what was left unfinished. That of :class:`Rows` is found once, with
    that of the column that changes when it does.

    Parameters
    ----------
    steps : Columns
        Needs ``replica``, ``start_ns``, ``end_ns``, ``column`` and ``empties_ns``: from when on its replica had no
        request, −1 where it had some until its next step; rows in any order.
    """
    if not isinstance(steps, Rows):
        return _gauges(steps, [column])[0]
    if column not in steps.made:
        names = _ASKED if column in _ASKED else (column,)
        steps.made.update(zip(names, _gauges(steps, names), strict=True))
    found: StepFunction = steps.made[column]
    return found


class _Changes:
    """Takes what a column comes to, stretch by stretch, and keeps where that changes."""

    def __init__(self) -> None:
        self._start, self._value, self._last = Column("int64"), Column("float64"), np.full(1, np.nan)

    def take(self, at: Int64Array, total: FloatArray, settled: Int64Array) -> None:
        """Take instants and what holds from each on; of those at one instant the last, which is settled, counts."""
        when, held = at[settled], total[settled].astype(np.float64)
        if len(held):
            changes = np.flatnonzero(np.append(self._last, held[:-1]) != held)
            self._start.append(when[changes])
            self._value.append(held[changes])
            self._last = held[-1:]

    def whole(self, end_ns: int) -> StepFunction:
        """Return the function."""
        return StepFunction(start_ns=self._start.whole(), value=self._value.whole(), end_ns=end_ns)


def _gauges(steps: Columns, columns: Sequence[str]) -> list[StepFunction]:
    """Return the sums of several columns, as functions of time."""
    found, end_ns, alone = [_Changes() for _ in columns], 0, _alone(steps, columns)
    for at, totals in _together(steps, columns) if alone is None else (alone,):
        settled = np.flatnonzero(np.append(at[1:] > at[:-1], True)[: len(at)])
        for one, total in zip(found, totals, strict=True):
            one.take(at, total, settled)
        end_ns = int(at[-1]) if len(at) else end_ns
    return [one.whole(end_ns) for one in found]


def blocks_of_all(steps: Columns) -> int:
    """Return how many K/V blocks all replicas have together."""
    return sum(int(steps["kv_blocks_total"][mine].max()) for _, mine in RowsOf(steps["replica"]))


def _alone(steps: Columns, columns: Sequence[str]) -> tuple[Int64Array, list[Any]] | None:
    """Return instants and what holds from each on, where there is one replica whose rows are in order; else None."""
    start, drops = steps["start_ns"], steps["empties_ns"]
    if not is_one(steps["replica"]):
        return None
    last = int(steps["end_ns"].max())
    empty = np.flatnonzero((drops >= 0) & (drops <= last))
    at, totals = np.append(start, last), [np.append(steps[name], steps[name][-1]) for name in columns]
    if len(empty):
        at, totals = np.insert(at, empty + 1, drops[empty]), [np.insert(total, empty + 1, 0) for total in totals]
        for total in totals:
            total[-1] = 0 if empty[-1] == len(start) - 1 else total[-1]
    return (at, totals) if (at[1:] >= at[:-1]).all() else None


def _together(steps: Columns, columns: Sequence[str]) -> Iterator[tuple[Int64Array, list[FloatArray]]]:
    """Yield instants and what holds from each on, of any replicas: the sum of what changes there.

    Of many rows one stretch of time after the other; no instant is in two of them.
    """
    times, changes, bounds = Column("int64"), [Column("float64") for _ in columns], [0]
    last, given_up = int(steps["end_ns"].max(initial=0)), 0
    for _, mine in RowsOf(steps["replica"]):
        start = steps["start_ns"][mine]
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            mine, start = mine[order], start[order]
        drops = steps["empties_ns"][mine]
        empty = np.flatnonzero((drops >= 0) & (drops <= last))
        after = empty[empty < len(start) - 1] + 1
        when = np.concatenate((start, drops[empty], steps["end_ns"][mine].max(keepdims=True)))
        order = np.argsort(when, kind="stable") if len(empty) else np.arange(len(when))
        times.append(when[order])
        for name, found in zip(columns, changes, strict=True):
            amount = steps[name][mine].astype(np.float64)
            change = np.diff(amount, prepend=0.0)
            change[after] = amount[after]
            found.append(np.concatenate((change, -amount[empty], np.zeros(1)))[order])
        bounds.append(bounds[-1] + len(when))
        if bounds[-1] - given_up > _AT_A_TIME:
            let_go()
            given_up = bounds[-1]
    at, each, before = times.whole(), [found.whole() for found in changes], [0.0 for _ in columns]
    edges = _edges(at)
    cuts = [low + np.searchsorted(at[low:high], edges) for low, high in pairwise(bounds)]
    for stretch in range(len(edges) - 1):
        some = [slice(cut[stretch], cut[stretch + 1]) for cut in cuts]
        when, *totals = (
            np.concatenate([np.empty(0, values.dtype), *(values[one] for one in some)]) for values in (at, *each)
        )
        order = np.argsort(when, kind="stable")
        if len(order):
            totals = [total[order] for total in totals]
            for number, total in enumerate(totals):
                total[0] += before[number]
                np.cumsum(total, out=total)
                before[number] = total[-1]
            yield when[order], totals
        if len(edges) > 2:
            let_go()


def _edges(at: Int64Array) -> Int64Array:
    """Return from when to when stretches of time are that have some ``_AT_A_TIME`` instants each, ascending."""
    many = -(-len(at) // _AT_A_TIME)
    seen = np.sort(at[:: max(1, len(at) // (64 * many))]) if many > 1 else at[:0]
    inner = np.unique(seen[len(seen) // many :: max(1, len(seen) // many)]) if many > 1 else seen
    low, high = (int(found) for found in (at.min(initial=0), at.max(initial=0)))
    return np.unique(np.concatenate(([low], inner, [high + 1])))
