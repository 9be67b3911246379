"""Passes as runs that don't depend on how a replay folded them: what is the same for all steps, and what varies.

A run is as many passes of one stage as follow each other without a gap, step by step, with one template and durations
that differ in the classes that attend alone. Both replays record the same passes, so the same runs come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.report.folded.programs import varying_classes
from clustersim.report.folded.stretched import lengths_of, some_steps, stretched_columns
from clustersim.timeline.columns import as_one, taken, wide
from clustersim.timeline.digest import in_order
from clustersim.timeline.passes import Block, Passes
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

FACTOR: Final = 0x9E3779B97F4A7C15
"""An odd number without a pattern: 2^64 over the golden ratio (Knuth, TAOCP 3, section 6.4)."""
_PIECE: Final = {
    "recorded": "int32", "step": "int32", "steps": "int32", "start": "int64", "end": "int64", "program": "int32",
    "row": "int32",
}  # fmt: skip
"""Columns of parts of recorded passes: there may be millions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Durations:
    """What the passes of one template take, in order of (replica, stage, step), ns.

    Parameters
    ----------
    fixed : int64 array of shape (rows, classes that don't vary)
    varying : int64 array of shape (passes, classes that vary)
    lengths : int64 array of shape (passes,)
        How long each pass takes where its operators overlap; empty for a chain, where it is the sum of their durations.
    """

    fixed: Int64Array
    varying: Int64Array
    lengths: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldedPasses:
    """The passes of a timeline as runs.

    Parameters
    ----------
    programs : list of int
        The templates that have passes, in order.
    durations : list of Durations
        Of each of them.
    runs : dict
        Columns of the runs, in order of (replica, stage, step): ``replica``, ``stage``, ``program`` (a position in
        ``programs``), ``step`` (the first one), ``steps``, ``row`` of durations that don't vary, ``gap`` in ns since
        the one before it on this stage ended, and ``irregular``: 1 for a pass that contention stretched, else 0.
    bounds : int64 array of shape (2, runs)
        Start and end of each run, ns.
    stretched : dict
        What contention made of the irregular ones (:func:`clustersim.report.folded.stretched.stretched_columns`).
    """

    programs: list[int]
    durations: list[Durations]
    runs: dict[str, npt.NDArray[Any]]
    bounds: Int64Array
    stretched: dict[str, npt.NDArray[Any]]


def folded_passes(tables: Tables) -> FoldedPasses:
    """Return the passes of a timeline as runs."""
    passes, table = Passes(tables), tables.passes
    order = in_order(table, ("replica", "stage", "first_step"))
    programs: list[int] = np.flatnonzero(np.bincount(table["template"])).tolist() if len(order) else []
    durations: list[Durations] = []
    pieces: list[list[Int64Array]] = [[] for _ in _PIECE]
    for place, number in enumerate(programs):
        told = _Template(passes, place, number)
        for piece in told.pieces(order[table["template"][order] == number]):
            for column, values, of in zip(pieces, piece, _PIECE.values(), strict=True):
                column.append(values.astype(of))
        durations.append(told.durations)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    joined = [np.concatenate([np.empty(0, of), *pieces.pop(0)]) for of in _PIECE.values()]
    goes = np.argsort(rank[joined[0]], kind="stable")
    runs, bounds = _runs(tables, [joined.pop(0)[goes] for _ in _PIECE])
    del rank, goes
    stretched = stretched_columns(passes, order[table["irregular"][order] >= 0])
    return FoldedPasses(programs=programs, durations=durations, runs=runs, bounds=bounds, stretched=stretched)


