"""A file that says how often experts are visited: CSV without a header, numbers from 0 in any unit.

One number per expert, in a line or in a column, for all layers; or one line per layer that has experts, with a number
for each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from clustersim import inputs
from clustersim.errors import InputError, Problem
from clustersim.inputs import resolved
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.scenario.document import Document, KeyPath, dotted, shown
from clustersim.scenario.lookup import find_file
from clustersim.units import plural

_NUMBER: Final = re.compile(r"[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]{1,2})?|\.[0-9]+")
_NUMERIC: Final = re.compile(r"[0-9.eE+_-]{1,40}|[-+]?(?:nan|inf)", re.IGNORECASE)
_LEAST: Final = 1e-99
_MOST: Final = 1e99
"""What shares of a sum can be computed of without running out of exponents (assumed; nothing is counted so often)."""
_MOST_PROBLEMS: Final = 20

Rows = tuple[tuple[float, ...], ...]


def frequency_file(document: Document, path: KeyPath, text: str) -> Path:
    """Return the absolute path of a file of frequencies that the document names."""
    found = find_file(
        text, kind="frequency", mark=document.mark(path), path=dotted(path), base=Path(document.file).parent
    )
    return resolved(found)


def read_frequencies(path: Path) -> Rows:
    """Read a file of frequencies: a row for all layers, or one per layer.

    Raises
    ------
    InputError
        With line and column of the first cells that are no number from 0, and lines that are of another length.
    """
    name = shown(path)
    text = inputs.read_text(path, most=inputs.TEXT_BYTES, name=name)
    rows: list[tuple[float, ...]] = []
    problems: list[Problem] = []
    for line, written in enumerate(text.splitlines(), start=1):
        if not written.strip():
            continue
        found, column = [], 1
        for cell in written.split(","):
            value = cell.strip()
            if _NUMBER.fullmatch(value) and (float(value) == 0 or _LEAST <= float(value) <= _MOST):
                found.append(float(value))
            else:
                begins = column + len(cell) - len(cell.lstrip())
                numeric = _NUMERIC.fullmatch(value) is not None  # nothing of a file of something else is quoted
                short = repr(value) if numeric else "text" if value else "nothing"
                message = f"found {short}; expected how often an expert is visited, as 0 or from 1e-99 to 1e99"
                problems.append(Problem(message=message, file=name, line=line, column=begins, quotes=numeric))
            column += len(cell) + 1
        if rows and len(found) != len(rows[0]) and not problems:
            message = f"has {len(found)} numbers, where the first line has {len(rows[0])}; expected one per expert"
            problems.append(Problem(message=message, file=name, line=line, column=1))
        rows.append(tuple(found))
    if not rows:
        problems.append(Problem(message="the file is empty; expected a number per expert", file=name))
    if problems:
        raise InputError(problems[:_MOST_PROBLEMS])
    if len(rows) > 1 and len(rows[0]) == 1:
        return (tuple(value for (value,) in rows),)
    return tuple(rows)


def check_frequencies(rows: Rows, model: ModelSpec, path: Path) -> None:
    """Refuse frequencies of other experts or layers than the model has, and layers whose tokens have nowhere to go.

    Raises
    ------
    InputError
    """
    name = shown(path)
    moes = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    if not moes:
        return  # rule EP-1 says that there are no experts
    problems: list[Problem] = []
    if len(rows) not in (1, len(moes)):
        due = f"{model.name} has {plural(len(moes), 'layer')} with experts (or one line for all)"
        message = f"has {plural(len(rows), 'line')}; {due}"
        problems.append(Problem(message=message, file=name, line=1, column=1))
    for number, moe in enumerate(moes):
        line = number if len(rows) > 1 else 0
        if line >= len(rows) or problems:
            break
        row = rows[line]
        message = ""
        if len(row) != moe.num_experts:
            message = f"has {plural(len(row), 'number')}; {model.name} has {moe.num_experts} experts"
        elif sum(value > 0 for value in row) < moe.top_k:
            message = f"lets tokens visit fewer than the {moe.top_k} experts that each must visit"
        if message:
            problems.append(Problem(message=message, file=name, line=line + 1, column=1))
    if problems:
        raise InputError(problems)
