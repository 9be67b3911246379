"""Measured durations of operators: plain arrays, and their reader.

A file has one row per measurement and these columns (CSV with a header line, or Parquet):

- ``op``: an operator of :mod:`clustersim.cost.protocol`;
- ``seconds``: its measured device time;
- one column per shape key that an operator of the file needs; blank where an operator does not have that key;
- ``dtype`` (optional): the format in which weights are multiplied, or that of the K/V cache; blank: any;
- ``device`` (optional): the device that was measured, by its name in ``topologies/devices``; blank: any.

::

    op,dtype,m,n,k,bytes,seconds
    gemm,bf16,16,4096,4096,,15.5e-6
    memory,,,,,33554432,14.2e-6
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from clustersim import inputs
from clustersim.clock import FloatArray
from clustersim.cost.precision import DTYPE_BYTES
from clustersim.cost.protocol import OPTIONAL_KEYS, SHAPE_KEYS
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.values import dataclass

_KEYS: Final = tuple(
    dict.fromkeys(
        [key for keys in SHAPE_KEYS.values() for key in keys] + [key for keys in OPTIONAL_KEYS.values() for key in keys]
    )
)
_COLUMNS: Final = ("op", "dtype", "device", "seconds", *_KEYS)
_MOST_PROBLEMS: Final = 20
LONGEST_S: Final = 86_400.0
"""Of one operator: a day, as of what is simulated."""
_FRACTIONS: Final = ("seconds", "rows", "active", "bytes")
"""What need not be whole: means over experts, and sizes with scales of blocks."""
MOST: Final = 2.0**53
"""Of a size: floats are whole up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoints:
    """Measurements of one operator at one number format.

    Parameters
    ----------
    op : str
        The operator.
    dtype : str or None
        Format in which weights are multiplied, or that of the K/V cache; None: not said.
    shape : Mapping of str to ndarray
        One array per shape key, each of the length of ``seconds``.
    seconds : ndarray
        Measured device time.
    device : str or None
        The device that was measured; None: not said.
    lines : ndarray or None
        The line of the file that each is from, of Parquet its row.
    """

    op: str
    dtype: str | None
    shape: Mapping[str, FloatArray]
    seconds: FloatArray
    device: str | None = None
    lines: FloatArray | None = None

    def where(self, chosen: FloatArray) -> MeasuredPoints:
        """Return the points for which the boolean array ``chosen`` is true."""
        shape = {key: values[chosen] for key, values in self.shape.items()}
        lines = None if self.lines is None else self.lines[chosen]
        return replace(self, shape=shape, seconds=self.seconds[chosen], lines=lines)


def read_points(path: Path) -> tuple[MeasuredPoints, ...]:
    """Read a file of measurements, by its suffix ``.csv`` or ``.parquet``.

    Returns
    -------
    tuple of MeasuredPoints
        One per operator, format and device, in the order of their first row.

    Raises
    ------
    InputError
        When the file cannot be read, or with the line of every row that cannot be used (the first twenty).
    """
    if path.suffix not in {".csv", ".parquet"}:
        raise InputError(Problem(message="expected a .csv or a .parquet file", file=str(path)))
    try:
        header, rows = _csv_rows(path) if path.suffix == ".csv" else _parquet_rows(path)
        return _gather(path, header, rows)
    except csv.Error as error:
        raise InputError(Problem(message=f"cannot be read: {error}", file=str(path))) from error


def _csv_rows(path: Path) -> tuple[list[str], Iterator[tuple[int, Mapping[str, object]]]]:
    lines = inputs.read_text(path, most=inputs.TEXT_BYTES).splitlines()
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]

    def rows() -> Iterator[tuple[int, Mapping[str, object]]]:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                found: dict[str, object] = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
                yield (
                    reader.line_num,
                    found | ({"": cells[len(header) :]} if len(cells) > len(header) else {}),
                )

    return header, rows()


def _parquet_rows(path: Path) -> tuple[list[str], Iterator[tuple[int, Mapping[str, object]]]]:
    table = inputs.read_parquet(path, wanted="expected measurements")
    return list(table.column_names), ((row, values) for row, values in enumerate(table.to_pylist(), start=1))


def _gather(
    path: Path, header: list[str], rows: Iterable[tuple[int, Mapping[str, object]]]
) -> tuple[MeasuredPoints, ...]:
    problems = _header_problems(path, header)
    found: dict[_Key, list[tuple[float, ...]]] = {}
    missing = set(_KEYS) - set(header)
    if not problems:
        for line, row in rows:
            mistakes, key, values = _row(row)
            absent = {key: f"has no column {key!r}, which {row['op']!r} needs" for key, _ in mistakes if key in missing}
            missing -= absent.keys()  # told once
            problems += [Problem(message=message, file=str(path), line=1) for message in absent.values()]
            problems += [problem_at(path, line, key, told) for key, told in mistakes if not key or key in header]
            if len(problems) >= _MOST_PROBLEMS:
                break
            if not mistakes:
                found.setdefault(key, []).append((*values, line))
        if not found and not problems:
            problems.append(Problem(message="has no measurements", file=str(path)))
    if problems:
        raise InputError(problems)
    return tuple(_points(*key, values) for key, values in found.items())


