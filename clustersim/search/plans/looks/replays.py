"""How the times of pools are replayed: in Python, or as machine code where there is so much that a compiler pays."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

REPLAY_S: Final = 10e-6
"""What a request costs to replay in Python, measured; compiled, a hundredth of it …"""
COMPILER_S: Final = 5.0
"""… and what the compiler takes, once on a machine, and a second to read what it made."""


def are_many(requests: int) -> bool:
    """Whether replays of so many requests in all take longer than a compiler."""
    return requests * REPLAY_S >= COMPILER_S


def is_worth_compiling(requests: int) -> bool:
    """Whether replays of so many requests are to be compiled."""
    return are_many(requests) and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


def kernel(replay: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    """Return a replay over plain numbers, or its machine code."""
    if not compiled:
        return replay
    from clustersim.search.plans.looks import compiled as found  # here, since the compiler takes a while

    made: Callable[..., Any] = getattr(found, replay.__name__)
    return made


def handed(arrays: tuple[npt.NDArray[Any], ...], compiled: bool) -> tuple[Any, ...]:
    """Return arrays as they are replayed: one after the other in memory, or as lists."""
    return tuple(np.ascontiguousarray(one) if compiled else one.tolist() for one in arrays)
