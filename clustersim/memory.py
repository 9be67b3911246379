"""Memory that the process holds and does not use, given back to the system where much of it lies between what it uses.

Commands keep what they free for the next array (:mod:`clustersim.cli.memory`), and what a phase of a large run leaves
are holes: up to 0.3 GB of a million requests. Only the audit, which takes most, gives them back: each time costs as
many pages anew. After each phase it was 2 to 6 of 36 CPU s more, and the same peak of 1.49 GB.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

MANY: Final = 1 << 17
"""Rows of which a phase has arrays of a MB and more."""


def give_back(rows: int) -> None:
    """Give free memory back, also from the middle of the heap, after a phase that looked at so many rows.

    The next phase takes it anew, page by page: 0.1 to 1 s for 300 MB. So nothing is done for few rows.
    """
    if rows < MANY or sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # of glibc alone
        trim(0)