def problem_at(path: Path, line: int, key: str, message: str) -> Problem:
    """Return a problem with a cell of a file: of CSV its line and column, of Parquet its row."""
    problem = Problem(message=message, file=str(path), line=line, path=key)
    if path.suffix != ".csv" or not key:
        return problem
    lines = inputs.read_text(path, most=inputs.TEXT_BYTES).splitlines()
    header = [name.strip() for name in next(csv.reader(lines[:1]), [])]
    cells = lines[line - 1].split(",")
    if key not in header or header.index(key) >= len(cells) or '"' in lines[line - 1]:
        return problem
    return replace(problem, column=1 + sum(len(cell) + 1 for cell in cells[: header.index(key)]))


def _header_problems(path: Path, header: list[str]) -> list[Problem]:
    if header and not inputs.recognised(header, _COLUMNS):
        message = f"is no table of measurements: it has none of the columns {', '.join(_COLUMNS[:3])} …"
        return [Problem(message=message, file=str(path))]
    if {"latency", "framework"} <= set(header):
        message = (
            "is a table of ai-dynamo/aiconfigurator as it was published; `clustersim calibrate TOPOLOGY FILE` reads it "
            "under its own name (gemm_perf.parquet and the like), and prints kernels for the device's file"
        )
        return [Problem(message=message, file=str(path))]
    unknown = [f"unknown column {name!r}{did_you_mean(name, _COLUMNS)}" for name in header if name not in _COLUMNS]
    missing = [f"has no column {name!r}" for name in ("op", "seconds") if name not in header]
    twice = [f"has the column {name!r} twice" for name in dict.fromkeys(header) if header.count(name) > 1]
    return [Problem(message=message, file=str(path), line=1) for message in (*unknown, *missing, *twice)]


_Key = tuple[str, str | None, str | None]
"""Operator, format and device."""


def _row(row: Mapping[str, object]) -> tuple[list[tuple[str, str]], _Key, tuple[float, ...]]:
    """Return what is wrong with a row by column, the operator, format and device, and its shape and seconds."""
    op, dtype, device = str(row.get("op") or ""), str(row.get("dtype") or "") or None, str(row.get("device") or "")
    if op not in SHAPE_KEYS:
        return [("op", f"unknown operator {op!r}{did_you_mean(op, list(SHAPE_KEYS))}")], ("", None, None), ()
    mistakes = [("", f"has more cells than the header: {row['']!r}")] if "" in row else []
    if dtype is not None and dtype not in DTYPE_BYTES:
        mistakes.append(("dtype", f"unknown number format {dtype!r}{did_you_mean(dtype, list(DTYPE_BYTES))}"))
    optional = OPTIONAL_KEYS.get(op, {})
    values = []
    for key in (*SHAPE_KEYS[op], *optional, "seconds"):
        cell = row.get(key)
        blank = cell is None or cell == ""
        number = optional[key] if blank and key in optional else inputs.number_of(cell)
        most = LONGEST_S if key == "seconds" else MOST
        if number is not None and most < number < math.inf:
            mistakes.append((key, f"expected a number up to {most:g}, but found {cell!r}"))
        elif number is None or not math.isfinite(number) or (number <= 0.0 and key not in optional):
            mistakes.append((key, f"expected a positive number, but found {'nothing' if blank else repr(cell)}"))
        elif key not in _FRACTIONS and number != int(number):
            mistakes.append((key, f"expected a whole number, but found {cell!r}"))
        else:
            values.append(number)
    given = [key for key in _KEYS if row.get(key) not in {None, ""}]
    mistakes += [(key, f"operator {op!r} has no such shape key") for key in given if key not in _keys(op)]
    return mistakes, (op, dtype, device or None), tuple(values)


def _keys(op: str) -> tuple[str, ...]:
    return (*SHAPE_KEYS[op], *OPTIONAL_KEYS.get(op, {}))


def _points(op: str, dtype: str | None, device: str | None, values: list[tuple[float, ...]]) -> MeasuredPoints:
    columns = np.array(values, dtype=np.float64).T
    *sizes, seconds, lines = columns
    shape = dict(zip(_keys(op), sizes, strict=True))
    return MeasuredPoints(op=op, dtype=dtype, device=device, shape=shape, seconds=seconds, lines=lines)
