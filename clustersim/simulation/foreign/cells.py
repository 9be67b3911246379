"""Cells of tables from elsewhere as numbers and text: every one is looked at, and the first that can't be is named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from clustersim.errors import nearest
from clustersim.legality.history import FACTS, KINDS, STREAMS

NONE: Final = (
    "slot", "layer", "group", "used", "content", "selected", "bytes", "cost_ns", "freed_ns", "arrived_ns",
    "first_token_ns", "finished_ns",
)  # fmt: skip
"""Columns where −1, or an empty cell, stands for none."""
INSTANTS: Final = 1 << 62
AMOUNTS: Final = 1 << 40
MOST: Final = {
    "rank": 1 << 20, "replica": 1 << 12, "step": 1 << 31, "request": 1 << 23, "layer": 1 << 14, "slot": 1 << 20,
    "start_ns": INSTANTS, "end_ns": INSTANTS, "time_ns": INSTANTS, "taken_ns": INSTANTS, "freed_ns": INSTANTS,
    "cost_ns": INSTANTS, "sampled": 2, "group": INSTANTS, "content": INSTANTS, "block": INSTANTS, "link": INSTANTS,
    "arrived_ns": INSTANTS, "first_token_ns": INSTANTS, "finished_ns": INSTANTS, "expert": INSTANTS,
    "selected": INSTANTS,
}  # fmt: skip
"""Numbers from here on are no ranks, instants and so on, but slips; of all other columns, from ``AMOUNTS`` on."""
WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
EXACT: Final = 1 << 53
"""Floats beyond are no whole numbers for certain."""

Bad = tuple[int, str] | None


def numbers(table: str, column: str, raw: Any) -> tuple[Any, Bad]:
    """Return a column as int64, or floats (rates), and the first row that is none, with what is wrong.

    Parameters
    ----------
    table, column : str
        Which they are: they say which words and numbers can be.
    raw : sequence of cells, or array of integers
    """
    if column in ("rate", "capacity"):
        return _cells(raw, _rate, np.float64)
    words = {"stream": STREAMS, "kind": FACTS if table == "facts" else KINDS}.get(column, ())
    lowest, most = -1 if column in NONE else 0, len(words) or MOST.get(column, AMOUNTS)
    if isinstance(raw, np.ndarray):
        bad = np.flatnonzero((raw < lowest) | (raw >= most))
        if len(bad):
            return raw, (int(bad[0]), _expected(column, words, int(raw[bad[0]])))
        return raw.astype(np.int64), None

    def number(value: Any) -> int:
        if column in NONE and (value is None or value == ""):
            return -1
        if isinstance(value, str) and value in words:
            return words.index(value)
        found = _whole(value)
        if not lowest <= found < most:
            raise ValueError
        return found

    values, failed = _cells(raw, number, np.int64)
    return values, failed and (failed[0], _expected(column, words, raw[failed[0]]))


def _cells(raw: Sequence[Any], parse: Callable[[Any], Any], kind: Any) -> tuple[Any, Bad]:
    found = np.zeros(len(raw), kind)
    for row, value in enumerate(raw):
        try:
            found[row] = parse(value)
        except (TypeError, ValueError):
            return found, (row, f"found {_shown(value)}; expected a number, 0 or more, and finite")
    return found, None


def _whole(value: Any) -> int:
    """Return a cell as a whole number, or raise a ValueError."""
    if isinstance(value, float):
        whole = abs(value) < EXACT and value.is_integer()
    else:
        whole = isinstance(value, int) or (isinstance(value, str) and WHOLE.fullmatch(value) is not None)
    if whole:
        return int(value)
    raise ValueError


def _rate(value: Any) -> float:
    found = float(value)
    if not math.isfinite(found) or found < 0:
        raise ValueError
    return found


def _expected(column: str, words: Sequence[str], value: Any) -> str:
    if words:
        guess = nearest(value, words) if isinstance(value, str) else None
        hint = f" (did you mean {guess!r}?)" if guess else ""
        return f"found {_shown(value)}{hint}; expected one of {', '.join(words)}, or its number from 0"
    lowest = -1 if column in NONE else 0
    return f"found {_shown(value)}; expected a whole number from {lowest} to {MOST.get(column, AMOUNTS) - 1}"


def _shown(value: Any) -> str:
    text = "nothing" if value is None or value == "" else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def text_of(value: Any) -> str:
    """Return a cell as text; the parts of a list, with spaces between them."""
    if isinstance(value, list | tuple):
        return " ".join(str(part) for part in value)
    return "" if value is None else str(value).strip()
