"""Tables from elsewhere with one thing wrong: an answer, or an error that names the file; never a defect.

``pytest tests/legality/timeline/test_foreign_fuzz.py --long`` tries every cell in every column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clustersim.errors import InputError
from clustersim.legality.audit import check_history
from clustersim.legality.rule import Verdict
from clustersim.simulation.foreign.history import read_history
from tests.effort import dealt, times
from tests.legality.timeline.foreign_tables import GIVEN, Rows, tables, written

CELLS = (
    "", "-1", "-2", "0", "1", "7", "nan", "inf", "-inf", "1e400", "1.5", "2.0", "x", "arrived", "²", "1_000", "0x10",
    "true", "None", "1" * 5000, str(2**31), str(2**40), str(2**62), str(2**63 - 1), str(2**63), str(-(2**63)),
)  # fmt: skip
CELLS_PER_COLUMN = min(len(CELLS), times(5))
CASES = [(name, column) for name, rows in tables().items() for column in rows[0]]
KINDS = 13
TYPED = dealt(CASES, range(KINDS))
"""Columns, and of which kinds of values they are tried to be."""


def answer_on(paths: Sequence[Path]) -> Verdict | InputError:
    """Return the verdict, or the error, which must say where."""
    found: Verdict | InputError
    try:
        found = check_history(read_history(paths, GIVEN))
    except InputError as error:
        found = error
    assert isinstance(found, Verdict) or all(one.file or one.path == "--given" for one in found.problems), found
    return found


def answer(folder: Path, whole: dict[str, Rows]) -> Verdict | InputError:
    return answer_on(written(folder, whole))


def test_whole_history_from_elsewhere_is_legal_and_most_rules_look_at_it(tmp_path: Path) -> None:
    verdict = answer(tmp_path, tables())
    assert isinstance(verdict, Verdict), verdict
    assert verdict.violations == ()
    looked = {rule.id for rule in verdict.rules if rule.looked_at}
    assert {"KV-5", "KV-6", "KV-7", "TP-5", "TP-6", "PP-2", "EP-2", "RUN-2", "RUN-3", "RUN-4", "PH-1"} <= looked


@pytest.mark.parametrize(("name", "column"), CASES, ids=[" ".join(case) for case in CASES])
def test_no_cell_leads_to_a_defect(tmp_path: Path, name: str, column: str) -> None:
    first = CASES.index((name, column)) * CELLS_PER_COLUMN
    for turn in range(first, first + CELLS_PER_COLUMN):  # columns take turns with the cells
        whole = tables()
        whole[name][1 if turn % 2 else -1][whole[name][0].index(column)] = CELLS[turn % len(CELLS)]
        answer(tmp_path, whole)


def without(rows: Rows, at: int) -> None:
    for row in rows:
        del row[at]


def twice(rows: Rows, at: int) -> None:
    for row in rows:
        row.append(row[at])


def swapped(rows: Rows, at: int) -> None:
    for row in rows[1:]:
        row[at] = row[(at + 1) % len(row)]


def cut(rows: Rows, at: int) -> None:
    del rows[-1][at]


SHAPES: list[Callable[[Rows, int], None]] = [without, twice, swapped, cut]


SHAPED = dealt(CASES, SHAPES)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_no_shape_of_a_table_leads_to_a_defect(tmp_path: Path, shape: Callable[[Rows, int], None]) -> None:
    for name, column in (case for case, one in SHAPED if one is shape):
        whole = tables()
        shape(whole[name], whole[name][0].index(column))
        found = answer(tmp_path, whole)
        if shape in (twice, cut):
            assert isinstance(found, InputError), (name, column)


@pytest.mark.parametrize("name", tables())
def test_no_choice_of_rows_and_tables_leads_to_a_defect(tmp_path: Path, name: str) -> None:
    whole = tables()
    rows = whole[name]
    for some in (rows[:1], rows[:1] + rows[1:] * 2, rows[:1] + rows[:0:-1], []):
        answer(tmp_path, whole | {name: some})
    answer(tmp_path, {name: rows})


@pytest.mark.parametrize("name", tables())
def test_no_type_of_a_parquet_column_leads_to_a_defect(tmp_path: Path, name: str) -> None:
    rows = tables()[name]
    many = len(rows) - 1
    whole: dict[str, Any] = {
        column: pa.array([row[at] for row in rows[1:]], pa.string()) for at, column in enumerate(rows[0])
    }
    kinds = (
        pa.array([2**64 - 1] * many, pa.uint64()), pa.array([None] * many, pa.int64()), pa.array([1.5] * many),
        pa.array([float("nan")] * many), pa.array([1.0] * many), pa.array([True] * many),
        pa.array([0] * many, pa.int8()),
        pa.array([[1, 2]] * many), pa.array([b"\xff"] * many), pa.array([0] * many, pa.timestamp("ns")),
        pa.array([{"a": 1}] * many), pa.nulls(many), pa.array(["x"] * many).dictionary_encode(),
    )  # fmt: skip
    assert len(kinds) == KINDS
    for column, kind in ((case[1], kinds[at]) for case, at in TYPED if case[0] == name):
        pq.write_table(pa.table(whole | {column: kind}), tmp_path / "table.parquet")
        answer_on([tmp_path / "table.parquet"])


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe\x00", b"PAR1", b"\x00", b'a,b\n"', b"step,request\n0," + b"9" * 200_000]
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_no_file_leads_to_a_defect(tmp_path: Path, data: bytes, suffix: str) -> None:
    path = tmp_path / f"table.{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError, match="table"):
        read_history([path], ())
