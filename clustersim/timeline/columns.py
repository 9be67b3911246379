"""Columns that grow: int64 values in flat arrays, 8 bytes each, without a Python object per row."""

from __future__ import annotations

from array import array

import numpy as np

from clustersim.clock import Int64Array


class Columns:
    """Rows of int64 under names; appending is cheap, reading gives numpy arrays.

    Examples
    --------
    >>> table = Columns("time", "kind")
    >>> table.append(5, 1)
    >>> table.arrays()["time"]
    array([5])
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        self._flat = array("q")

    def append(self, *row: int) -> None:
        """Append one row."""
        self._flat.extend(row)

    def extend(self, rows: Int64Array) -> None:
        """Append rows, an int64 array of shape (rows, columns)."""
        self._flat.frombytes(np.ascontiguousarray(rows, np.int64).tobytes())

    def __len__(self) -> int:
        return len(self._flat) // len(self.names)

    def table(self) -> Int64Array:
        """Return a copy of all rows, of shape (rows, columns)."""
        return np.array(self._flat, np.int64).reshape(-1, len(self.names))

    def arrays(self) -> dict[str, Int64Array]:
        """Return each column as an array of its own."""
        return {name: column.copy() for name, column in zip(self.names, self.table().T, strict=True)}


class Flat:
    """A growing vector of int64."""

    def __init__(self) -> None:
        self._values = array("q")

    def extend(self, values: Int64Array) -> int:
        """Append values and return the position of the first."""
        at = len(self._values)
        self._values.frombytes(np.ascontiguousarray(values, np.int64).tobytes())
        return at

    def __len__(self) -> int:
        return len(self._values)

    def array(self) -> Int64Array:
        """Return a copy of all values."""
        return np.array(self._values, np.int64)
