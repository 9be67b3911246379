"""A measured point as its table gives it."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

from clustersim.errors import InputError, Problem


class Inexpressible(Exception):  # noqa: N818  (an answer, not an error)
    """Why a row has no prediction: the reason, in words that are the same for all rows that share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: what was run, and one figure of it. Texts are as published; an unknown one is empty.

    Parameters
    ----------
    id, family : str
        Identifiers of the point and of its group.
    hardware, model, precision, framework, parallel, workload : str
        What was run.
    num_gpus : int
        Devices.
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
    num_gpus: int
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


COLUMNS = tuple(field.name for field in fields(Row))


def read_rows(path: Path) -> list[Row]:
    """Read a table of points.

    Raises
    ------
    InputError
        When the file can't be read, lacks columns, or a number in it is none; all lines at once.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            absent = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            lines = list(reader) if not absent else []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(Problem(message=f"cannot be read: {error}", file=str(path))) from None
    if absent:
        message = f"lacks the columns {', '.join(absent)}; found {', '.join(reader.fieldnames or ())}"
        raise InputError(Problem(message=message, file=str(path), line=1))
    rows: list[Row] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 2):
        try:
            rows.append(_row(line))
        except ValueError as error:
            problems.append(Problem(message=str(error), file=str(path), line=number))
    if problems:
        raise InputError(problems)
    return rows


def _row(line: dict[str, str]) -> Row:
    texts = {name: line[name] or "" for name in COLUMNS if name not in ("num_gpus", "value")}
    return Row(num_gpus=int(line["num_gpus"]), value=float(line["value"]), **texts)
