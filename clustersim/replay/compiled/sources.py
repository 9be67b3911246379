"""What tells the source of modules whose functions are compiled into one: the compiler looks at one file alone."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import ModuleType


def source_of(*modules: ModuleType) -> int:
    """Return a number that is another one when one of the modules is another one."""
    return zlib.crc32(b"".join(Path(str(one.__file__)).read_bytes() for one in modules))
