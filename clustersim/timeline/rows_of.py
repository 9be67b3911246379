"""The rows of each replica, or of whatever else a column names: found once for all of them.

``column == replica`` visits all rows for each replica, which 1,250 replicas of a million requests feel; here each row
is visited once, however many replicas there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import is_one, parts

FEW: Final = 1 << 10
"""Rows that numpy sorts before the ways around it are looked for."""


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
        pairs = len(column) - 1
        ascends = all((column[some.start + 1 : some.stop + 1] >= column[some]).all() for some in parts(pairs, 8))
        self._order = None if ascends else in_order(column)
        ordered = column if self._order is None else column[self._order]
        bounds = [np.zeros(min(len(ordered), 1), np.int64)]
        for some in parts(pairs, 8):
            opens = ordered[some.start + 1 : some.stop + 1] != ordered[some]
            bounds.append(np.flatnonzero(opens) + (some.start + 1))
        self._bounds = np.concatenate((*bounds, [len(ordered)]))
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


def in_order(*keys: Any) -> Int64Array:
    """Return the rows in order of whole numbers, equal ones as they come: those that are in order already, as they are.

    What ``numpy.lexsort`` does with the keys the other way round, in a third to a tenth of its time.

    Parameters
    ----------
    keys : integer arrays of shape (rows,)
        The first one counts most.
    """
    keys = tuple(key for key in keys if not is_one(key)) or keys[:1]
    if len(keys[0]) < FEW:
        return np.lexsort(keys[::-1])
    if _ascend(keys):
        return np.arange(len(keys[0]))
    packed, held = _packed(keys)
    if not held:  # numbers that far apart are few
        return np.lexsort(keys[::-1])
    order = _sorted(packed)
    if held < len(keys):
        rank = packed[order]
        same = rank[1:] == rank[:-1]
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        order[tied] = rows[np.lexsort([key[rows] for key in (*keys[: held - 1 : -1], packed)])]
    return order


def _ascend(keys: Sequence[Any]) -> bool:
    """Return whether rows are in order of keys."""
    undecided = np.ones(max(len(keys[0]) - 1, 0), bool)  # pairs of neighbours whose keys so far are equal
    for key in keys:
        if ((key[1:] < key[:-1]) & undecided).any():
            return False
        undecided &= key[1:] == key[:-1]
        if not undecided.any():
            return True
    return True


def _packed(keys: Sequence[Any]) -> tuple[Any, int]:
    """Return one number, from 0 on, that has the order of as many of the first keys as fit into it, and how many."""
    lows = [int(key.min()) for key in keys]
    sizes = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if len(keys) == 1 and sizes[0] <= 1 << 16:  # replicas of many rows
        return keys[0].astype(np.uint16) - np.uint16(lows[0] % (1 << 16)), 1  # modulo 2¹⁶, both
    found, room = np.zeros(len(keys[0]), np.int64), 1 << 62
    for held, (key, low, many) in enumerate(zip(keys, lows, sizes, strict=True)):
        if many > room:
            return found, held
        room //= many
        found *= many
        found += key.astype(np.int64, copy=False) - low
    return found, len(keys)


def _sorted(numbers: Any) -> Int64Array:
    """Return the order of numbers from 0 on, equal ones as they come.

    numpy sorts 16 bits by their value, without comparing; the first 32 of more decide most, and runs are merged.
    """
    bits = int(numbers.max()).bit_length()
    if bits > 16 and np.count_nonzero(numbers[1:] < numbers[:-1]) < len(numbers) >> 4:
        return np.argsort(numbers, kind="stable")
    head = numbers >> max(0, bits - 32) if bits > 32 else numbers
    order: Int64Array = np.argsort(head.astype(np.uint16, copy=False), kind="stable")
    if bits > 16:
        order = order[np.argsort((head >> 16).astype(np.uint16)[order], kind="stable")]
    if bits > 32:
        rank = head[order]
        same = rank[1:] == rank[:-1]
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        order[tied] = rows[np.argsort(numbers[rows], kind="stable")]
    return order
