"""Parquet tables as named numpy arrays: written, read as they are, and read as what they must be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from clustersim import inputs
from clustersim.errors import InputError, Problem
from clustersim.memory import let_go
from clustersim.timeline.columns import is_one

GROUP_ROWS: Final = 1 << 20
"""Rows of a row group: what readers of Parquet take at a time, and pyarrow writes unless it is told otherwise."""
_WANTED: Final = "expected what `clustersim run` wrote"


class Words:
    """A column of text by number, which it is only where it is looked at.

    Parameters
    ----------
    words : array of str
    numbers : integer array of shape (rows,)
    """

    def __init__(self, words: Any, numbers: Any) -> None:
        self._words, self._numbers = words, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, rows: Any) -> Any:
        return self._words[self._numbers[rows]]


def arrow_table(columns: Any) -> Any:
    """Return named arrays as an Arrow table; an array of objects is a column of text, null where it holds None."""
    import pyarrow as pa

    def column(values: Any) -> Any:  # the type is that of the column, not that of what happens to be in it
        if not values.dtype.hasobject:
            return pa.array(values)
        if is_one(values):
            return pa.repeat(pa.scalar(values[0], pa.string()), len(values))
        return pa.array(values, pa.string())

    return pa.table({name: column(values[:]) for name, values in columns.items()})


def write_table(path: Path, columns: Any) -> None:
    """Write named arrays as Parquet (zstd), a row group after the other; see :func:`arrow_table`.

    What is worked out of columns for the file, such as the text of numbers (:class:`Words`), or the values of one that
    is the same in all rows, is there for one row group at a time.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_table({name: values[:0] for name, values in columns.items()}).schema
    integers = [one.name for one in schema if pa.types.is_integer(one.type)]
    with pq.ParquetWriter(
        path, schema, compression="zstd", use_dictionary=[name for name in columns if name not in integers],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED") or None,
    ) as writer:  # fmt: skip
        rows = max((len(values) for values in columns.values()), default=0)
        for first in range(0, max(rows, 1), GROUP_ROWS):
            group = {name: values[first : first + GROUP_ROWS] for name, values in columns.items()}
            writer.write_table(arrow_table(group))
            if rows > GROUP_ROWS:
                let_go()


def read_columns(path: Path, types: Mapping[str, str], nullable: Collection[str] = ()) -> dict[str, Any]:
    """Read a Parquet file that must have exactly these columns.

    Parameters
    ----------
    path : Path
    types : mapping
        Name of each column → its type, as Parquet calls it: ``int64``, ``string``.
    nullable : collection of str
        Columns that may hold nulls, which become NaN in numbers and None in text.

    Raises
    ------
    InputError
        When the file can't be read, or has other columns, types or nulls; every one of them is named.
    """
    table = inputs.read_parquet(path, missing=f"is missing; {_WANTED}", wanted=_WANTED, least=inputs.RECORDED_BYTES)
    problems = [Problem(file=str(path), path=name, message=what) for name, what in _faults(table, types, nullable)]
    if problems:
        raise InputError(problems)
    return {name: table.column(name).to_numpy() for name in types}


def _faults(table: Any, types: Mapping[str, str], nullable: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield column, and what was found there and what was expected."""
    import pyarrow.compute as pc

    names = table.column_names
    for name in dict.fromkeys(names):
        if name not in types:
            yield name, f"found a column of this name; expected {', '.join(types)} only"
        elif names.count(name) > 1:
            yield name, f"found {names.count(name)} columns of this name; expected one"
    for name, wanted in types.items():
        if name not in names:
            yield name, f"found no such column; expected one of {wanted}"
        elif names.count(name) == 1:
            column = table.column(name)
            if str(column.type) != wanted:
                yield name, f"found a column of {column.type}; expected {wanted}"
            elif column.null_count and name not in nullable:
                row = pc.index(pc.is_null(column), True).as_py() + 1
                yield name, f"found null in row {row}; expected a value in every row"
