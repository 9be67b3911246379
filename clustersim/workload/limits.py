"""The ranges that numbers of a workload must lie in, and the sentence for one that does not."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Final, cast

from clustersim.errors import InputError, Problem

MAX_TOKENS: Final = 2**31 - 1
"""Largest length of one prompt or output (assumed: a longer one is a broken cell; 2³² of them fit int64)."""

MAX_NS: Final = 2**63 - 1
"""Largest instant that int64 nanoseconds hold: 292 years."""

MIN_SCALE: Final = 1e-6
MAX_SCALE: Final = 1e6
"""Times the rate of a trace (assumed: from a request a second to one in 12 days, or to all in a microsecond)."""

MIN_CV: Final = 1e-6
MAX_CV: Final = 1e6
"""Largest coefficient of variation (assumed: below the smallest nothing varies, above this every draw is 0)."""


def check_whole(path: str, value: object, *, low: int, high: int = MAX_TOKENS) -> list[Problem]:
    """Return a problem unless ``value`` is an integer (not a bool) with ``low <= value <= high``."""
    if _is_a(value, Integral) and low <= int(cast("Integral", value)) <= high:
        return []
    return [Problem(path=path, message=f"found {value!r}; expected a whole number from {low} to {high}")]


def check_positive(path: str, value: object) -> list[Problem]:
    """Return a problem unless ``value`` is a finite number above zero."""
    if _is_a(value, Real) and 0 < float(cast("Real", value)) < math.inf:
        return []
    return [Problem(path=path, message=f"found {value!r}; expected a finite number above 0")]


def check_cv(path: str, value: object) -> list[Problem]:
    """Return a problem unless ``value`` is a coefficient of variation whose square can be computed with."""
    return check_between(path, value, MIN_CV, MAX_CV)


def check_between(path: str, value: object, low: float, high: float) -> list[Problem]:
    """Return a problem unless ``value`` is a number from ``low`` to ``high``."""
    if _is_a(value, Real) and low <= float(cast("Real", value)) <= high:
        return []
    return [Problem(path=path, message=f"found {value!r}; expected a number from {_short(low)} to {_short(high)}")]


def _short(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def check_window(start_ns: int, end_ns: int) -> list[Problem]:
    """Return a problem unless ``0 <= start_ns < end_ns``."""
    if 0 <= start_ns < end_ns:
        return []
    message = f"found from {start_ns} ns to {end_ns} ns; expected 0 <= from < to"
    return [Problem(path="window", message=message)]


def raise_any(problems: list[Problem]) -> None:
    """Raise an InputError with these problems, if there are any."""
    if problems:
        raise InputError(problems)


def _is_a(value: object, kind: type) -> bool:
    """Say whether ``value`` is a number of that kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)
