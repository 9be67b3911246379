"""Files that are complete or absent: written beside their place under another name, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clustersim.errors import InputError, Problem


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to: it becomes ``path`` when the block ends, and vanishes when it raises.

    A link is followed, so that what it points to is replaced and not the link.

    Raises
    ------
    InputError
        When the folder does not exist or can't be written, the disk is full, or ``path`` is no plain file.
    """
    place = Path(os.path.realpath(path))
    try:
        if place.exists() and not place.is_file():
            raise InputError(_problem(path, "a folder, pipe or device; expected a file"))
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent)
        os.close(handle)
        beside = Path(name)
        try:
            yield beside
            beside.chmod(0o666 & ~_umask())  # what open() would have given; mkstemp makes it private
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(_problem(path, error.strerror or str(error))) from None


def _problem(path: Path, reason: str) -> Problem:
    return Problem(file=str(path), message=f"cannot be written ({reason}); name a file in a folder that can")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
