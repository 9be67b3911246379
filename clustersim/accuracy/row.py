"""A measured point as its table gives it."""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from clustersim import inputs
from clustersim.errors import InputError, Problem, alike_column
from clustersim.values import dataclass


class Inexpressible(Exception):  # noqa: N818  (an answer, not an error)
    """Why a row has no prediction: the reason, in words that are the same for all rows that share it."""


_MOST_NAMED: Final = 9


def nearest_first(word: str, known: Iterable[str]) -> str:
    """Return what is known, the most alike first; of many the first nine.

    Examples
    --------
    >>> nearest_first("TP0T", ("TTFT", "TPOT"))
    "'TPOT', 'TTFT'"
    """

    def unlike(other: str) -> float:
        return -difflib.SequenceMatcher(None, word.lower(), other.lower()).ratio()

    ranked = sorted(dict.fromkeys(known), key=unlike)
    more = ["…"] if len(ranked) > _MOST_NAMED else []
    return ", ".join([*(repr(name) for name in ranked[:_MOST_NAMED]), *more])


NUMBER: Final = r"(\d{1,3}(?:,\d{3})+|\d+)"
"""A whole number in a workload, also ``1,024``."""
_CHANGES: Final = re.compile(
    r"prefix|cach|specul|draft|mtp|eagle|lora|turn|image|rate|stream|warm|beam|uniform|\d requests", re.I
)


def numbers_in(form: re.Pattern[str], workload: str) -> tuple[int, ...] | None:
    """Return the numbers of a workload that is given in some form, with remarks in brackets behind it; else None.

    A remark that says of more than lengths (prefixes that are shared, drafts, rates) is not passed over.

    Examples
    --------
    >>> numbers_in(re.compile(f"batch {NUMBER}"), "batch 1,024 (Table 3)")
    (1024,)
    >>> numbers_in(re.compile(f"batch {NUMBER}"), "batch 4 (speculative decoding)")
    """
    found = form.match(workload.strip())
    rest = workload.strip()[found.end() :].strip() if found else "none"
    if found is None or (rest and not re.fullmatch(r"\([^()]*\)", rest)) or _CHANGES.search(rest):
        return None
    return tuple(int(number.replace(",", "")) for number in found.groups())


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: what was run, and one figure of it. Texts are as published; an unknown one is empty.

    Parameters
    ----------
    id, family : str
        Identifiers of the point and of its group.
    hardware, model, precision, framework, parallel, workload : str
        What was run.
    num_gpus : int or float
        Devices; a float where it is a mean that is not whole.
    metric, unit : str
        Of the figure.
    value : float
        The figure, in ``unit``.
    source, note : str
        Where it was published, and what else is known.
    """

    id: str
    family: str
    hardware: str
    num_gpus: float
    model: str
    precision: str
    framework: str
    parallel: str
    workload: str
    metric: str
    value: float
    unit: str
    source: str
    note: str


COLUMNS: Final = tuple(field.name for field in fields(Row))
_NEVER_BLANK: Final = ("id", "family", "metric", "unit")
_MOST_PROBLEMS: Final = 20
LEAST: Final = 1e-12
MOST: Final = 1e18
"""Of figures and devices (assumed: nothing that is measured is beyond)."""
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.I)


def read_rows(path: Path) -> list[Row]:
    """Read a table of points.

    Columns may stand in any order, and others between them.

    Raises
    ------
    InputError
        When the file can't be read, lacks columns, or cells are not what their column needs; all at once.
    """
    text = inputs.read_text(path, most=inputs.TEXT_BYTES)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Row] = []
    problems: list[Problem] = []
    lines_of: dict[str, int] = {}
    lines_of_figures: dict[Row, int] = {}
    try:
        header = [name.strip() for name in next(reader, [])]
        known = inputs.recognised(header, COLUMNS)  # of what is no such table nothing is quoted
        problems += [
            Problem(message=message, file=str(path), line=1, quotes=known) for message in _header_mistakes(header)
        ]
        lines = iter(()) if problems else iter(reader)
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            found, mistakes = _row(header, cells)
            if found and lines_of.setdefault(found.id, reader.line_num) != reader.line_num:
                told = f"found {found.id!r}, which is in line {lines_of[found.id]}, too; expected an id of its own"
                mistakes.append((None, "id", told))
            figure = replace(found, id="") if found else None
            if figure and lines_of_figures.setdefault(figure, reader.line_num) != reader.line_num:
                told = f"all but the id is as in line {lines_of_figures[figure]}; expected each figure once"
                mistakes.append((None, "id", f"{told} (of runs that were repeated `note` says which)"))
            rows += [found] if found else []
            problems += [
                Problem(message=message, file=str(path), line=reader.line_num, column=column, path=name)
                for column, name, message in mistakes
            ]
            if len(problems) >= _MOST_PROBLEMS:
                break
    except csv.Error as error:
        problems.append(Problem(message=f"not a CSV line: {error}", file=str(path), line=reader.line_num))
    if not rows and not problems:
        problems.append(Problem(message="a header but no points; expected one figure per line", file=str(path), line=2))
    if problems:
        raise InputError(problems)
    return rows


def _header_mistakes(header: Sequence[str]) -> list[str]:
    """Return what is wrong with the names of columns."""
    if not header:
        return [f"is empty; expected the columns {', '.join(COLUMNS)}"]
    if not inputs.recognised(header, COLUMNS):
        return [f"is no table of measured points: it has none of the columns {', '.join(COLUMNS)}"]
    absent = [name for name in COLUMNS if name not in header]
    spare = [name for name in header if name not in COLUMNS]
    told = [f"no column {name!r}{alike_column(name, spare)}" for name in absent]
    return told + [f"column {name!r} stands twice" for name in COLUMNS if header.count(name) > 1]


def _row(header: Sequence[str], cells: Sequence[str]) -> tuple[Row | None, list[tuple[int | None, str, str]]]:
    """Return a row, or None and (column, name, message) of each mistake."""
    if len(cells) != len(header):
        return None, [(None, "", f"found cells: {len(cells)}; expected cells: {len(header)}")]
    at = {name: 1 + sum(len(cell) + 1 for cell in cells[: header.index(name)]) for name in COLUMNS}
    quoted = any("," in cell or '"' in cell or "\n" in cell for cell in cells)
    texts = {name: cells[header.index(name)].strip() for name in COLUMNS}
    mistakes: list[tuple[str, str]] = []
    numbers = {}
    for name in ("num_gpus", "value"):
        number = _number(texts[name])
        if number is None or number <= 0.0:
            mistakes.append((name, f"found {texts[name]!r}; expected a number above zero"))
        elif not LEAST <= number <= MOST:
            mistakes.append((name, f"found {texts[name]!r}; expected a number from {LEAST:g} to {MOST:g}"))
        numbers[name] = number or 0.0
    mistakes += [(name, "found nothing; expected a text") for name in _NEVER_BLANK if not texts[name]]
    if mistakes:
        return None, [(None if quoted else at[name], name, message) for name, message in mistakes]
    rest = {name: text for name, text in texts.items() if name not in numbers}
    return Row(num_gpus=_whole(numbers["num_gpus"]), value=numbers["value"], **rest), []


def _whole(number: float) -> float:
    return int(number) if number.is_integer() else number


def _number(text: str) -> float | None:
    number = float(text) if _DECIMAL.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None
