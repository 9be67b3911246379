"""What logs say of requests that failed: an error that is not empty, ``success: false``, or no output token.

A request that failed has 0 output tokens here, whatever it had got until then: it is rejected when it is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import numpy as np

from clustersim.clock import Int64Array

ERRORS: Final = ("error",)
SUCCESSES: Final = ("success",)
"""Usual names of the column, or the key, that says it."""
_NO_ERROR: Final = ("", "none", "null", "nan", "false", "no", "0", "0.0")
"""What stands where there was none: as Python, JSON and pandas write it."""
_SUCCESS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def is_error(value: object) -> bool:
    """Say whether what a log has under ``error`` is one: ``null``, ``""``, ``None``, ``NaN`` and the like are none."""
    return str(value).strip().lower() not in _NO_ERROR if isinstance(value, str | float | Decimal) else bool(value)


def is_failure(value: object) -> bool:
    """Say whether what a log has under ``success`` says that it failed.

    Raises
    ------
    ValueError
        When it is neither true nor false.
    """
    found = _SUCCESS.get(str(value).strip().lower())
    if found is None:
        raise ValueError("true or false")
    return not found


def parse_errors(cells: Sequence[str]) -> Int64Array:
    """Read cells with errors: 1 where there was one."""
    return np.fromiter(map(is_error, cells), dtype=np.int64, count=len(cells))


def parse_successes(cells: Sequence[str]) -> Int64Array:
    """Read cells that say whether a request succeeded: 1 where it failed."""
    return np.fromiter(map(is_failure, cells), dtype=np.int64, count=len(cells))
