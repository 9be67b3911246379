"""Histories from elsewhere: CSV and Parquet tables of spans, facts and what else a simulator or an engine recorded.

Which table a file is follows from its columns; a column that may lack has a default, and what lacks altogether is
"not checkable". Streams, kinds of steps and of facts may be words or numbers.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.legality.history import FACTS, KINDS, SPAN_COLUMNS, STREAMS, Given, History, SpanTable
from clustersim.timeline.files import read_table

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
    "spans": {"stream": 0, "layer": -1, "step": 0, "group": -1},
    "flows": {},
    "facts": {"replica": 0, "value": 0, "used": -1},
    "requests": {"explained": 1},
    "routes": {"replica": 0},
    "held": {"replica": 0, "content": -1},
    "chunks": {"replica": 0, "sampled": 0},
    "decodes": {"replica": 0, "slot": 0},
    "steps": {"replica": 0, "count": 1, "slot": 0},
}
"""Table → further columns and what they are where they lack."""
TOLD: Final = ("kind", "prefill_tokens", "decode_tokens", "batch_requests", "context_tokens", "kv_blocks_used")
"""Columns of steps that rules look at only where they are there."""
WORDS: Final = {"stream": STREAMS, "kind": KINDS}
MOST: Final = {"rank": 1 << 24, "replica": 1 << 12, "step": 1 << 31, "request": 1 << 28, "stream": len(STREAMS)}
"""Numbers from here on are no ranks, steps and so on, but slips."""
NONE: Final = ("slot", "layer", "group", "used", "content")
"""Columns where −1 stands for none."""
TEXT: Final = ("name", "op", "module", "after", "id")


def read_history(paths: Sequence[Path], given: Sequence[str]) -> History:
    """Read tables as a history.

    Parameters
    ----------
    paths : sequence of Path
        CSV or Parquet files, one per table.
    given : sequence of str
        What was declared, as ``tp=2`` (fields of :class:`Given`).

    Raises
    ------
    InputError
        With every file and value that makes no sense.
    """
    problems: list[Problem] = []
    tables: dict[str, dict[str, Any]] = {}
    for path in paths:
        try:
            name, columns = _table(path)
            if name in tables:
                raise InputError(Problem(file=str(path), message=f"is a second table of {name}; give one of each"))
            tables[name] = columns
        except InputError as error:
            problems.extend(error.problems)
    try:
        declared = _given(given)
    except InputError as error:
        problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    steps, requests = tables.get("steps"), tables.get("requests")
    carried = steps is not None and ("chunks" in tables or "decodes" in tables)
    return History(
        given=declared,
        requests=_by_number(requests) if requests is not None else None,
        steps=steps,
        chunks=tables.get("chunks", _empty("chunks")) if carried else None,
        decodes=_episodes(tables.get("decodes", _empty("decodes"))) if carried else None,
        facts=tables.get("facts"),
        spans=_spans(tables["spans"], declared) if "spans" in tables else None,
        routes=tables.get("routes"),
        held=tables.get("held"),
        flows=tables.get("flows"),
    )


def _given(words: Sequence[str]) -> Given:
    types = {field.name: str(field.type) for field in dataclasses.fields(Given)}
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in types or not equals:
            hint = did_you_mean(name, list(types))
            raise InputError(Problem(path="--given", message=f"expected NAME=VALUE, found {word!r}{hint}"))
        if "int" in types[name] and not value.isdigit():
            raise InputError(Problem(path="--given", message=f"{name} must be a whole number, not {value!r}"))
        found[name] = int(value) if "int" in types[name] else value
    degrees = [name for name in ("tp", "sp", "pp", "dp", "ep", "block_tokens") if found.get(name) == 0]
    if degrees:
        raise InputError(Problem(path="--given", message=f"{degrees[0]} must be at least 1"))
    return Given(**found)


def _table(path: Path) -> tuple[str, dict[str, Any]]:
    raw = _columns(path)
    name = next((name for name, needed in NEEDED.items() if all(column in raw for column in needed)), None)
    if name is None:
        message = f"columns {', '.join(raw) or '(none)'} are those of no table; expected all of " + " or ".join(
            f"{', '.join(needed)} ({table})" for table, needed in NEEDED.items()
        )
        raise InputError(Problem(file=str(path), message=message))
    count = len(raw[NEEDED[name][0]])
    columns = {column: np.full(count, default) for column, default in OPTIONAL[name].items()}
    columns["named"] = np.full(count, "step" in raw) if name == "spans" else np.empty(0, bool)
    wanted = (*NEEDED[name], *OPTIONAL[name], *(TOLD if name == "steps" else ()), *(TEXT if name == "spans" else ()))
    for column in wanted:
        if column in raw:
            columns[column] = _values(path, name, column, raw[column])
    problems = list(_impossible(path, name, columns))
    if problems:
        raise InputError(problems)
    return name, columns


def _impossible(path: Path, name: str, columns: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what no record can be: negative numbers, times that end before they start."""
    for column in (*NEEDED[name], *OPTIONAL[name]):
        lowest = -1 if column in NONE else 0
        values = columns[column]
        bad = np.flatnonzero((values < lowest) | (values >= MOST.get(column, np.inf)))
        if len(bad):
            message = f"{values[bad[0]]} in row {bad[0] + 1} can't be; expected {lowest} or more"
            if column in MOST:
                message += f", below {MOST[column]}"
            yield Problem(file=str(path), path=column, message=message)
    for first, last in (("start_ns", "end_ns"), ("taken_ns", "freed_ns")):
        if first in columns and last in columns:
            bad = np.flatnonzero(columns[last] < columns[first])
            if len(bad):
                yield Problem(file=str(path), path=last, message=f"row {bad[0] + 1} ends before it starts")


