"""What is finished, a line per run, on disk as soon as it is: a second start finds it by the content of the run.

Lines are appended to one file, each with a sum of itself: one that a kill cut off, or that somebody changed, is not
read by the next start, which simulates its run again. No two programs write at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from clustersim import __version__, inputs
from clustersim.errors import InputError, Problem
from clustersim.files import refuse_unwritable, unwritable
from clustersim.search.point import Row
from clustersim.units import plural

with suppress(ImportError):  # not on Windows
    import fcntl

NAME: Final = "finished.jsonl"
ENDING_S: Final = 1.0
"""Seconds in which the workers of a program that was killed have ended: they hold what it held."""
_LARGEST: Final = 4 * 1024**3


def key_of(digest: str, audit: bool) -> str:
    """Return what a run is found by: its resolved scenario and the files it names, this version, what was checked."""
    text = json.dumps([digest, __version__, audit])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Journal:
    """Rows of runs by key, and the file that grows with them.

    Parameters
    ----------
    rows : dict
    file : binary file
    """

    def __init__(self, rows: dict[str, Row], file: BinaryIO) -> None:
        self.rows = rows
        self._file = file

    def add(self, key: str, row: Row) -> None:
        """Keep a row, but of a run that is to be tried again."""
        if row.pop("again", False):
            return
        self.rows[key] = row
        try:
            text = json.dumps({"key": key, "row": row}).encode()[1:]
            self._file.write(_head(text) + text + b"\n")
            self._file.flush()
        except OSError as error:
            raise InputError(unwritable(Path(self._file.name).parent, error, "--out", "folder")) from None


@contextmanager
def opened_journal(folder: Path) -> Iterator[Journal]:
    """Open the journal of a folder, which is made where there is none, and removed again where an error
    left it without a row. Whoever interrupts it is told by a note what was kept.

    Raises
    ------
    InputError
        When the folder can't be written, holds something else, or another program writes there now.
    """
    if not os.path.isdir(folder):
        refuse_unwritable(folder, "--out", "folder")
    with suppress(OSError):  # what can't be read is told below
        if not (folder / NAME).exists() and any(one for one in folder.iterdir() if not one.name.startswith(".")):
            message = "is not empty and holds no runs, so nothing is written there; name another folder with --out"
            raise InputError(Problem(file=str(folder), message=message))
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    others: list[BaseException] = []
    try:
        with _locked(folder) as file:
            try:
                rows, length = _read(folder / NAME)
                file.truncate(length)
                try:
                    yield Journal(rows, file)
                except BaseException as error:
                    others.append(error)
                    raise
            except BaseException as error:
                if not os.fstat(file.fileno()).st_size:
                    _removed(folder / NAME, new)
                elif not isinstance(error, Exception):
                    error.add_note(f"kept     {plural(len(rows), 'run')} in {folder} (a second start goes on there)")
                raise
    except OSError as error:
        if error in others:  # of another file, such as standard output
            raise
        raise InputError(unwritable(folder, error, "--out", "folder")) from None


@contextmanager
def _locked(folder: Path) -> Iterator[BinaryIO]:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / NAME).open("ab") as file:
            _alone(file, folder)
            if os.fstat(file.fileno()).st_nlink:  # else who held it found it empty, and removed it
                yield file
                return


def _removed(path: Path, folders: Iterable[Path]) -> None:
    """Remove a file, and folders that are empty then."""
    with suppress(OSError):
        path.unlink()
        for folder in folders:
            folder.rmdir()


def _alone(file: BinaryIO, folder: Path) -> None:
    if "fcntl" not in globals():
        return
    until = time.monotonic() + ENDING_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                message = "another program is writing its runs here; wait for it, or name another folder with --out"
                raise InputError(Problem(file=str(folder), message=message)) from None
            time.sleep(ENDING_S / 20)


def _read(path: Path) -> tuple[dict[str, Row], int]:
    """Return the rows of a journal, and how many of its bytes they are."""
    rows: dict[str, Row] = {}
    length = 0
    for line in inputs.read_bytes(path, most=_LARGEST, name=str(path)).split(b"\n")[:-1]:
        length += len(line) + 1
        head, comma, text = line.partition(b", ")
        if head + comma == _head(text):
            told = json.loads(line)
            rows[told["key"]] = told["row"]
    return rows, length


def _head(text: bytes) -> bytes:
    """Return how a line begins whose other keys are a text."""
    return b'{"sum": "%s", ' % hashlib.blake2b(text, digest_size=8).hexdigest().encode()
