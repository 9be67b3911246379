"""Histories from elsewhere: CSV and Parquet tables of spans, facts and what else a simulator or an engine recorded.

How a file is read is in ``run.foreign.table``, and what ``--given`` says in ``run.foreign.declared``. What lacks is
"not checkable"; what contradicts itself, or refers to what is not there, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem
from clustersim.legality.history import FACTS, SPAN_COLUMNS, Declared, History, SpanTable
from clustersim.simulation.foreign.declared import declared_for, declared_in
from clustersim.simulation.foreign.references import problems_of
from clustersim.simulation.foreign.table import NEEDED, OPTIONAL, TOLD, ForeignTable, read_foreign

Tables = Mapping[str, ForeignTable]
REJECTED = FACTS.index("rejected")


def read_history(paths: Sequence[Path], given: Sequence[str]) -> History:
    """Read tables as a history.

    Parameters
    ----------
    paths : sequence of Path
        CSV or Parquet files, one per table.
    given : sequence of str
        What was declared, as ``tp=2`` (see ``run.foreign.declared``).

    Raises
    ------
    InputError
        With every file and value that makes no sense.
    """
    problems: list[Problem] = []
    tables: dict[str, ForeignTable] = {}
    for path in paths:
        try:
            table = read_foreign(path)
            if table.name in tables:
                message = f"is a second table of {table.name}, after {tables[table.name].path}; give one of each"
                raise InputError(Problem(file=str(path), message=message))
            tables[table.name] = table
        except InputError as error:
            problems.extend(error.problems)
    declared = None
    try:
        ranks = int(tables["spans"].columns["rank"].max(initial=-1)) + 1 if "spans" in tables else 0
        declared = declared_for(declared_in(given), ranks)
    except InputError as error:
        problems.extend(error.problems)
    if not problems:
        problems.extend(problems_of(tables))
    if problems or declared is None:
        raise InputError(problems)
    return _history(tables, declared)


def _history(tables: Tables, declared: Declared) -> History:
    def plain(name: str, *more: str) -> dict[str, Any] | None:
        if name not in tables:
            return None
        table = tables[name]
        wanted = (*NEEDED[name], *OPTIONAL[name], *(column for column in more if column in table.recorded))
        return {column: table.columns[column] for column in wanted}

    carried = "steps" in tables and "chunks" in tables and ("decodes" in tables or not _decode(tables))
    return History(
        pools=(declared,),
        requests=_by_number(tables["requests"]) if "requests" in tables else None,
        steps=_steps(tables) if "steps" in tables else None,
        chunks=plain("chunks") if carried else None,
        decodes=_episodes(tables) if carried else None,
        facts=_facts(tables["facts"]) if "facts" in tables else None,
        spans=_spans(tables["spans"], declared) if "spans" in tables else None,
        routes=plain("routes"),
        held=plain("held"),
        flows=plain("flows"),
    )


def _decode(tables: Tables) -> bool:
    """Return whether requests decode as far as anybody says, so that a history without decodes lacks them."""
    requests = tables.get("requests")
    return requests is None or bool((requests.columns["output_tokens"] > 1).any())


def _empty(name: str) -> dict[str, Any]:
    return {column: np.empty(0, np.int64) for column in (*NEEDED[name], *OPTIONAL[name])}


def _facts(table: ForeignTable) -> dict[str, Any]:
    """Return facts; where reasons were recorded, whether each row has one."""
    found = {column: table.columns[column] for column in (*NEEDED["facts"], *OPTIONAL["facts"])}
    if "used" not in table.recorded:
        del found["used"]
    if "reason" in table.recorded:
        found["explained"] = np.array([bool(text) for text in table.columns["reason"].tolist()], np.int64)
    return found


def _by_number(table: ForeignTable) -> dict[str, Any]:
    """Return lengths by number of the request, and which numbers are requests."""
    request = table.columns["request"]
    count = int(request.max(initial=-1)) + 1
    found = {name: np.zeros(count, np.int64) for name in ("prompt_tokens", "output_tokens", "listed")}
    for name in ("prompt_tokens", "output_tokens"):
        found[name][request] = table.columns[name]
    found["listed"][request] = 1
    for name in TOLD["requests"]:
        if name in table.recorded:
            found[name] = np.full(count, -1, np.int64)
            found[name][request] = table.columns[name]
    return found


def _steps(tables: Tables) -> dict[str, Any]:
    """Return steps, one by one; where only the decodes say in which micro-batch they are, a step is where they are."""
    steps = tables["steps"]
    told = [column for column in TOLD["steps"] if column in steps.recorded]
    found = {column: steps.columns[column] for column in (*NEEDED["steps"], *OPTIONAL["steps"], *told)}
    found["count"] = np.ones(len(steps), np.int64)
    decodes = tables.get("decodes")
    if decodes is not None and "slot" not in steps.recorded:
        slots = dict(zip(_keys(decodes), decodes.columns["slot"].tolist(), strict=True))
        found["slot"] = np.array([slots.get(key, -1) for key in _keys(steps)], np.int64)
    return found


def _episodes(tables: Tables) -> dict[str, Any]:
    """Return decodes, step by step, as episodes of one step."""
    decodes, steps = tables.get("decodes"), tables["steps"]
    columns = _empty("decodes") if decodes is None else dict(decodes.columns)
    if decodes is not None and "slot" not in decodes.recorded:
        slots = dict(zip(_keys(steps), steps.columns["slot"].tolist(), strict=True))
        columns["slot"] = np.array([slots[key] for key in _keys(decodes)], np.int64)
    return {name: columns[name] for name in ("replica", "slot", "request")} | {
        "first_step": columns["step"],
        "last_step": columns["step"],
    }


def _keys(table: ForeignTable) -> Iterator[tuple[int, int]]:
    return zip(table.columns["replica"].tolist(), table.columns["step"].tolist(), strict=True)


def _spans(table: ForeignTable, declared: Declared) -> SpanTable:
    """Return spans; without steps, names and layers mean nothing, and are left out."""
    columns, count, numbered = table.columns, len(table), "step" in table.recorded
    blank = np.full(count, "", object)
    words = [columns.get(name, blank) if numbered else blank for name in ("name", "op", "module")]
    symbols: dict[tuple[str, str, str], int] = {}
    symbol = np.array(
        [symbols.setdefault(found, len(symbols)) for found in zip(*(word.tolist() for word in words), strict=True)],
        np.int64,
    )
    replica, stage = np.divmod(columns["rank"] // declared.stage_ranks, declared.pp)
    whole = columns | {"symbol": symbol, "replica": replica, "stage": stage, "group": _dense(columns["group"])}
    if not numbered:
        whole["layer"] = np.full(count, -1, np.int64)
    told = [name for name in ("bytes", "cost_ns") if name in table.recorded]
    return SpanTable(
        columns={name: np.asarray(whole[name], np.int64) for name in (*SPAN_COLUMNS, *told)},
        symbols=tuple(symbols) or (("", "", ""),),
        after=_after(columns) if "after" in table.recorded else None,
        numbered=numbered,
        recorded=frozenset(table.recorded),
    )


def _dense(group: Int64Array) -> Int64Array:
    """Return groups numbered from 0, −1 for none."""
    found = np.full(len(group), -1, np.int64)
    some = group >= 0
    found[some] = np.unique(group[some], return_inverse=True)[1].reshape(-1)
    return found


def _after(columns: Mapping[str, Any]) -> tuple[Int64Array, Int64Array]:
    """Return the edges that the columns ``id`` and ``after`` (ids, separated by spaces) tell."""
    row = {name: number for number, name in enumerate(columns["id"].tolist())}
    pairs = [(row[source], target) for target, text in enumerate(columns["after"].tolist()) for source in text.split()]
    edges = np.array(pairs, np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]