class _Template:
    """The passes of one template, worked out block by block."""

    def __init__(self, passes: Passes, place: int, number: int) -> None:
        self.passes, self.place, self.number = passes, place, number
        self.template = passes.tables.templates[number]
        self.varying = varying_classes(self.template)
        self.fixed = [cls for cls in range(self.template.num_classes) if cls not in self.varying]
        self._rows: dict[bytes, int] = {}
        self._varying: list[Int64Array] = []
        self._lengths: list[Int64Array] = []

    def pieces(self, recorded: Int64Array) -> Iterator[tuple[Int64Array, ...]]:
        """Yield, for rows of the recorded passes, the parts of them that have one row of durations (``_PIECE``)."""
        for block in self.passes.blocks(recorded):
            opens = self._opens(block)
            first = some_steps(block, opens)
            rows = self.passes.durations(first, self.number, self.fixed)
            regular, actual = lengths_of(self.passes, block, self.number)
            starts, last = self.passes.starts(block), np.append(opens[1:], len(block.of)) - 1
            self._varying.append(self.passes.durations(block, self.number, self.varying))
            self._lengths.append(regular)
            run = first.runs
            yield (
                run, self.passes.tables.passes["first_step"][run] + first.index, last - opens + 1, starts[opens],
                (starts + actual)[last], np.full(len(opens), self.place), self._numbered(rows),
            )  # fmt: skip

    def _numbered(self, rows: Int64Array) -> Int64Array:
        """Return the number of each row of durations that don't vary, in order of appearance over all blocks."""
        numbers = self._rows
        firsts, of = alike(rows)
        found = [numbers.setdefault(rows[at].tobytes(), len(numbers)) for at in firsts.tolist()]
        return np.array(found, np.int64)[of]

    def _opens(self, block: Block) -> Int64Array:
        """Return the first step of each recorded run, and all steps of those in which other classes vary as well."""
        opens = block.index == 0
        for _, columns, steps, _ in self.passes.varying(block, self.fixed):
            if not set(columns) <= set(self.varying):
                opens[steps] = True
        return np.flatnonzero(opens)

    @property
    def durations(self) -> Durations:
        chain = self.template.is_chain
        return Durations(
            fixed=np.frombuffer(b"".join(self._rows), np.int64).reshape(len(self._rows), len(self.fixed)),
            varying=np.concatenate(self._varying),
            lengths=np.empty(0, np.int64) if chain else np.concatenate(self._lengths),
        )


def alike(rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the first of the rows of each content, in order of appearance, and for each row the place of its own.

    Rows are told apart by a sum with odd factors, which is then checked: most are equal to one of a few.
    """
    factors = np.cumprod(np.full(rows.shape[1], FACTOR, np.uint64)).view(np.int64)
    _, firsts, of = np.unique(rows @ factors, return_index=True, return_inverse=True)
    if not np.array_equal(rows[firsts][of], rows):
        return np.arange(len(rows)), np.arange(len(rows))
    order = np.argsort(firsts)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return firsts[order], place[of]


def _runs(tables: Tables, pieces: Sequence[Any]) -> tuple[dict[str, npt.NDArray[Any]], Int64Array]:
    """Join pieces, in order of (replica, stage, step), that follow each other and are alike; add the bounds of each."""
    recorded, step, steps, start, end, program, row = pieces
    table = tables.passes
    replica, stage = (taken(table[name], recorded) for name in ("replica", "stage"))
    odd = table["irregular"][recorded] >= 0
    before = (replica[1:] == replica[:-1]) & (stage[1:] == stage[:-1])
    gap = start.copy()
    gap[1:] -= np.where(before, end[:-1], 0)
    joins = before & (gap[1:] == 0) & (step[1:] == (step + steps)[:-1]) & ~(odd[1:] | odd[:-1])
    joins &= (program[1:] == program[:-1]) & (row[1:] == row[:-1])
    opens = np.flatnonzero(np.append(True, ~joins)[: len(step)])
    columns = {
        "replica": replica,
        "stage": stage,
        "program": program,
        "step": step,
        "row": row,
        "gap": gap,
        "irregular": odd,
    }
    found = {
        name: column[opens] if name == "irregular" else wide(taken(as_one(column), opens))
        for name, column in columns.items()
    }
    found["steps"] = np.add.reduceat(steps, opens) if len(opens) else opens
    return found, np.stack([start[opens], end[np.append(opens[1:], len(end))[: len(opens)] - 1]])
