"""Files and folders that are complete or absent: written beside their place under another name, then renamed.

Whoever writes holds a lock on what is beside. The system lets go of it however a program ends, so what nobody holds was
left behind by one that was killed, and the next one that writes into the same folder removes it. A place that is taken
changes hands by an exchange of both names, one call of the kernel, so a kill at any moment leaves the earlier files or
the new ones. Where a system has no such call, a kill between two renames leaves the earlier folder as ``.NAME….old``,
and the next writer puts it back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from clustersim.errors import InputError, Problem

with suppress(ImportError):  # not on Windows, where nobody can tell what is in use, so nothing is swept
    import fcntl

Kind: TypeAlias = Literal["file", "folder", "replaced"]
_BESIDE: Final = re.compile(r"\.(?P<name>.+)\.clustersim-[0-9a-f]{8}\.(?P<what>tmp|old)", re.DOTALL)
_LONGEST: Final = 200
"""Letters of a name that are shown."""
_UNDER_WAY: Final[dict[Path, Sequence[Path]]] = {}
"""What this process is writing now, and the folders around it that were made for that."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to: it becomes ``path`` when the block ends, and vanishes when it raises.

    A link is followed, so that what it points to is replaced and not the link.

    Raises
    ------
    InputError
        When the folder does not exist or can't be written, the disk is full, or ``path`` is no plain file.
    """
    try:
        place = _free(path, "file")
        with _beside(place, folder=False) as beside:
            yield beside
            beside.chmod(0o666 & ~_umask())  # what open() would have given
            os.replace(beside, place)
    except OSError as error:
        raise InputError(unwritable(path, error)) from None


@contextmanager
def folder_written_whole(path: Path) -> Iterator[Path]:
    """Yield a folder to write into: it becomes ``path`` when the block ends, and vanishes when it raises.

    What was at ``path`` is replaced as a whole; folders around it are made, and removed when the block raises.

    Raises
    ------
    OSError
        When it can't be written.
    """
    place = Path(os.path.realpath(path))
    missing = [parent for parent in place.parents if not parent.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _beside(place, folder=True, missing=missing) as beside:
            yield beside
            beside.chmod(0o777 & ~_umask())
            _take_place(beside, place)
    except BaseException as failed:
        _remove_empty(missing)
        if isinstance(failed, OSError) and failed.errno is not None and _is_beside(failed.filename, place):
            raise OSError(failed.errno, failed.strerror, str(path)) from None
        raise


def _is_beside(name: object, place: Path) -> bool:
    """Return whether what could not be written is what only this module knows the name of, or has none."""
    return name is None or (isinstance(name, str) and place.name in name and ".clustersim-" in name)


def refuse_unwritable(path: Path, option: str = "", kind: Kind = "file") -> None:
    """Refuse, before long work, a place where nothing can be written; nothing is left there.

    Parameters
    ----------
    path : Path
    option : str
        That names it.
    kind : str
        A ``file``, a ``folder`` to write files into, or one that is ``replaced`` as a whole; those around it are made.

    Raises
    ------
    InputError
        With the reason.
    """
    try:
        place = _free(path, kind)
        if kind == "folder" and place.is_dir():
            place /= "new"
        above = place.parent if kind == "file" else next(parent for parent in place.parents if parent.exists())
        with _beside(above / place.name, folder=kind != "file"):
            pass
    except OSError as error:
        raise InputError(unwritable(path, error, option, kind)) from None


def unwritable(path: Path, error: OSError, option: str = "", kind: Kind = "file") -> Problem:
    """Return the problem of a place where something can't be written, long names cut."""
    name, reason = str(path), error.strerror or str(error)
    name = name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"
    what = "file in a folder" if kind == "file" else "folder"
    message = f"cannot be written ({reason}); name a {what} that can"
    return Problem(path=option, message=f"{name}: {message}") if option else Problem(file=name, message=message)


def _free(path: Path, kind: Kind) -> Path:
    """Return where a name leads; links are followed, so that what they point to is replaced and not they.

    Raises
    ------
    OSError
        When something of another kind is there, or it is no name.
    """
    if str(path) == "-":
        raise OSError("it is no name, and standard output is not written to here")
    if "\0" in str(path):
        raise OSError("a null byte in the name")
    place, expected = Path(os.path.realpath(path)), "file" if kind == "file" else "folder"
    if not place.name:
        raise OSError("it is the root of all folders")
    there = "folder" if place.is_dir() else "file" if place.is_file() else "pipe or device"
    if there != expected and place.exists():
        raise OSError(f"it is a {there}; expected a {expected}")
    if kind == "file" and not place.parent.is_dir():
        raise OSError(f"there is no folder {path.parent if not path.is_symlink() else place.parent}")
    return place


def _take_place(beside: Path, place: Path) -> None:
    """Give a folder the name of another, which may be there."""
    if not place.exists():
        os.replace(beside, place)
    elif not _exchanged(beside, place):
        replaced = beside.with_suffix(".old")
        try:
            try:
                os.replace(place, replaced)
                os.replace(beside, place)
            finally:
                _settle(replaced, place)
        finally:  # once more, as in ``_beside``
            _settle(replaced, place)


def _settle(replaced: Path, place: Path) -> None:
    """Remove what was replaced, or put it back where nothing has taken its place: whoever wrote was asked to end."""
    if os.path.lexists(place):
        shutil.rmtree(replaced, ignore_errors=True)
    elif replaced.exists():
        os.replace(replaced, place)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; return whether this system can."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # its library has no such call
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):  # nor its kernel or file system
        return False
    raise OSError(code, os.strerror(code), str(other))


@contextmanager
def _beside(place: Path, *, folder: bool, missing: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a new, locked file or folder beside a place; what has its name in the end is removed."""
    sweep(place.parent)
    while True:
        beside = place.with_name(f".{place.name}.clustersim-{secrets.token_hex(4)}.tmp")
        _UNDER_WAY[beside] = missing
        try:
            try:
                if folder:
                    beside.mkdir(mode=0o700)
                else:
                    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                with _locked(beside, wait=True) as mine:
                    if mine:
                        yield beside
                        return
            finally:
                _remove(beside)
        finally:  # once more, should a signal have come in the middle of that: a second one ends it (``cli.signals``)
            _remove(beside)
            del _UNDER_WAY[beside]


def abandon() -> None:
    """Remove what is not written whole yet, since this process ends at once."""
    for beside, missing in [*_UNDER_WAY.items()]:
        _remove(beside)
        _remove_empty(missing)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # somebody else has put something there
            folder.rmdir()


def sweep(folder: Path) -> None:
    """Remove what programs that were killed left in a folder, and put back what one of them had taken away."""
    with suppress(OSError):
        for left in sorted(folder.iterdir()):
            found = _BESIDE.fullmatch(left.name)
            if found is None or left.is_symlink():
                continue
            with _locked(left, wait=False) as nobodys:
                if nobodys and found["what"] == "old" and not os.path.lexists(left.with_name(found["name"])):
                    os.replace(left, left.with_name(found["name"]))
                elif nobodys:
                    _remove(left)


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock on a file or folder; yield whether it is held, and ``path`` still stands for what is locked."""
    if "fcntl" not in globals():
        yield wait
        return
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # somebody has removed it, or it is somebody else's
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:  # somebody has it; or the file system knows no locks, and then only what is new is ours
            yield wait
        else:
            yield os.path.lexists(path) and os.path.samestat(os.fstat(handle), os.lstat(path))
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
