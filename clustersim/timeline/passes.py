"""Runs of passes, expanded step by step: starts and durations, a bounded number of steps at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import PART, parts
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

__all__ = ["BLOCK_STEPS", "PART", "Block", "Passes", "blocks", "by_template", "parts", "within"]

BLOCK_STEPS: Final = 1 << 16
"""Steps that are expanded at a time; a longer run is a block of its own."""


def within(counts: Int64Array) -> Int64Array:
    """Return 0 … n − 1 for each n of ``counts``, one after the other."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)


def blocks(counts: Int64Array, most: int = BLOCK_STEPS) -> Iterator[slice]:
    """Split runs of so many steps into slices of at most ``most`` steps, or of one run."""
    ends = np.cumsum(counts, dtype=np.int64)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(first, last)
        first = last


def by_template(tables: Tables, chosen: Any) -> Iterator[tuple[int, Int64Array]]:
    """Yield templates, and which rows of ``passes`` have each, of those that are chosen: bool of shape (passes,)."""
    found: dict[int, list[Int64Array]] = {}
    for some in parts(len(chosen)):
        rows = some.start + np.flatnonzero(chosen[some])
        for number, places in RowsOf(tables.passes["template"][rows]):
            found.setdefault(number, []).append(rows[places])
    for number in sorted(found):
        yield number, np.concatenate(found.pop(number))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """The steps of some runs.

    Parameters
    ----------
    runs : int64 array of shape (runs,)
        Rows of ``passes``.
    of, index : int64 arrays of shape (steps,)
        Position in ``runs`` of each step, and its number within its run.
    """

    runs: Int64Array
    of: Int64Array
    index: Int64Array

    @property
    def firsts(self) -> Int64Array:
        """Position of the first step of each run."""
        return np.flatnonzero(self.index == 0)

    @property
    def is_single(self) -> bool:
        """Whether each run has one step, so that what is true of runs is true of steps."""
        return len(self.of) == len(self.runs)

    def of_steps(self, of_runs: Int64Array) -> Int64Array:
        """Return for each step what is known of its run."""
        return of_runs if self.is_single else of_runs[self.of]


