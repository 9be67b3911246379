"""How the process of a command takes memory: it keeps what it frees, and looks for cycles rarely.

A run makes and drops thousands of arrays of 0.1 to 30 MB. glibc hands each back to the system, which then zeroes it
anew, page by page: a tenth of an audit, a quarter of a run of a million requests. And the garbage collector looks after
each 700 objects, which while modules are loaded is a tenth of the time, and once more at the end, when all goes anyway.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
from contextlib import suppress
from typing import Final

TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
ARENA_MAX: Final = -8
"""Numbers of options of ``mallopt`` (glibc, malloc.h)."""
KEPT_BYTES: Final = 256 << 20
"""Memory at the end of the heap that is kept for the next array; large runs give it back (:mod:`clustersim.memory`)."""
LARGEST_BYTES: Final = 32 << 20
"""Arrays up to here are put on the heap: the most that glibc allows."""
PLAIN_PAGES: Final = ("NUMPY_MADVISE_HUGEPAGE", "0")
"""numpy asks for pages of 2 MB, for which Linux moves others out of the way: the system's share of an audit of a
million requests was 9 to 11 s with them and 4 s without, and the rest was the same."""
ONE_THREAD: Final = ("OPENBLAS_NUM_THREADS", "1")
"""Nothing here is a large product of matrices; the others' threads would wait for one all the same, and spin."""
FILES: Final = 1 << 16
"""That may be open, where the machine allows so many: two for each 100,000 requests are mapped at a time."""
OBJECTS: Final = 250_000
"""New objects after which cycles among them are looked for: some 50 MB, and 20 ms each time."""


def keep_memory() -> None:
    """Take memory as one command does best that ends when its work is done."""
    for setting in (PLAIN_PAGES, ONE_THREAD):  # read when numpy is imported, here and in workers
        os.environ.setdefault(*setting)
    gc.set_threshold(OBJECTS, 20, 20)
    atexit.register(gc.freeze)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # of glibc alone
        mallopt(MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(ARENA_MAX, 1)  # what one thread frees the others take
    with suppress(ImportError, OSError, ValueError):  # not every platform has a limit, or moves it
        import resource

        files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
        if files != resource.RLIM_INFINITY and files < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
