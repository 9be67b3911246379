"""Extremes and counts by key, over plain arrays.

Keys mostly number ranks, layers and passes without gaps: such ones are counted in a table of their range, which takes a
tenth of the time of ``numpy.unique`` (it hashes, and 60,000 distinct numbers took it 17 ms).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.rows_of import in_order


class Groups:
    """Rows that share a key.

    Parameters
    ----------
    keys : int64 array of shape (rows,)

    Attributes
    ----------
    keys : int64 array of shape (groups,)
        Distinct keys, ascending.
    order : int64 array of shape (rows,)
        Rows in order of their keys.
    firsts : int64 array of shape (groups,)
        Where each group begins in ``order``.
    """

    def __init__(self, keys: Int64Array) -> None:
        keys = keys.astype(np.int64, copy=False)
        self.order = in_order(keys)
        ordered = keys[self.order]
        self.firsts = np.flatnonzero(np.concatenate((np.ones(1, bool), ordered[1:] != ordered[:-1]))[: len(keys)])
        self.keys: Int64Array = ordered[self.firsts]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def counts(self) -> Int64Array:
        """Rows of each group."""
        return np.diff(np.append(self.firsts, len(self.order)))

    @property
    def some(self) -> Int64Array:
        """The first row of each group."""
        return self.order[self.firsts]

    def least(self, values: Int64Array) -> Int64Array:
        """Return the smallest value of each group."""
        found: Int64Array = np.minimum.reduceat(values[self.order], self.firsts) if len(self) else self.keys
        return found

    def most(self, values: Int64Array) -> Int64Array:
        """Return the largest value of each group."""
        found: Int64Array = np.maximum.reduceat(values[self.order], self.firsts) if len(self) else self.keys
        return found

    def find(self, keys: Int64Array) -> Int64Array:
        """Return the group of each key, −1 where there is none."""
        if not len(self):
            return np.full(len(keys), -1, np.int64)
        low, width = int(self.keys[0]), int(self.keys[-1]) - int(self.keys[0]) + 1
        if width > _table(len(keys)):
            at = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
            return np.where(self.keys[at] == keys, at, -1)
        numbers = np.full(width + 1, -1, np.int64)  # the last one is that of keys outside the range
        numbers[self.keys - low] = np.arange(len(self))
        place = keys.astype(np.int64, copy=False) - low
        return numbers[np.where((place >= 0) & (place < width), place, width)]


def _table(rows: int) -> int:
    """Return up to which range of numbers a table of all of them costs less than putting rows in order."""
    return 4 * rows + 1024


def distinct(numbers: Int64Array) -> Int64Array:
    """Return each number once, ascending: as ``numpy.unique`` of whole numbers."""
    if not len(numbers):
        return numbers
    numbers = numbers.astype(np.int64, copy=False)
    low = int(numbers.min())
    width = int(numbers.max()) - low + 1
    if width <= _table(len(numbers)):
        there = np.zeros(width, bool)
        there[numbers - low] = True
        return np.flatnonzero(there) + low
    ordered = np.sort(numbers)
    found: Int64Array = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return found


def placed(numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return where each number comes first, ascending by number, and for each row the place of its number there."""
    groups = Groups(numbers)
    return groups.some, groups.find(numbers)


def gathered(into: Any, combine: np.ufunc, at: Int64Array, values: Any) -> None:
    """Combine values into those at some positions, as ``combine.at``, which is slow where each position comes once."""
    if (at[1:] > at[:-1]).all():
        into[at] = combine(into[at], values)
    else:
        combine.at(into, at, values)


def without(rows: Int64Array, others: Int64Array) -> Int64Array:
    """Return rows, each once and ascending, without others: as ``numpy.setdiff1d``, which sorts them first."""
    found: Int64Array = rows[~np.isin(rows, others)] if len(others) else rows
    return found


def numbered(columns: Int64Array) -> Int64Array:
    """Return a number for each column of a matrix: equal for equal columns, and in their order from the top on."""
    found, many = np.zeros(columns.shape[1], np.int64), 1
    for values in columns:
        low = int(values.min(initial=0))
        width = int(values.max(initial=0)) - low + 1
        if many * width >= 1 << 62:
            found, values = (np.unique(each, return_inverse=True)[1] for each in (found, values))
            low, many = 0, len(found)
            width = many
        found, many = found * width + (values - low), many * width
    return found


def last_before(owner: Int64Array, time: Int64Array, asks: Int64Array, when: Int64Array) -> Int64Array:
    """Return the last of some instants of each owner that is not after another one; −1 where there is none."""
    many = len(owner)
    order = in_order(np.append(owner, asks), np.append(time, when))
    place = np.maximum.accumulate(np.where(order < many, np.arange(len(order)), -1))
    found = np.full(len(asks), -1, np.int64)
    mine = np.flatnonzero(order >= many)
    before = order[place[mine]]
    same = (place[mine] >= 0) & (np.append(owner, -1)[np.minimum(before, many)] == asks[order[mine] - many])
    found[order[mine] - many] = np.where(same, before, -1)
    return found
