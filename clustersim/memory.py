"""Memory that the process holds and does not use, given back to the system where much of it lies between what it uses.

Commands keep what they free for the next array (:mod:`clustersim.cli.memory`), and what a phase of a large run leaves
are holes: up to 0.3 GB of a million requests. Phases that take much give them back before they begin: each time costs
as many pages anew. Pages of mapped files (:mod:`clustersim.column`) count, too, as long as they are mapped,
and come again 16 at a time where somebody reads them.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
from threading import Lock
from typing import Any, Final
from weakref import WeakSet

MANY: Final = 1 << 17
"""Rows of which a phase has arrays of a MB and more."""


_MAPPED: Final[WeakSet[mmap.mmap]] = WeakSet()
_LOCK: Final = Lock()


def mapped(file: Any, size: int, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    """Map so many bytes of an open file, for reading alone unless it is told otherwise."""
    found = mmap.mmap(file.fileno(), size, access=access)
    with _LOCK:
        _MAPPED.add(found)
    return found


def let_go() -> None:
    """Give up the pages of all files that are mapped; who reads them again finds them as they were."""
    if hasattr(mmap, "MADV_DONTNEED"):
        with _LOCK:  # a thread may map more
            every = tuple(_MAPPED)
        for one in every:
            one.madvise(mmap.MADV_DONTNEED)


def drop_cycles(rows: int) -> None:
    """Drop what nobody has any more but itself, after a phase that looked at so many rows, and give its memory back.

    A recorder and its logs name each other, and hold columns that were put in order since, or went to a file.
    """
    if rows >= MANY:
        gc.collect()
        give_back(rows)


def give_back(rows: int) -> None:
    """Give free memory back, also from the middle of the heap, after a phase that looked at so many rows.

    The next phase takes it anew, page by page: 0.1 to 1 s for 300 MB. So nothing is done for few rows.
    """
    let_go()
    if rows < MANY or sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # of glibc alone
        trim(0)
