"""The steps of a history by (replica, step): where each is, and its place in the order of its slot.

Rows of the table of steps are runs of equal steps that follow each other; all that is asked here is asked of runs,
so that it costs what the history takes folded.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.timeline_rules.views.grouping import gathered
from clustersim.timeline.columns import wide
from clustersim.timeline.passes import within
from clustersim.timeline.tables import Table

ABSENT: Final = -1
MOST_GAPS: Final = 64
"""Steps are looked up by number unless so many times more numbers than steps are in use."""


class Runs:
    """Runs of steps in order of (replica, step).

    Parameters
    ----------
    table : Table
        ``replica``, ``step``, ``count``, ``slot``, ``start_ns``, ``end_ns`` and what else was recorded.

    Attributes
    ----------
    replica, step, count, slot, start, end, recorded_end : int64 arrays of shape (runs,)
        ``end`` is that of the last pass, where passes are known and one of them ends later; slots are as narrow as they
        were recorded.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        replica, step = (wide(table[name]) for name in ("replica", "step"))
        sorted_already = ((replica[1:] > replica[:-1]) | ((replica[1:] == replica[:-1]) & (step[1:] > step[:-1]))).all()
        self.order = None if sorted_already else np.lexsort((step, replica))
        """Rows of the table in order of (replica, step); None where they are so already."""
        self.replica, self.step = (column if self.order is None else column[self.order] for column in (replica, step))
        self.count, self.start, self.recorded_end = (
            self._ordered(table[name]) for name in ("count", "start_ns", "end_ns")
        )
        self.slot: Int64Array = table["slot"] if self.order is None else table["slot"][self.order]
        self.end = self.recorded_end

    def __len__(self) -> int:
        return len(self.step)

    def where(self, at: int) -> str:
        """Return which step a run begins with."""
        return f"replica {self.replica[at]}, step {self.step[at]}"

    def last_step(self, at: int) -> int:
        """Return which step a run ends with."""
        return int(self.step[at] + self.count[at] - 1)

    def column(self, name: str, rows: slice = slice(None)) -> Int64Array | None:
        """Return a further column in the order of the runs, or some rows of it; None where it was not recorded."""
        return self._ordered(self.table[name], rows) if name in self.table else None

    def _ordered(self, column: Any, rows: slice = slice(None)) -> Int64Array:
        found = wide(column[rows] if self.order is None else column[self.order[rows]])[...]  # a view: what is recorded
        found.flags.writeable = False  # stays as it is
        return found

    def end_later(self, at: Int64Array, end: Int64Array) -> None:
        """Let runs end when passes do that end later."""
        if (end > self.end[at]).any():
            if self.end is self.recorded_end:
                self.end = self.recorded_end.copy()
            gathered(self.end, np.maximum, at, end)

    @cached_property
    def bounds(self) -> Int64Array:
        """Position of the first run of each replica, and one past the last: int64 of shape (replicas + 1,)."""
        replicas = int(self.replica.max(initial=-1)) + 1
        return np.searchsorted(self.replica, np.arange(replicas + 1))

    @cached_property
    def replicas(self) -> list[int]:
        """The replicas that have runs, ascending."""
        found: list[int] = np.flatnonzero(self.bounds[1:] > self.bounds[:-1]).tolist()
        return found

    @cached_property
    def _bases(self) -> Int64Array:
        """Where the steps of each replica begin when all are counted; steps may be missing."""
        many = np.zeros(len(self.bounds) - 1, np.int64)
        np.maximum.at(many, self.replica, self.step + self.count)
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(many)))

    @cached_property
    def _is_dense(self) -> bool:
        """Whether most numbers of steps, as far as they go, are in use."""
        return int(self._bases[-1]) <= MOST_GAPS * int(self.count.sum() + 1)

    @cached_property
    def _run_of(self) -> Any:  # int32: there is a value for each step
        found = np.full(int(self._bases[-1]), ABSENT, np.int32)
        first = self._bases[self.replica] + self.step
        found[np.repeat(first, self.count) + within(self.count)] = np.repeat(np.arange(len(self)), self.count)
        return found

    def at(self, replica: Int64Array, step: Int64Array) -> Int64Array:
        """Return the run that each step belongs to; −1 where there is no such step."""
        replica, step = replica.astype(np.int64, copy=False), step.astype(np.int64, copy=False)
        if not len(self):
            return np.full(len(step), ABSENT, np.int64)
        known = (replica >= 0) & (replica < len(self.bounds) - 1) & (step >= 0)
        inside = replica if known.all() else np.where(known, replica, 0)
        place = self._bases[inside] + step
        known &= place < self._bases[1:][inside]
        if self._is_dense and known.all():
            every: Int64Array = self._run_of[place].astype(np.int64)
            return every
        found = np.full(len(step), ABSENT, np.int64)
        if self._is_dense:
            found[known] = self._run_of[place[known]]
            return found
        first = self._bases[self.replica] + self.step  # a table by number would be mostly empty
        run = np.searchsorted(first, place[known], side="right") - 1
        within_run = (run >= 0) & (place[known] < (first + self.count)[run])
        found[known] = np.where(within_run, run, ABSENT)
        return found

    @cached_property
    def slotted(self) -> Int64Array:
        """Runs with decodes, in order of (replica, slot, step)."""
        carried = np.flatnonzero(self.slot >= 0)
        if not self.slot[carried].any():
            return carried
        return carried[np.lexsort((self.slot[carried], self.replica[carried]))]

    @cached_property
    def place(self) -> Int64Array:
        """Place of each run's first step among all steps with decodes, in order of (replica, slot, step)."""
        counts = self.count[self.slotted]
        found = np.full(len(self), ABSENT, np.int64)
        found[self.slotted] = np.cumsum(counts) - counts
        return found

    @cached_property
    def run_at_place(self) -> Any:  # int32: there is a value for each step
        """Run of each place: the inverse of :attr:`place`."""
        return np.repeat(self.slotted.astype(np.int32), self.count[self.slotted])

    @cached_property
    def rank_in_slots(self) -> Int64Array:
        """Number of each run in ``slotted``; −1 for the others."""
        found = np.full(len(self), ABSENT, np.int64)
        found[self.slotted] = np.arange(len(self.slotted))
        return found
