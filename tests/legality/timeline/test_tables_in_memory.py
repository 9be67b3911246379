"""Tables of a history that nobody read from a file: whatever their columns are, rules answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import History
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.foreign.history import read_history
from clustersim.timeline.tables import TABLES, VECTORS
from tests.effort import is_whole
from tests.legality.timeline.adversary import run_of
from tests.legality.timeline.foreign_tables import GIVEN, tables, written

Column = Callable[[Any], Any]
NO_COLUMNS: Mapping[str, Column] = {
    "shorter": lambda values: values[:-1],
    "of fractions": lambda values: values.astype(float),
    "of nothing": lambda values: np.full(len(values), np.nan),
    "of words": lambda values: values.astype(str),
    "of objects": lambda values: np.array([None] * len(values), object),
    "unsigned": lambda values: values.astype(np.uint64),
    "of two axes": lambda values: np.stack((values, values)),
}
EXTREMES = (-(1 << 62), 1 << 30)


def changed(history: History, name: str, table: Mapping[str, Any]) -> History:
    """Return a history with another table, which its folded form has as well where that keeps it."""
    folded = history.folded
    if folded is not None and name in (*TABLES, *VECTORS):
        folded = replace(folded, **{name: table if name in TABLES else table[name]})
    if name not in ("steps", "chunks", "decodes", "facts", "moves", "requests", "routes", "held", "flows"):
        return replace(history, folded=folded)
    return replace(history, folded=folded, **{name: table})


def tables_of(history: History) -> dict[str, dict[str, Any]]:
    found = {name: getattr(history, name) for name in ("requests", "routes", "held", "flows", "steps", "chunks")}
    found |= {name: getattr(history, name) for name in ("decodes", "facts")}
    if history.folded is not None:
        found |= {name: getattr(history.folded, name) for name in TABLES}
        found |= {name: {name: getattr(history.folded, name)} for name in VECTORS}
    return {name: dict(table) for name, table in found.items() if table is not None and len(next(iter(table.values())))}


@pytest.fixture(scope="module", params=["two pools", "elsewhere"])
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> History:
    if request.param == "elsewhere":
        folder: Path = tmp_path_factory.mktemp("tables")
        return read_history(written(folder, tables()), GIVEN)
    return history_of_run(run_of(request.param))


def test_history_is_legal_as_it_is(history: History) -> None:
    assert check_history(history).violations == ()


@pytest.mark.parametrize("kind", NO_COLUMNS)
def test_column_that_is_none_is_told(history: History, kind: str) -> None:
    for name, table in tables_of(history).items():
        for column, values in table.items():
            if column in ("rate", "capacity") and kind == "of fractions":
                continue
            if kind == "shorter" and name in VECTORS:
                continue  # one column, which may have any length; references to it are judged
            other = changed(history, name, table | {column: NO_COLUMNS[kind](np.asarray(values))})
            assert check_history(other).violations, (name, column)


def test_lack_of_a_column_is_told_or_leads_to_no_defect(history: History) -> None:
    for name, table in tables_of(history).items():
        for column in table if len(table) > 1 else ():
            rest = {other: values for other, values in table.items() if other != column}
            check_history(changed(history, name, rest))


@pytest.mark.parametrize("turn", range(len(EXTREMES)) if is_whole() else [0])
def test_extreme_number_leads_to_no_defect(history: History, turn: int) -> None:
    """Each number in every column with ``--long=1``, else by turns in every other one."""
    extremes = cycle((*EXTREMES[turn:], *EXTREMES[:turn]))
    for name, table in tables_of(history).items():
        for (column, values), extreme in zip(table.items(), extremes):  # noqa: B905
            wide = np.array(values, np.asarray(values).dtype if column in ("rate", "capacity") else np.int64)
            wide[len(wide) // 2] = extreme
            check_history(changed(history, name, table | {column: wide}))
