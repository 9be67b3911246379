"""One table from elsewhere, CSV or Parquet: which table it is, and its cells as numbers or text.

Which table a file is follows from its columns. Every value is looked at: what no record can be is named with its file,
line (of Parquet: row) and column.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim import inputs
from clustersim.errors import InputError, Problem
from clustersim.simulation.foreign.cells import numbers, text_of
from clustersim.units import plural
from clustersim.values import dataclass

NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "spans": ("start_ns", "end_ns", "rank"),
    "flows": ("link", "start_ns", "end_ns", "rate", "capacity"),
    "facts": ("time_ns", "kind", "request"),
    "requests": ("request", "prompt_tokens", "output_tokens"),
    "routes": ("step", "layer", "request", "token", "expert"),
    "held": ("block", "request", "taken_ns", "freed_ns"),
    "chunks": ("step", "request", "start", "count"),
    "decodes": ("step", "request"),
    "steps": ("step", "start_ns", "end_ns"),
}
"""Table → the columns that it can't do without; the first table that a file has all columns of is what it is."""
OPTIONAL: Final[Mapping[str, Mapping[str, int]]] = {
    "spans": {"stream": 0, "layer": -1, "step": 0, "group": -1, "bytes": -1, "cost_ns": -1},
    "flows": {},
    "facts": {"replica": 0, "used": -1, "value": 0},
    "requests": {},
    "routes": {"replica": 0, "selected": -1},
    "held": {"replica": 0, "content": -1},
    "chunks": {"replica": 0, "sampled": 0},
    "decodes": {"replica": 0, "slot": 0},
    "steps": {"replica": 0, "slot": 0},
}
"""Table → further columns of whole numbers and what they are where they lack."""
TOLD: Final[Mapping[str, tuple[str, ...]]] = {
    "steps": ("kind", "prefill_tokens", "decode_tokens", "batch_requests", "context_tokens", "kv_blocks_used"),
    "requests": ("arrived_ns", "first_token_ns", "finished_ns"),
}
"""Table → columns of numbers that rules look at only where they are there."""
TEXT: Final[Mapping[str, tuple[str, ...]]] = {
    "spans": ("name", "op", "module", "after", "id"),
    "facts": ("reason",),
}
"""Table → columns of text that it may have."""
UNITS: Final = {"s": 9, "ms": 6, "us": 3, "µs": 3, "sec": 9, "seconds": 9}
"""What behind the name of a column says in which unit it is → the power of ten that makes it nanoseconds."""
LASTS: Final = {
    "ttft": ("arrived_ns", "first_token_ns"), "e2e": ("arrived_ns", "finished_ns"),
    "latency": ("arrived_ns", "finished_ns"), "duration": ("start_ns", "end_ns"), "dur": ("start_ns", "end_ns"),
}  # fmt: skip
"""What may be told as a time that passes → the instants between which it does."""
RICHER: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "decodes": {"chunks": ("start", "count", "sampled"), "routes": ("layer", "token", "expert")},
    "steps": {"spans": ("stream", "layer", "group", "module", "op", "after")},
}
"""Table → tables that look like it where a column lacks, and the columns that tell."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ForeignTable:
    """A table that was read.

    Parameters
    ----------
    path : Path
    name : str
        Which table it is.
    columns : dict of str to array
        What was recorded, and defaults for whole numbers that were not.
    recorded : frozenset of str
        Columns that the file has.
    lines : list of int or None
        Line of each row; None in Parquet.
    """

    path: Path
    name: str
    columns: dict[str, Any]
    recorded: frozenset[str]
    lines: Sequence[int] | None

    def __len__(self) -> int:
        return len(self.columns[NEEDED[self.name][0]])

    def problem(self, row: int, column: str, message: str) -> Problem:
        """Return what is wrong with a cell."""
        return _problem(self.path, self.lines, row, column, message)


def read_foreign(path: Path) -> ForeignTable:
    """Read a file.

    Parameters
    ----------
    path : Path
        Parquet where its name ends so, else CSV with the names of its columns in the first line.

    Raises
    ------
    InputError
        If it is no table, or with the first bad cell of every column.
    """
    own = _run_of(path)
    if own is not None:
        message = f"is a file of a run of clustersim: audit its run directory, clustersim audit {own}"
        raise InputError(Problem(file=str(path), message=message))
    raw, lines = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    _refuse_units(path, list(raw))
    name = _table_of(path, list(raw))
    count = len(raw[NEEDED[name][0]])
    columns: dict[str, Any] = {column: np.full(count, value) for column, value in OPTIONAL[name].items()}
    whole = (*NEEDED[name], *OPTIONAL[name], *TOLD.get(name, ()))
    problems = []
    for column in whole:
        if column in raw:
            values, bad = numbers(name, column, raw[column])
            columns[column] = values
            if bad is not None:
                problems.append(_problem(path, lines, bad[0], column, bad[1]))
    if problems:
        raise InputError(problems)
    for column in TEXT.get(name, ()):
        if column in raw:
            columns[column] = np.array([text_of(value) for value in raw[column]], object)
    table = ForeignTable(path=path, name=name, columns=columns, recorded=frozenset(raw), lines=lines)
    problems = list(_backwards(table))
    if problems:
        raise InputError(problems)
    return table


def _run_of(path: Path) -> Path | None:
    """Return the run directory that a file belongs to."""
    folder = path.parent.parent if path.parent.name == "timeline" else path.parent
    own = (folder / "summary.json").is_file() and (folder / "timeline").is_dir()
    return folder if own else None


def _csv(path: Path) -> tuple[dict[str, Any], list[int]]:
    rows: list[list[str]] = []
    lines: list[int] = []
    text = inputs.read_text(path, most=inputs.TEXT_BYTES)
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(Problem(file=str(path), message=f"cannot be read as CSV: {error}")) from None
    head = [name.strip() for name in rows[0]] if rows else []
    _refuse_other(path, head)
    _refuse_twins(path, head)
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(head):
            message = f"found {plural(len(row), 'cell')}; expected {len(head)}, as in the first line"
            raise InputError(Problem(file=str(path), line=line, message=message))
    return {name: [row[place].strip() for row in rows[1:]] for place, name in enumerate(head)}, lines[1:]


def _parquet(path: Path) -> tuple[dict[str, Any], None]:
    import pyarrow as pa

    table = inputs.read_parquet(path)
    _refuse_other(path, table.column_names)
    _refuse_twins(path, table.column_names)
    found: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        plain = pa.types.is_integer(column.type) and not column.null_count
        found[name] = column.to_numpy() if plain else column.to_pylist()
    return found, None


def _refuse_other(path: Path, names: Sequence[str]) -> None:
    """Refuse what is no table of ours, of which nothing is quoted."""
    if not inputs.recognised(names, {column for needed in NEEDED.values() for column in needed}):
        message = "is no table: it has none of the columns of spans, facts, steps and the others that audit reads"
        if path.suffix.lower() in (".json", ".graphml", ".dot"):
            message += "; step graphs are for `clustersim check`"
        raise InputError(Problem(file=str(path), message=message))


def _refuse_twins(path: Path, names: Sequence[str]) -> None:
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise InputError(Problem(file=str(path), path=twins[0], message="found twice; expected each column once"))


def _refuse_units(path: Path, names: Sequence[str]) -> None:
    """Refuse times in other units, and times that pass, in place of the instants that rules read.

    Beside those instants they are somebody's own figures.
    """
    known = {column for of in (NEEDED, TOLD, OPTIONAL) for columns in of.values() for column in columns}
    problems = []
    for name in names:
        stem, _, unit = name.rpartition("_")
        power, stem = (UNITS[unit], stem) if unit in UNITS else (0, stem if unit == "ns" else name)
        times = f" × 10^{power}" if power else ""
        if power and f"{stem}_ns" in known:
            wanted, how = [f"{stem}_ns"], f"{stem}_ns, in whole nanoseconds ({name}{times})"
        elif stem in LASTS:
            first, last = LASTS[stem]
            wanted = [first, last]
            how = f"the instants {first} and {last}, in whole nanoseconds ({last} = {first} + {name}{times})"
        else:
            continue
        if not set(wanted) <= set(names):
            problems.append(Problem(file=str(path), line=1, path=name, message=f"is read by no rule; expected {how}"))
    if problems:
        raise InputError(problems)


def _table_of(path: Path, found: list[str]) -> str:
    """Return which table a file with these columns is."""
    name = next((name for name, needed in NEEDED.items() if set(needed) <= set(found)), None)
    if "first_step" in found or (name == "steps" and "count" in found):
        message = "has rows for several steps, as the files of a run of clustersim have; audit its run directory"
        raise InputError(Problem(file=str(path), message=message))
    if name is None:
        message = f"columns {', '.join(found) or '(none)'} are those of no table; expected all of " + " or ".join(
            f"{', '.join(needed)} ({table})" for table, needed in NEEDED.items()
        )
        most = max(NEEDED, key=lambda table: len(set(NEEDED[table]) & set(found)) / len(NEEDED[table]))
        if set(NEEDED[most]) & set(found):
            message += f"; nearest: {most}, which lacks {_lacking(most, found)}"
        raise InputError(Problem(file=str(path), message=message))
    for other, telling in RICHER.get(name, {}).items():
        odd = [column for column in telling if column in found]
        if odd:
            message = f"{', '.join(odd)} found, which {name} do not have; {other} also need {_lacking(other, found)}"
            raise InputError(Problem(file=str(path), message=message))
    return name


def _lacking(table: str, found: Sequence[str]) -> str:
    return ", ".join(column for column in NEEDED[table] if column not in found)


def _problem(path: Path, lines: Sequence[int] | None, row: int, column: str, message: str) -> Problem:
    if lines is None:
        return Problem(file=str(path), path=column, message=f"row {row + 1}: {message}")
    return Problem(file=str(path), line=lines[row], path=column, message=message)


def _backwards(table: ForeignTable) -> Iterator[Problem]:
    """Yield what ends before it starts."""
    for first, last in (
        ("start_ns", "end_ns"), ("taken_ns", "freed_ns"), ("arrived_ns", "first_token_ns"),
        ("first_token_ns", "finished_ns"), ("arrived_ns", "finished_ns"),
    ):  # fmt: skip
        if {first, last} <= set(table.columns):
            starts, ends = table.columns[first], table.columns[last]
            for row in np.flatnonzero((ends < starts) & (ends >= 0))[:1].tolist():
                yield table.problem(row, last, f"found {ends[row]}, which is before {first} {starts[row]}")
