"""Plain scalars of YAML 1.2 (core schema, https://yaml.org/spec/1.2.2/#103-core-schema).

Unlike YAML 1.1: ``yes`` and ``on`` are text, ``010`` is ten, ``1e9`` is a float, times and dates are text.
"""

from __future__ import annotations

import math
import re
from typing import Final

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]+")
_BASED_INT: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN: Final = frozenset({".nan", ".NaN", ".NAN"})
_MOST_DIGITS: Final = 400

Scalar = str | int | float | bool | None


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar.

    Raises
    ------
    ValueError
        When it is a number that is too large to be one.

    Examples
    --------
    >>> [plain_scalar(text) for text in ("8", "010", "1e9", "yes", "true", "~", "0x10")]
    [8, 10, 1000000000.0, 'yes', True, None, 16]
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            raise ValueError(f"a number of {len(text)} digits is too large")
        return int(text)
    if _BASED_INT.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            raise ValueError(f"a number of {len(text)} digits is too large")
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if math.isinf(value):
            raise ValueError(f"the number {text} is too large")
        return value
    if _INFINITE.fullmatch(text):
        return -math.inf if text.startswith("-") else math.inf
    return math.nan if text in _NAN else text


def kind_of(value: object) -> str:
    """Say in a user's words what a value from a document is, such as ``the text 'eight'`` or ``a list``."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            short = value if len(value) <= 60 else f"{value[:57]}..."
            return f"the text {short!r}"
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return type(value).__name__