class Passes:
    """Expands the runs of passes of some tables.

    Parameters
    ----------
    tables : Tables
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def blocks(self, runs: Int64Array) -> Iterator[Block]:
        """Expand rows of ``passes``, in the order given."""
        counts = self.tables.passes["steps"][runs]
        if (counts == 1).all():
            for low in range(0, len(runs), BLOCK_STEPS):
                some = runs[low : low + BLOCK_STEPS]
                yield Block(runs=some, of=np.arange(len(some)), index=np.zeros(len(some), np.int64))
            return
        counts = counts.astype(np.int64)
        for chosen in blocks(counts):
            many = counts[chosen]
            yield Block(runs=runs[chosen], of=np.repeat(np.arange(len(many)), many), index=within(many))

    @property
    def _groups(self) -> tuple[Int64Array, list[tuple[int, tuple[int, ...]]]]:
        """Group of each row, and (template, columns that vary) of each group."""
        found: tuple[Int64Array, list[tuple[int, tuple[int, ...]]]] = self._of_rows("groups", self._grouped)
        return found

    @property
    def _row_lengths(self) -> Int64Array:
        """Sum of the durations of each row by operator, without what varies."""
        found: Int64Array = self._of_rows("lengths", self._summed)
        return found

    def _of_rows(self, name: str, work_out: Callable[[], Any]) -> Any:
        """Return what is found once for all parts of the same tables."""
        made = self.tables.of_rows
        if name not in made:
            made[name] = work_out()
        return made[name]

    def _grouped(self) -> tuple[Int64Array, list[tuple[int, tuple[int, ...]]]]:
        rows, sets = self.tables.rows, self.tables.column_sets
        codes = rows["template"].astype(np.int64) * (len(sets) + 1) + rows["columns"]
        distinct = np.flatnonzero(np.bincount(codes))
        found = [divmod(code, len(sets) + 1) for code in distinct.tolist()]
        numbers = np.zeros(int(distinct[-1]) + 1 if found else 0, np.min_scalar_type(len(found)))
        numbers[distinct] = np.arange(len(found))  # narrow, as that is sorted quickly
        return numbers[codes], [(template, sets[number]) for template, number in found]

    def _summed(self) -> Int64Array:
        group, groups = self._groups
        lengths = np.zeros(len(group), np.int64)
        for number, (template, columns) in enumerate(groups):
            counts = self.tables.templates[template].counts.copy()
            counts[list(columns)] = 0
            mine = np.flatnonzero(group == number)
            for some in blocks(np.ones(len(mine), np.int64)):
                at = self.tables.rows["at"][mine[some]]
                lengths[mine[some]] = self.tables.row_values[at[:, None] + np.arange(len(counts))] @ counts
        return lengths

    def varying(
        self, block: Block, among: Collection[int] | None = None
    ) -> Iterator[tuple[int, tuple[int, ...], Int64Array, Int64Array]]:
        """Yield (template, columns, steps, durations of shape (steps, columns)) where some vary, of some classes."""
        group, groups = self._groups
        if among is not None and not any(cls in columns for _, columns in groups for cls in among):
            return
        passes = self.tables.passes
        of_step = block.of_steps(group[passes["row"][block.runs]])
        varying_at = passes["varying_at"][block.runs]
        many = np.bincount(of_step, minlength=len(groups))
        order = np.argsort(of_step, kind="stable") if np.count_nonzero(many) > 1 else np.arange(len(of_step))
        ends = np.cumsum(many)
        for number in np.flatnonzero(many).tolist():
            template, columns = groups[number]
            if columns:
                steps = order[ends[number] - many[number] : ends[number]]
                at = varying_at[block.of[steps]] + block.index[steps] * len(columns)
                each = at[:, None] if len(columns) == 1 else at[:, None] + np.arange(len(columns))
                yield template, columns, steps, self.tables.varying[each]

    def lengths(self, block: Block) -> Int64Array:
        """Return the sum of all durations of each step: how long the pass of a chain takes, and no pass longer."""
        lengths: Int64Array = block.of_steps(self._row_lengths[self.tables.passes["row"][block.runs]])
        for template, columns, steps, values in self.varying(block):
            lengths[steps] += values @ self.tables.templates[template].counts[list(columns)]
        return lengths

    def starts(self, block: Block) -> Int64Array:
        """Return when each pass starts."""
        passes = self.tables.passes
        at = passes["starts_at"][block.runs]
        starts: Int64Array = block.of_steps(passes["start_ns"][block.runs])
        if block.is_single:
            return starts
        implied = (at < 0)[block.of]
        if implied.any():
            before = np.cumsum(self.lengths(block))
            before = np.concatenate((np.zeros(1, np.int64), before[:-1]))
            starts += before - before[block.firsts][block.of]
        if not implied.all():
            steps = np.flatnonzero(~implied)
            starts[steps] = self.tables.starts[at[block.of[steps]] + block.index[steps]]
        return starts

    def durations(self, block: Block, template: int, classes: Sequence[int] | None = None) -> Int64Array:
        """Return the durations by class, or of some classes, of steps that all have this template."""
        row, back = self.tables.passes["row"][block.runs], np.arange(len(block.runs))
        if classes is None:
            classes = range(self.tables.templates[template].num_classes)
            row, back = np.unique(row, return_inverse=True)
        values = self.tables.row_values[self.tables.rows["at"][row][:, None] + np.array(classes, np.int64)]
        table: Int64Array = values[block.of_steps(back)]
        for _, columns, steps, found in self.varying(block, classes):
            for at, cls in enumerate(classes):
                if cls in columns:
                    table[steps, at] = found[:, columns.index(cls)]
        return table

    @cached_property
    def bounds(self) -> tuple[Int64Array, Int64Array]:
        """Start of the first pass of each run, and an upper bound of the end of its last one."""
        passes = self.tables.passes
        end = np.empty(len(passes["steps"]), np.int64)
        for block in self.blocks(np.arange(len(end))):
            last = np.append(block.firsts[1:], len(block.of)) - 1
            end[block.runs] = (self.starts(block) + self.lengths(block))[last]
        stretched = np.flatnonzero(passes["irregular"] >= 0)
        for run, number in zip(stretched.tolist(), passes["irregular"][stretched].tolist(), strict=True):
            found = self.tables.irregular[number]
            if isinstance(found, Stretch):
                end[run] += found.lost_ns
            else:
                end[run] = int(passes["start_ns"][run]) + int(found[1].max())
        starts: Int64Array = passes["start_ns"]
        return starts, end
