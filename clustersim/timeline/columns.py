"""Columns that grow: each of its own integer type, without a Python object per row."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.column import AllColumns, Column, constant, is_one, shelved
from clustersim.timeline.rows_of import in_order

__all__ = ["Columns", "Flat", "as_one", "is_any", "is_one", "joined", "repeated", "shelved", "taken", "wide", "worded"]

STAGED_VALUES: Final = 1 << 18
"""Values appended one by one that wait, as int64, to be put into typed columns."""
_TYPES: Final = [np.iinfo(name) for name in ("int8", "int16", "int32", "int64")]
_LEAST: Final = {types.dtype: types.min for types in _TYPES}
_MOST: Final = {types.dtype: types.max for types in _TYPES}
MANY_VALUES: Final = 1 << 14
"""Values appended at once that are not gathered with others."""


class Columns:
    """Rows of integers under names; appending is cheap, reading gives numpy arrays.

    Parameters
    ----------
    types : mapping
        Name of each column → its numpy type.
    together : AllColumns, optional
        The record that they are of.

    Examples
    --------
    >>> table = Columns({"time": "int64", "kind": "int8"})
    >>> table.append(5, 1)
    >>> table.arrays()["kind"]
    array([1], dtype=int8)
    """

    def __init__(self, types: Mapping[str, npt.DTypeLike], together: AllColumns | None = None) -> None:
        self.types = {name: np.dtype(of) for name, of in types.items()}
        self._together = together
        self._staged = array("q")
        self._columns = {name: Column(of, together) for name, of in self.types.items()}
        self._rows = 0

    def append(self, *row: int) -> None:
        """Append a row, its values in the order of the columns, or several rows, one after the other."""
        self._staged.extend(row)
        if len(self._staged) >= STAGED_VALUES:
            self._settle()

    def extend(self, rows: Int64Array) -> None:
        """Append rows, an array of shape (rows, columns)."""
        self.extend_columns(**dict(zip(self.types, rows.T, strict=True)))

    def extend_columns(self, **columns: Any) -> None:
        """Append rows that come as one array per column, all of shape (rows,), that nobody changes any more.

        Few wait for others. Many are not copied where they are of the type of their column.
        """
        rows = self._rows_of(columns)
        if rows * len(self.types) < MANY_VALUES:
            table = np.empty((rows, len(self.types)), np.int64)
            for place, name in enumerate(self.types):
                table[:, place] = columns[name]
            self._staged.frombytes(table.tobytes())
            if len(self._staged) >= STAGED_VALUES:
                self._settle()
            return
        self._settle()
        self._add(columns)

    def adopt(self, columns: Mapping[str, Any]) -> None:
        """Append rows in columns of their types that nobody changes any more (:meth:`typed`): they are not copied."""
        self._settle()
        for name, values in columns.items():
            self._columns[name].append(values)
        self._rows += len(next(iter(columns.values())))

    def typed(self, columns: Iterable[Any]) -> dict[str, Any]:
        """Return columns, one after the other, by their names, of their types."""
        each = zip(self.types.items(), columns, strict=True)
        return {name: as_one(_narrowed(name, values, to)) for (name, to), values in each}

    def without(self, name: str) -> Columns:
        """Return an empty table of the same columns but one."""
        return Columns({other: of for other, of in self.types.items() if other != name}, self._together)

    def take(self, other: Columns, **lacks: int) -> None:
        """Append all rows of another table, which gives up its own; the columns that it lacks have one value each."""
        self._settle()
        other._settle()
        for name, column in self._columns.items():
            if name in lacks:
                column.append(constant(self.types[name].type(lacks[name]), other._rows))
            else:
                column.take(other._columns[name])
        self._rows, other._rows = self._rows + other._rows, 0

    def put_in_order(self, name: str) -> None:
        """Put the rows in order of a column, those that are equal there as they came."""
        self._settle()
        keys = self._columns[name].whole()
        if (keys[1:] >= keys[:-1]).all():
            return
        order = in_order(keys)
        for one, column in self._columns.items():
            values = column.whole()
            if not is_one(values):
                self._columns[one] = Column(column.type, self._together)
                for first in range(0, len(order), STAGED_VALUES):
                    self._columns[one].append(values[order[first : first + STAGED_VALUES]])

    def _settle(self) -> None:
        if self._staged:
            rows = np.array(self._staged, np.int64).reshape(-1, len(self.types))
            del self._staged[:]
            self._add(dict(zip(self.types, rows.T, strict=True)))

    def _rows_of(self, columns: Mapping[str, Any]) -> int:
        """Return how many rows columns have that are to be these."""
        if columns.keys() != self.types.keys():
            raise ValueError(f"columns {sorted(columns)} given, {sorted(self.types)} expected")
        lengths = {len(values) for values in columns.values()}
        if len(lengths) != 1:
            raise ValueError(f"columns of {sorted(lengths)} rows, not of one length")
        return lengths.pop()

    def _add(self, columns: Mapping[str, Any]) -> None:
        for name, values in columns.items():
            self._columns[name].append(as_one(_narrowed(name, values, self.types[name])))
        self._rows += len(values)

    def __len__(self) -> int:
        return self._rows + len(self._staged) // len(self.types)

    def arrays(self) -> dict[str, Any]:
        """Return each column as one array, which cannot be written to: the next call returns it again.

        One that is the same in all rows takes the memory of one value.
        """
        self._settle()
        return {name: column.whole() for name, column in self._columns.items()}


def wide(column: Any) -> Int64Array:
    """Return a column as int64: itself where it is, and one value for all rows as one."""
    one = is_one(column)
    found: Int64Array = constant(np.int64(column[0]), len(column)) if one else column.astype(np.int64, copy=False)
    return found


def taken(column: Any, rows: Int64Array) -> Any:
    """Return some rows of a column; one value for all rows stays one."""
    return np.broadcast_to(column[:1], len(rows)) if is_one(column) else column[rows]


def repeated(column: Any, many: Int64Array) -> Any:
    """Return each row of a column so many times; one value for all rows stays one."""
    if is_one(column):
        return np.broadcast_to(column[:1], int(many.sum()))
    return np.repeat(column, many)


def joined(one: Any, other: Any) -> Int64Array:
    """Return rows of two columns one after the other, as int64; one value for all of both stays one."""
    if is_one(one) and is_one(other) and one[0] == other[0]:
        return wide(constant(one[0], len(one) + len(other)))
    return np.concatenate((one, other), dtype=np.int64)


def is_any(column: Any, values: Collection[int]) -> npt.NDArray[np.bool_]:
    """Return which rows have one of a few values, as ``numpy.isin``, which makes the rows int64 first."""
    found = np.zeros(len(column), bool)
    for one in values:
        found |= column == one
    return found


def as_one(values: Any) -> Any:
    """Return a column that is the same in all rows as one value."""
    if len(values) > 1 and values[0] == values[-1] and not is_one(values) and (values == values[0]).all():
        return np.broadcast_to(values[0], values.shape)
    return values


def worded(words: Sequence[str], numbers: Any) -> Any:
    """Return the words that rows name by number: one where all have the same, and each is there once."""
    numbers = as_one(numbers)
    return np.broadcast_to(words[numbers[0]], len(numbers)) if is_one(numbers) else np.array(words, object)[numbers]


def _narrowed(name: str, values: Int64Array, to: np.dtype[Any]) -> Any:
    if is_one(values):
        return constant(_narrowed(name, values[:1].copy(), to)[0], len(values))
    if values.dtype == to and values.flags.c_contiguous:
        return values
    if (
        values.dtype != to
        and len(values)
        and not values.view(f"u{values.itemsize}").max() <= _MOST[to]  # most columns are told by one look: none below 0
        and not _LEAST[to] <= values.min() <= values.max() <= _MOST[to]
    ):
        raise OverflowError(f"column {name!r}: a value does not fit into {to}")
    return np.array(values, to)


class Flat:
    """A growing vector of int64: what comes is gathered, and put behind the rest when it is much."""

    def __init__(self, together: AllColumns | None = None) -> None:
        self._values = array("q")
        self._parts = Column("int64", together)
        self._settled = 0

    def extend(self, values: Int64Array) -> int:
        """Append values that nobody changes any more, and return the position of the first."""
        if len(values) < MANY_VALUES:
            return self.extend_bytes(np.ascontiguousarray(values, np.int64).tobytes())
        at = len(self)
        self._settle()
        self._parts.append(np.ascontiguousarray(values, np.int64))
        self._settled += len(values)
        return at

    def extend_bytes(self, values: bytes) -> int:
        """Append int64 values, as bytes, and return the position of the first."""
        at = len(self)
        self._values.frombytes(values)
        if len(self._values) >= STAGED_VALUES:
            self._settle()
        return at

    def _settle(self) -> None:
        if self._values:
            self._parts.append(np.frombuffer(self._values, np.int64))
            self._settled += len(self._values)
            self._values = array("q")

    def __len__(self) -> int:
        return self._settled + len(self._values)

    def array(self) -> Int64Array:
        """Return all values, which cannot be written to: the next call returns them again, where none was added."""
        self._settle()
        found: Int64Array = self._parts.whole()
        return found
