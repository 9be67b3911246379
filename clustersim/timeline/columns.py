"""Columns that grow: each of its own integer type, without a Python object per row."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array

STAGED_VALUES: Final = 1 << 18
"""Values appended one by one that wait, as int64, to be put into typed columns."""


class Columns:
    """Rows of integers under names; appending is cheap, reading gives numpy arrays.

    Parameters
    ----------
    types : mapping
        Name of each column → its numpy type.

    Examples
    --------
    >>> table = Columns({"time": "int64", "kind": "int8"})
    >>> table.append(5, 1)
    >>> table.arrays()["kind"]
    array([1], dtype=int8)
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self.types = {name: np.dtype(of) for name, of in types.items()}
        self._staged = array("q")
        self._parts: dict[str, list[Any]] = {name: [] for name in types}
        self._rows = 0

    def append(self, *row: int) -> None:
        """Append a row, its values in the order of the columns, or several rows, one after the other."""
        self._staged.extend(row)
        if len(self._staged) >= STAGED_VALUES:
            self._settle()

    def extend(self, rows: Int64Array) -> None:
        """Append rows, an array of shape (rows, columns)."""
        self.extend_columns(**dict(zip(self.types, rows.T, strict=True)))

    def extend_columns(self, **columns: Int64Array) -> None:
        """Append rows that come as one array per column, all of shape (rows,)."""
        self._settle()
        self._add(columns)

    def _settle(self) -> None:
        if self._staged:
            rows = np.array(self._staged, np.int64).reshape(-1, len(self.types))
            del self._staged[:]
            self._add(dict(zip(self.types, rows.T, strict=True)))

    def _add(self, columns: Mapping[str, Int64Array]) -> None:
        if columns.keys() != self.types.keys():
            raise ValueError(f"columns {sorted(columns)} given, {sorted(self.types)} expected")
        lengths = {len(values) for values in columns.values()}
        if len(lengths) != 1:
            raise ValueError(f"columns of {sorted(lengths)} rows, not of one length")
        for name, values in columns.items():
            self._parts[name].append(_narrowed(name, values, self.types[name]))
        self._rows += lengths.pop()

    def __len__(self) -> int:
        return self._rows + len(self._staged) // len(self.types)

    def arrays(self) -> dict[str, Any]:
        """Return each column as one array, which cannot be written to: the next call returns it again."""
        self._settle()
        found = {}
        for name, parts in self._parts.items():
            whole = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.types[name]), *parts])
            whole.flags.writeable = False
            self._parts[name] = [whole]
            found[name] = whole
        return found


def _narrowed(name: str, values: Int64Array, to: np.dtype[Any]) -> Any:
    narrow = np.array(values, to)
    if narrow.dtype.itemsize < np.asarray(values).dtype.itemsize and not np.array_equal(narrow, values):
        raise OverflowError(f"column {name!r}: a value does not fit into {to}")
    return narrow


class Flat:
    """A growing vector of int64."""

    def __init__(self) -> None:
        self._values = array("q")

    def extend(self, values: Int64Array) -> int:
        """Append values and return the position of the first."""
        return self.extend_bytes(np.ascontiguousarray(values, np.int64).tobytes())

    def extend_bytes(self, values: bytes) -> int:
        """Append int64 values, as bytes, and return the position of the first."""
        at = len(self._values)
        self._values.frombytes(values)
        return at

    def __len__(self) -> int:
        return len(self._values)

    def array(self) -> Int64Array:
        """Return all values, without a copy; nothing can be appended while somebody holds on to them."""
        found = np.frombuffer(self._values, np.int64) if self._values else np.empty(0, np.int64)
        found.flags.writeable = False
        return found
