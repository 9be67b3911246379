"""Simulated time: an integer number of nanoseconds.

Cost functions return float seconds; :func:`to_ns` is the one place where they are rounded. Integer sums do not
depend on their order, so two replays can be equal bit for bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def to_ns(seconds: float) -> int:
    """Round float seconds to integer nanoseconds (half to even)."""
    return round(seconds * NS_PER_S)


def to_ns_array(seconds: FloatArray) -> Int64Array:
    """Round an array of float seconds to int64 nanoseconds; equal to :func:`to_ns` element by element."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)
