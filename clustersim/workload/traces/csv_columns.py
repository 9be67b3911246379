"""Named columns of a CSV trace, in any order; other columns may stand between them.

Cells are parted by commas, semicolons or tabs: by what stands most often in the header.

The good case converts whole columns. Only when a column does not convert is it searched for the wrong cells.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem, nearest, rename
from clustersim.values import dataclass
from clustersim.workload.traces.cells import ParseCells
from clustersim.workload.traces.text import MAX_PROBLEMS, TraceText, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvColumn:
    """A column that is wanted: its name in the header, and the parser of its cells."""

    name: str
    parse: ParseCells


Fault = tuple[int, int, str]
"""Row (from 0, without the header), column (from 0, or -1 for the row as such), message."""


def parted_by(first_line: str) -> str:
    """Return what stands between the cells of a file with this header."""
    return max(",;\t", key=first_line.count)


def header_names(first_line: str) -> list[str]:
    """Return the names in a header line, without blanks around them."""
    return [name.strip() for name in next(csv.reader([first_line], delimiter=parted_by(first_line)), [])]


def missing_column(
    file: TraceText, wanted: str, header: Sequence[str], spare: Sequence[str] | None = None, *, named: bool = False
) -> Problem:
    """Return the problem that no column has the ``wanted`` name, with the nearest of those that are to ``spare``.

    Where it can be ``named``, another name is wanted, else the column is to be renamed.
    """
    by_lower = {name.lower(): name for name in (header if spare is None else spare)}
    guess = nearest(wanted.lower(), list(by_lower))
    meant = None if guess is None else by_lower[guess]
    hint = f"; did you mean {meant!r}?" if meant else f"; the header has: {', '.join(header)}"
    if meant and not named:
        hint = rename(wanted, meant)
    return file.problem(f"no column {wanted!r}{hint}", line=1)


def repeated_columns(file: TraceText, header: Sequence[str]) -> list[Problem]:
    """Return a problem for each name that stands twice in the header."""
    twice = [name for i, name in enumerate(header) if name in header[:i]]
    return [file.problem(f"column {name!r} stands twice in the header", line=1) for name in twice]


def read_columns(file: TraceText, columns: Sequence[CsvColumn]) -> list[Int64Array]:
    """Return the wanted columns of all rows.

    Raises
    ------
    InputError
        When the header or the body is wrong; the cells that are wrong are named by line and column.
    """
    header = header_names(file.first_line)
    problems = repeated_columns(file, header)
    problems += [missing_column(file, want.name, header) for want in columns if want.name not in header]
    if problems:
        raise InputError(problems)
    places = [header.index(want.name) for want in columns]
    picked, faults = _picked_rows(file, places, len(header))
    uneven = {row for row, _, _ in faults}
    arrays: list[Int64Array] = []
    for k, want in enumerate(columns):
        cells = [row[k] for row in picked]
        try:
            arrays.append(want.parse(cells))
        except ValueError:
            rows = [i for i in range(len(picked) + len(uneven)) if i not in uneven]
            for at, expected in _wrong_cells(want.parse, cells, 0):
                message = f"found {shorten(cells[at])!r}; expected {expected}"
                faults.append((rows[at], places[k], message))
    if faults:
        raise _located(file, header, sorted(faults))
    return arrays


def _reader(file: TraceText, text: str) -> Any:
    return csv.reader(io.StringIO(text, newline=""), delimiter=parted_by(file.first_line), strict=True)


def first_cell(file: TraceText, name: str) -> str:
    """Return the first cell of a column; empty where there is none."""
    at = header_names(file.first_line).index(name)
    with suppress(csv.Error):
        for row in islice(_reader(file, file.text), 1, 2):
            return str(row[at]) if at < len(row) else ""
    return ""


def _picked_rows(file: TraceText, places: Sequence[int], width: int) -> tuple[list[tuple[str, ...]], list[Fault]]:
    """Return the wanted cells of each row as wide as the header, and a fault for each other row."""
    picked: list[tuple[str, ...]] = []
    faults: list[Fault] = []
    pick = itemgetter(*places)
    reader = _reader(file, file.text.rstrip("\r\n"))
    try:
        next(reader)
        if reader.line_num != 1:
            raise InputError(file.problem("the header goes on after its line; expected one line", line=1))
        for row in reader:
            if len(row) == width:
                picked.append(pick(row))
            else:
                found = f"cells: {len(row)}" if row else "an empty line"
                place = min(len(row), width) if row else -1
                faults.append((len(picked) + len(faults), place, f"found {found}; expected cells: {width}"))
    except csv.Error as error:
        raise InputError(file.problem(f"not a CSV line: {error}", line=reader.line_num)) from None
    if not picked and not faults:
        raise InputError(file.problem("a header but no requests; expected one line per request", line=2))
    return picked, faults


def _wrong_cells(parse: ParseCells, cells: Sequence[str], start: int) -> Iterator[tuple[int, str]]:
    """Halve a column that does not parse until single cells remain: few wrong cells cost few parses."""
    try:
        parse(cells)
    except ValueError as error:
        if len(cells) == 1:
            yield start, str(error)
            return
        middle = len(cells) // 2
        yield from _wrong_cells(parse, cells[:middle], start)
        yield from _wrong_cells(parse, cells[middle:], start + middle)


def empty_cells(file: TraceText, columns: Sequence[tuple[str, npt.NDArray[np.bool_]]], expected: str) -> InputError:
    """Return the error for cells that are empty: the rows of each column in which they are."""
    header = header_names(file.first_line)
    faults = [(int(row), header.index(name), f"found ''; expected {expected}")
              for name, rows in columns for row in np.flatnonzero(rows)]  # fmt: skip
    return _located(file, header, sorted(faults))


def _located(file: TraceText, header: Sequence[str], faults: Sequence[Fault]) -> InputError:
    """Return the error for these faults; the file is read again for the lines that its rows stand on."""
    shown = faults[:MAX_PROBLEMS]
    reader = _reader(file, file.text)
    next(reader)
    lines = [(reader.line_num, row) for row in islice(reader, shown[-1][0] + 1)]
    quoted = '"' in file.text
    problems = []
    for row_index, place, message in shown:
        line, row = lines[row_index]
        column = None if quoted or place < 0 else 1 + sum(len(cell) + 1 for cell in row[:place]) - (place == len(row))
        path = header[place] if 0 <= place < len(header) else ""
        problems.append(Problem(message=message, file=file.name, line=line, column=column, path=path))
    return file.error(problems, len(faults))
