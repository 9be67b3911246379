"""What the recorder calls rows of durations that replicas know by numbers of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STEP_KINDS

NOTHING: Final[Int64Array] = np.empty(0, np.int64)

Row = tuple[Int64Array, tuple[int, ...]]
"""Durations by class, and the columns that vary."""
Rows = Mapping[str, Sequence[Row]]
"""Kind of step → the rows of durations that its steps refer to by number."""


class RowNumbers:
    """The recorder's numbers of the rows of one stage; replicas that have the same rows share them.

    Parameters
    ----------
    rows : Rows
    templates : mapping
        Kind of step → number of its template.
    numbers_of : callable
        :meth:`~clustersim.timeline.record.Recorder.numbers_of`.
    """

    def __init__(
        self, rows: Rows, templates: Mapping[str, int], numbers_of: Callable[[int, Sequence[Row]], list[int]]
    ) -> None:
        self.rows, self.templates, self._numbers_of = rows, templates, numbers_of
        self._recorded = NOTHING
        """Kind after kind, −1 of rows that no step has used."""
        self._bounds = [0] * (len(STEP_KINDS) + 1)
        self._template, self._widths = np.zeros((2, len(STEP_KINDS)), np.int64)

    def told(self, kinds: Int64Array, numbers: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return, for each run of steps, the recorder's number of its row, its template, and how many columns vary."""
        self._grow()
        of = kinds.astype(np.intp)
        at = np.array(self._bounds).take(of, mode="clip")  # all are there, and to look is half of the time
        at += numbers
        rows = self._recorded.take(at, mode="clip")
        if rows.min(initial=0) < 0:
            for place in range(len(STEP_KINDS)):
                recorded = self._recorded[self._bounds[place] : self._bounds[place + 1]]
                used = numbers[kinds == place]
                new = first_of_each(used[recorded[used] < 0], len(recorded))  # so that numbers tell nothing of others
                if len(new):
                    self._register(place, recorded, new)
            rows = self._recorded[at]
        return rows, self._template.take(of, mode="clip"), self._widths.take(of, mode="clip")

    def _grow(self) -> None:
        """Make room for rows that are new since the last time."""
        sizes = [len(self.rows.get(kind, ())) for kind in STEP_KINDS]
        bounds = [0, *np.cumsum(sizes).tolist()]
        if bounds != self._bounds:
            before = [self._recorded[low:high] for low, high in pairwise(self._bounds)]
            grown = [
                np.pad(one, (0, size - len(one)), constant_values=-1) for one, size in zip(before, sizes, strict=True)
            ]
            self._recorded, self._bounds = np.concatenate(grown), bounds

    def _register(self, place: int, recorded: Int64Array, new: Int64Array) -> None:
        """Give rows of a kind of step numbers of the recorder."""
        kind = STEP_KINDS[place]
        known, template = self.rows[kind], self.templates[kind]
        recorded[new] = self._numbers_of(template, [known[at] for at in new.tolist()])
        self._template[place], self._widths[place] = template, len(known[int(new[0])][1])


def first_of_each(values: Int64Array, size: int) -> Int64Array:
    """Return each of some numbers below ``size`` once, in the order in which they come first."""
    at = np.full(size, len(values))
    at[values[::-1]] = np.arange(len(values))[::-1]
    found: Int64Array = values[np.sort(at[at < len(values)])]
    return found