def _columns(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".parquet":
            return read_table(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(Problem(file=str(path), message=f"cannot be read: {error}")) from None
    head = rows[0] if rows else []
    ragged = next((number for number, row in enumerate(rows[1:], 2) if len(row) != len(head)), None)
    if ragged is not None:
        raise InputError(
            Problem(file=str(path), line=ragged, message=f"expected {len(head)} cells, as in the first line")
        )
    return {name.strip(): [row[place].strip() for row in rows[1:]] for place, name in enumerate(head)}


def _values(path: Path, table: str, column: str, raw: Any) -> Any:
    """Return a column as int64, floats (rates), or text."""
    if table == "spans" and column in TEXT:
        return np.array([str(value) for value in raw], object)
    words = FACTS if table == "facts" and column == "kind" else WORDS.get(column, ())
    try:
        if column in ("rate", "capacity"):
            return np.array(raw, np.float64)
        return np.array([words.index(value) if value in words else int(value) for value in raw], np.int64)
    except (TypeError, ValueError) as error:
        expected = f"a whole number or one of {', '.join(words)}" if words else "whole numbers"
        raise InputError(Problem(file=str(path), path=column, message=f"expected {expected}: {error}")) from None


def _empty(name: str) -> dict[str, Any]:
    return {column: np.empty(0, np.int64) for column in (*NEEDED[name], *OPTIONAL[name])}


def _by_number(requests: Mapping[str, Any]) -> dict[str, Any]:
    """Return lengths by number of the request."""
    count = int(requests["request"].max(initial=-1)) + 1
    found = {}
    for name in ("prompt_tokens", "output_tokens", "explained"):
        found[name] = np.zeros(count, np.int64)
        found[name][requests["request"]] = requests[name]
    return found


def _episodes(decodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return decodes, step by step, as episodes of one step."""
    return {name: decodes[name] for name in ("replica", "slot", "request")} | {
        "first_step": decodes["step"],
        "last_step": decodes["step"],
    }


def _spans(columns: dict[str, Any], given: Given) -> SpanTable:
    """Return spans; without steps, names and layers mean nothing, and are left out."""
    count = len(columns["start_ns"])
    named = bool(columns["named"].all())
    blank = np.full(count, "", object)
    words = [columns.get(name, blank) if named else blank for name in ("name", "op", "module")]
    symbols: dict[tuple[str, str, str], int] = {}
    symbol = np.array(
        [symbols.setdefault(found, len(symbols)) for found in zip(*(word.tolist() for word in words), strict=True)],
        np.int64,
    )
    replica, stage = np.divmod(columns["rank"] // given.stage_ranks, given.pp)
    whole = columns | {"symbol": symbol, "replica": replica, "stage": stage}
    if not named:
        whole["layer"] = np.full(count, -1, np.int64)
    table = {name: np.asarray(whole[name], np.int64) for name in SPAN_COLUMNS}
    return SpanTable(columns=table, symbols=tuple(symbols) or (("", "", ""),), after=_after(columns))


def _after(columns: Mapping[str, Any]) -> tuple[Int64Array, Int64Array] | None:
    """Return the edges that the columns ``id`` and ``after`` (ids, separated by spaces) tell."""
    if "id" not in columns or "after" not in columns:
        return None
    row = {name: number for number, name in enumerate(columns["id"].tolist())}
    pairs = [
        (row[source], target)
        for target, text in enumerate(columns["after"].tolist())
        for source in text.split()
        if source in row
    ]
    edges = np.array(pairs, np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]
