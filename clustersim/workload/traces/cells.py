"""Columns of CSV text → int64: whole numbers of tokens, decimal instants of any unit, and dates with times.

A parser takes a whole column. When anything in it is wrong it raises ValueError, whose text says what a cell
should have been; the caller finds the wrong cells by calling it on parts: one grammar, not two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S, Int64Array
from clustersim.workload.limits import MAX_NS, MAX_TOKENS

ParseCells = Callable[[Sequence[str]], Int64Array]

TOKENS_EXPECTED: Final = f"a whole number of tokens from 0 to {MAX_TOKENS}"
_WHOLE: Final = re.compile(r"[ \t]*[0-9]{1,18}[ \t]*")
_TOKENS: Final = re.compile(r"[ \t]*[0-9]{1,18}(?:\.0*)?[ \t]*")
_DIGITS: Final = 9
_DECIMAL: Final = re.compile(r"[ \t]*\+?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?[ \t]*")
_STAMP: Final = re.compile(
    r"[ \t]*([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?[ \t]*"
)
_STAMP_EXPECTED: Final = "a time such as 2023-11-16 18:17:03.9799600"
_LAST_SECOND: Final = 9_000_000_000
"""In the year 2255: int64 nanoseconds since 1970 end in 2262."""
_EXACT: Final = Context(prec=1000)  # never rounds a product here; the thread's own context stays out of it


def parse_tokens(cells: Sequence[str]) -> Int64Array:
    """Read whole numbers of tokens; blanks around a number are allowed, signs and fractions are not.

    ``550.0`` is one: pandas writes so what stands in a column with empty cells.
    """
    if not all(map(_TOKENS.fullmatch, cells)):
        raise ValueError(TOKENS_EXPECTED)
    values = np.fromiter((int(cell.partition(".")[0]) for cell in cells), dtype=np.int64, count=len(cells))
    if values.size and int(values.max()) > MAX_TOKENS:
        raise ValueError(TOKENS_EXPECTED)
    return values


def parse_whole(noun: str) -> ParseCells:
    """Return a parser of whole numbers from 0 to 999,999,999 that mean ``noun``."""
    expected = f"{noun} as a whole number from 0 to 999,999,999"

    def parse(cells: Sequence[str]) -> Int64Array:
        if not all(_WHOLE.fullmatch(cell) and len(cell.strip()) <= _DIGITS for cell in cells):
            raise ValueError(expected)
        return np.fromiter(map(int, cells), dtype=np.int64, count=len(cells))

    return parse


def parse_or_never(parse: ParseCells) -> ParseCells:
    """Return a parser that reads an empty cell as −1, which stands for never, and others as ``parse`` does."""

    def read(cells: Sequence[str]) -> Int64Array:
        told = np.array([bool(cell.strip()) for cell in cells], bool)
        found = np.full(len(cells), -1, np.int64)
        found[told] = parse([cell for cell in cells if cell.strip()])
        return found

    return read


def parse_sessions(cells: Sequence[str]) -> Int64Array:
    """Number the texts of cells in the order in which they come; an empty one is −1, which stands for no session."""
    texts = [cell.strip() for cell in cells]
    numbers = {text: at for at, text in enumerate(dict.fromkeys(filter(None, texts)))}
    return np.fromiter((numbers.get(text, -1) for text in texts), dtype=np.int64, count=len(texts))


def parse_instants(unit: str, ns_per_unit: int) -> ParseCells:
    """Return a parser of decimal numbers of ``unit``, such as ``12.5`` or ``5e-05``, to whole nanoseconds.

    The decimal is multiplied exactly and rounded once, half to even.
    """
    last = MAX_NS // ns_per_unit
    expected = f"{unit} as a number from 0 to {last:.3g}, such as 12.5"

    def parse(cells: Sequence[str]) -> Int64Array:
        if not all(map(_DECIMAL.fullmatch, cells)):
            raise ValueError(expected)
        stamps = [exact_ns(value, ns_per_unit) for value in map(Decimal, cells)]
        if max(stamps, default=0) > MAX_NS:
            raise ValueError(expected)
        return np.fromiter(stamps, dtype=np.int64, count=len(stamps))

    return parse


def exact_ns(value: Decimal, ns_per_unit: int) -> int:
    """Multiply a non-negative decimal by ``ns_per_unit`` and round once to a whole number, half to even."""
    return round(_EXACT.multiply(value, ns_per_unit))


def is_stamp(cell: str) -> bool:
    """Say whether a cell is a date with a time (ISO 8601)."""
    return _STAMP.fullmatch(cell) is not None


def parse_stamps(cells: Sequence[str]) -> Int64Array:
    """Read dates with times as exact nanoseconds since 1970 (UTC where no offset is written).

    0 to 9 fraction digits, none of which goes through a float.
    """
    found = [match.groups() for match in map(_STAMP.fullmatch, cells) if match is not None]
    if len(found) < len(cells):
        raise ValueError(_STAMP_EXPECTED)
    try:
        dates = np.array([date for date, _, _ in found], dtype="datetime64[s]")
    except ValueError:
        raise ValueError(_STAMP_EXPECTED) from None
    offsets = {offset: _offset_s(offset) for _, _, offset in found}
    seconds = dates.astype(np.int64) - np.array([offsets[offset] for _, _, offset in found], dtype=np.int64)
    if seconds.size and not 0 <= int(seconds.min()) <= int(seconds.max()) <= _LAST_SECOND:
        raise ValueError(f"{_STAMP_EXPECTED}, from 1970 to 2255")
    fractions = np.array([int((digits or "0").ljust(9, "0")) for _, digits, _ in found], dtype=np.int64)
    return seconds * NS_PER_S + fractions


def stamps_like(first: str) -> ParseCells:
    """Return what reads dates with times that all say an offset, or all none, as the first one of a column does."""
    match = _STAMP.fullmatch(first)
    zoned = match is not None and match[3] is not None
    expected = f"a time {'with' if zoned else 'without'} an offset such as Z or +01:00, as the first one"

    def parse(cells: Sequence[str]) -> Int64Array:
        found = parse_stamps(cells)
        if any((one[3] is not None) is not zoned for one in map(_STAMP.fullmatch, cells) if one is not None):
            raise ValueError(expected)
        return found

    return parse if match is not None else parse_stamps


def _offset_s(offset: str | None) -> int:
    if offset is None or offset == "Z":
        return 0
    sign = -1 if offset[0] == "-" else 1
    return sign * (int(offset[1:3]) * 3600 + int(offset[-2:]) * 60)
