"""Calls that tests have workers make."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from clustersim.errors import InputError, Problem


def square(number: int) -> int:
    return number * number


def square_of_even(number: int) -> int:
    """Return a square; odd numbers are bad input, and 4 is a defect."""
    if number % 2:
        raise InputError(Problem(message=f"{number} is odd"))
    if number == 4:
        raise ZeroDivisionError("of four")
    return number * number


def square_after_a_kill(number: int, folder: str, victims: tuple[int, ...], times: int) -> int:
    """Return a square; the first calls of some numbers kill their worker."""
    if number in victims:
        marks = Path(folder)
        if len(list(marks.glob(f"{number}-*"))) < times:
            (marks / f"{number}-{time.monotonic_ns()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return number * number
