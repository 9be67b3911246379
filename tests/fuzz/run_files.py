"""A run directory with one thing wrong in one file: every column of its tables and every value of its JSON, in turn."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

HUGE: Final = (1 << 31) - 1, 1 << 40, (1 << 63) - 1
KINDS: Final = ("int8", "uint64", "float64", "string", "bool", "list<int64>", "dictionary", "timestamp", "nested")
TEXTS: Final = ("", "finished", "x" * 70_000, "\x00", "💥")
VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 1 << 31, 1 << 63, 10**400, -(10**30), 0.5, 1e308, float("nan"), float("inf"), "",
    "x" * 70_000, "\x00", [], [[]], [None], {}, {"name": {"a": []}}, [0] * 5000,
)  # fmt: skip
"""What stands in a value's place in JSON, and so does it nested very deep."""
DEEP: Final = 5000


@dataclass(frozen=True, slots=True)
class Breach:
    """One thing to do to a file: ``apply`` writes it anew, with a place and what is wrong there."""

    file: str
    place: str
    what: str
    apply: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.file}, {self.place}: {self.what}"


def breaches(run: Path, draw: random.Random) -> Iterator[Breach]:
    """Yield every kind of breach of every field of a run directory, each at a row that is drawn.

    Parameters
    ----------
    run : Path
        A whole run directory.
    draw : Random
    """
    for path in sorted(run.rglob("*.parquet")):
        yield from _of_table(path, str(path.relative_to(run)), draw)
    for path in sorted(run.rglob("*.json")):
        yield from _of_document(path, str(path.relative_to(run)))


def _of_table(path: Path, file: str, draw: random.Random) -> Iterator[Breach]:
    table = pq.read_table(path)
    size, rows = path.stat().st_size, table.num_rows

    def whole(what: str, change: Callable[[Any], Any]) -> Breach:
        return Breach(file, "all", what, lambda path: pq.write_table(change(pq.read_table(path)), path))

    for share in (0.0, 0.3, 0.9, 1.0):
        yield Breach(file, "all", f"cut at {share}", _cut(int(share * size) - (share == 1.0)))
    yield whole("no rows", lambda table: table.slice(0, 0))
    yield whole("all rows twice", lambda table: pa.concat_tables([table, table]))
    yield whole("one row less", lambda table: table.slice(1))
    if rows:
        yield whole("a row twice", lambda table: pa.concat_tables([table, table.slice(draw.randrange(rows), 1)]))
        yield whole("last row first", lambda table: table.take([rows - 1, *range(rows - 1)]))
        yield whole("backwards", lambda table: table.take(list(range(rows - 1, -1, -1))))
    for column in table.column_names:
        yield Breach(file, column, "missing", _put(column, lambda _: None))
        for kind in KINDS:
            yield Breach(file, column, kind, _put(column, lambda values, kind=kind: _as(kind, values)))
        if rows:
            row, other = draw.randrange(rows), draw.randrange(rows)
            for value in _instead(table.column(column)[row].as_py()):
                yield Breach(file, column, f"{value!r:.30} in row {row}", _put(column, _with(row, value)))
            yield Breach(file, column, f"rows {row} and {other} exchanged", _put(column, _exchanged(row, other)))
            yield Breach(file, column, "nulls", _put(column, lambda values: pa.nulls(len(values), values.type)))


def _instead(own: Any) -> Iterator[Any]:
    if isinstance(own, str):
        yield from TEXTS
    else:
        yield from (None, -1, -(1 << 62), *HUGE, float("nan"), float("inf"))
        if isinstance(own, int):
            yield from (own + 1, own - 1, 2 * own + 7)


def _cut(size: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:size]) and None


def _put(column: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Return what writes a table with another column, or without it."""

    def apply(path: Path) -> None:
        table = pq.read_table(path)
        at = table.column_names.index(column)
        values = change(table.column(column).combine_chunks())
        table = table.remove_column(at) if values is None else table.set_column(at, column, values)
        pq.write_table(table, path)

    return apply


def _with(row: int, value: Any) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        cells = values.to_pylist()
        cells[row] = value
        for kind in (values.type, None):  # in its own type, where that can hold it
            try:
                return pa.array(cells, kind, from_pandas=False)
            except (pa.ArrowException, OverflowError, TypeError):
                continue
        return pa.array([str(cell) for cell in cells])

    return change


def _exchanged(row: int, other: int) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        places = list(range(len(values)))
        places[row], places[other] = other, row
        return values.take(places)

    return change


def _as(kind: str, values: Any) -> Any:
    """Return a column of another type with the same values, as far as that can be."""
    cells = values.to_pylist()
    numbers = [cell if isinstance(cell, int | float) and math.isfinite(cell) else 0 for cell in cells]
    match kind:
        case "string":
            return pa.array([str(cell) for cell in cells])
        case "bool":
            return pa.array([bool(cell) for cell in cells])
        case "list<int64>":
            return pa.array([[cell, 1] for cell in numbers])
        case "dictionary":
            return pa.array([str(cell) for cell in cells]).dictionary_encode()
        case "timestamp":
            return pa.array([int(cell) for cell in numbers], pa.timestamp("ns"))
        case "nested":
            return pa.array([{"a": {"b": cell}} for cell in numbers])
        case "int8":
            return pa.array([int(cell) % 100 for cell in numbers], pa.int8())
        case "uint64":
            return pa.array([abs(int(cell)) for cell in numbers], pa.uint64())
    return pa.array([float(cell) for cell in numbers])


def _of_document(path: Path, file: str) -> Iterator[Breach]:
    document = json.loads(path.read_text())
    for share in (0.0, 0.5, 0.99):
        yield Breach(file, "all", f"cut at {share}", _cut(int(share * path.stat().st_size)))
    seen: set[str] = set()
    for steps in _places(document, ()):
        place = ".".join("[]" if isinstance(step, int) else step for step in steps)
        if place in seen:  # elements of a list are alike
            continue
        seen.add(place)
        if steps:
            yield Breach(file, place, "missing", _rewritten(steps, gone=True))
        for value in VALUES:
            yield Breach(file, place, f"{value!r:.30}", _rewritten(steps, value))
        yield Breach(file, place, "nested deep", _nested(steps))


def _places(value: Any, steps: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield steps
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for step, one in inner:
        yield from _places(one, (*steps, step))


def _rewritten(steps: tuple[Any, ...], value: Any = None, *, gone: bool = False) -> Callable[[Path], None]:
    """Return what writes JSON with another value at a place, or without it."""

    def apply(path: Path) -> None:
        holder = [json.loads(path.read_text())]
        *way, last = (0, *steps)
        inner: Any = holder
        for step in way:
            inner = inner[step]
        if gone:
            del inner[last]
        else:
            inner[last] = value
        path.write_text(json.dumps(holder[0]))

    return apply


def _nested(steps: tuple[Any, ...]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        _rewritten(steps, "HERE")(path)
        path.write_text(path.read_text().replace('"HERE"', "[" * DEEP + "]" * DEEP, 1))

    return apply
