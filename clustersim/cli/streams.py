"""Standard streams that are closed or full: what is said to nobody is lost, and the exit status is what it was."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any


class _Forgiving(io.RawIOBase):
    """Standard error: takes everything, and loses what can't be written."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)

    def write(self, data: Any, /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        with suppress(OSError):
            while left:
                left = left[os.write(2, left) :]
        return size


def usable_streams() -> None:
    """Make the three streams usable, whatever the caller gave: no file of ours may get the number of a closed one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Forgiving()), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
