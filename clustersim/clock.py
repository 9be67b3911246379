"""Simulated time: an integer number of nanoseconds.

Cost functions return float seconds; :func:`to_ns` is the one place where they are rounded. Integer sums do not
depend on their order, so two replays can be equal bit for bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from clustersim.errors import InputError, Problem

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000
LATEST_NS: Final = (1 << 63) - 1
"""The last instant that int64 holds: 292 years."""

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def to_ns(seconds: float) -> int:
    """Round float seconds to integer nanoseconds (half to even); see :func:`whole_ns`."""
    return whole_ns(seconds * NS_PER_S)


def whole_ns(ns: float) -> int:
    """Round nanoseconds to integer ones (half to even).

    Raises
    ------
    InputError
        When int64 does not hold them.
    """
    if not ns <= LATEST_NS:
        raise too_late()
    return round(ns)


def in_time(instant: int) -> int:
    """Return an instant that is to be recorded.

    Raises
    ------
    InputError
        When int64 does not hold it.
    """
    if instant > LATEST_NS:
        raise too_late()
    return instant


def too_late() -> InputError:
    """Return what to raise where something takes longer, or ends later, than int64 nanoseconds can tell."""
    message = (
        "simulated time exceeds 292 years, which is what 64 bits of nanoseconds hold: look for a device, a link or "
        "a fault that makes steps very slow, or set run.horizon"
    )
    return InputError(Problem(message=message))


def to_ns_array(seconds: FloatArray) -> Int64Array:
    """Round an array of float seconds to int64 nanoseconds; equal to :func:`to_ns` element by element."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)
