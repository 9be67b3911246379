"""The rows of each replica, or of whatever else a column names: found once for all of them.

``column == replica`` visits all rows for each replica, which 1,250 replicas of a million requests feel; here each row
is visited once, however many replicas there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clustersim.clock import Int64Array


class RowsOf:
    """Rows by the number that a column has there.

    Parameters
    ----------
    column : integer array of shape (rows,)

    Attributes
    ----------
    numbers : int64 array of shape (numbers,)
        Each number that there is, ascending.

    Examples
    --------
    >>> replica = RowsOf(np.array([1, 0, 1, 3]))
    >>> replica.of(1), replica.of(2)
    (array([0, 2]), array([], dtype=int64))
    """

    def __init__(self, column: Any) -> None:
        ascends = (column[1:] >= column[:-1]).all()
        self._order = None if ascends else in_order(column)
        ordered = column if self._order is None else column[self._order]
        opens = np.concatenate((np.ones(1, bool), ordered[1:] != ordered[:-1]))[: len(ordered)]
        self._bounds = np.append(np.flatnonzero(opens), len(ordered))
        self.numbers: Int64Array = ordered[self._bounds[:-1]].astype(np.int64)

    def __iter__(self) -> Iterator[tuple[int, Int64Array]]:
        """Yield each number that there is, and its rows."""
        for at, number in enumerate(self.numbers.tolist()):
            yield number, self._rows(at)

    def of(self, number: int) -> Int64Array:
        """Return the rows that have a number, ascending; none where no row has it."""
        at = int(np.searchsorted(self.numbers, number))
        there = at < len(self.numbers) and self.numbers[at] == number
        return self._rows(at) if there else np.empty(0, np.int64)

    def _rows(self, at: int) -> Int64Array:
        low, high = self._bounds[at], self._bounds[at + 1]
        return np.arange(low, high) if self._order is None else self._order[low:high]


def rows_between(column: Any, numbers: range) -> tuple[int, int]:
    """Return the first row of a column that ascends whose number is in a range, and the first one after them.

    ``numpy.searchsorted`` makes the whole column int64 first where the numbers are: of 100 million rows, each time.
    """
    low, high = np.searchsorted(column, np.array((numbers.start, numbers.stop), column.dtype)).tolist()
    return low, high


def in_order(keys: Any) -> Int64Array:
    """Return the rows in order of their keys, equal ones as they come: those that are in order already, as they are."""
    if (keys[1:] >= keys[:-1]).all():
        return np.arange(len(keys))
    low = int(keys.min())
    if int(keys.max()) - low < 1 << 16:  # numpy sorts 16 bits by their value, without comparing
        wide = keys if keys.itemsize > 2 else keys.astype(np.int32)
        return np.argsort((wide - low).astype(np.uint16), kind="stable")
    return np.argsort(keys, kind="stable")
