"""A column that grows: one value while all rows have the same, arrays in memory, and a file when they are many.

A run of 10 million requests on 1,250 replicas records 4 GB. What a column has beyond some MB goes to a file without a
name (where ``TMPDIR`` says), and is mapped when it is read: the system takes such pages back when it needs memory, and
a replay does not hold them at all. What follows gives them up phase by phase (:func:`clustersim.memory.let_go`).
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from tempfile import TemporaryFile
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from clustersim.memory import let_go, mapped

Name = TypeVar("Name")

PUT_AWAY_BYTES: Final = 1 << 22
"""Of a column in memory, after which it goes to a file: a million requests of one replica have some 40 such columns."""
KEPT_BYTES: Final = 1 << 27
"""Of all columns of one record, up to which none of them does: some 300,000 requests of one replica."""
SHELVED_BYTES: Final = 1 << 20
"""Of columns that go to a file together: less is not worth one."""
PART: Final = 1 << 15
"""Rows that are looked at together: what is worked out of them stays near the processor, in memory that is there."""


class AllColumns:
    """Columns of one record, which go to files from when they have many bytes on."""

    def __init__(self) -> None:
        self.are_many = False
        self._bytes = 0
        self._columns: weakref.WeakSet[Column] = weakref.WeakSet()

    def add(self, column: Column) -> None:
        """Have one more column."""
        self._columns.add(column)

    def count(self, more: int) -> None:
        """Take note of what a column got, and put all of them away where that makes them many."""
        self._bytes += more
        if self._bytes >= KEPT_BYTES and not self.are_many:
            self.are_many = True
            for column in tuple(self._columns):
                column.spare()


class Column:
    """One column.

    Parameters
    ----------
    to : str or dtype
        Its type; what is appended has it.
    together : AllColumns, optional
        The record that it is of; one of none is many by itself.
    """

    def __init__(self, to: Any, together: AllColumns | None = None) -> None:
        self.type: np.dtype[Any] = np.dtype(to)
        self._together = together
        if together is not None:
            together.add(self)
        self._parts: list[Any] = []
        self._held = 0
        """Bytes of the parts that are no single value, so that they take memory."""
        self._file: Any = None
        self._written = 0
        self._has_room = True

    def append(self, part: Any) -> None:
        """Put values behind the others; they are not copied."""
        self._parts.append(part)
        if not is_one(part):
            self._held += part.nbytes
            if self._together is not None:
                self._together.count(part.nbytes)
            self.spare()

    def spare(self) -> None:
        """Put away what is held where it is much, and that of the record."""
        if self._held >= PUT_AWAY_BYTES and (self._together is None or self._together.are_many):
            self._put_away()

    def take(self, other: Column) -> None:
        """Put the values of another column, which gives them up, behind the others."""
        if other._written:
            other.whole()
        self._parts += other._parts
        self._held += sum(part.nbytes for part in other._parts if not is_one(part))
        other._parts, other._held = [], 0
        self.spare()

    def whole(self) -> Any:
        """Return all values as one array, which cannot be written to: the next call returns it again.

        One that is the same in all rows takes the memory of one value.
        """
        found = self._joined()
        found.flags.writeable = False
        self._parts, self._held = [found], 0
        return found

    def _joined(self) -> Any:
        parts = [part for part in self._parts if len(part)]
        if len(parts) == 1 and not self._written:
            return parts[0]
        if parts and not self._written and all(is_one(part) and part[0] == parts[0][0] for part in parts):
            return constant(parts[0][0], sum(map(len, parts)))
        few = self._together is not None and not self._together.are_many
        if self._written or (not few and sum(part.nbytes for part in parts) >= PUT_AWAY_BYTES):
            self._put_away()
        first = self._mapped() if self._written else np.empty(0, self.type)
        return np.concatenate([first, *self._parts]) if self._parts else first

    def _put_away(self) -> None:
        """Write what is held behind what the file has; where there is no room for it, all further rows stay here."""
        if not self._has_room:
            return
        try:
            if self._file is None:
                self._file = TemporaryFile(buffering=0)  # noqa: SIM115  (open until it is mapped)
                weakref.finalize(self, self._file.close)
            total = sum(part.nbytes for part in self._parts)
            _leave_room(self._file, self._written + 2 * total)
            self._file.seek(self._written)
            for part in self._parts:
                _write(self._file, part)
        except OSError:
            self._has_room = False
            self._give_back()
            return
        self._written += total
        self._parts, self._held = [], 0

    def _give_back(self) -> None:
        """Give back the room of what could not be written to its end."""
        if self._file is None:
            return
        if self._written:
            self._file.truncate(self._written)
        else:
            self._file.close()
            self._file = None

    def _mapped(self) -> Any:
        """Return what was written; what comes next begins another file."""
        pages = mapped(self._file, self._written)
        self._file.close()
        self._file, self._written = None, 0
        return np.frombuffer(pages, self.type)


AT_A_TIME: Final = 1 << 7
"""Such parts after which pages of mapped files are given up: 32 MB of a column."""


def parts(count: int, times: int = 1) -> Iterator[slice]:
    """Split so many rows into slices of ``PART``, or of so many times as many; pages behind are given up."""
    for low in range(0, count, PART * times):
        yield slice(low, min(low + PART * times, count))
        if not (low // PART + times) % AT_A_TIME:
            let_go()


def by_parts(to: Any, count: int, values_of: Callable[[slice], Any]) -> npt.NDArray[Any]:
    """Return a column of so many rows, of which some are worked out at a time: from a file where they are many."""
    column = Column(to)
    for some in parts(count, 8):
        column.append(values_of(some))
    found: npt.NDArray[Any] = column.whole()
    return found


def same(one: Any, other: Any) -> bool:
    """Return whether two columns are alike in type and in all rows."""
    if len(one) != len(other) or one.dtype != other.dtype:
        return False
    return all(np.array_equal(one[some], other[some]) for some in parts(len(one), 8))


def one_after_the_other(tables: Iterable[Mapping[Name, Any]]) -> dict[Name, Any]:
    """Return the rows of tables of the same columns as one table, from files where there are many.

    Each table may be dropped when the next one is asked for. Columns that are slices of one array and lie one after the
    other there are not copied.
    """
    found: dict[Name, list[Any] | Column] = {}
    for number, table in enumerate(tables, 1):
        for name, values in table.items():
            before = found.setdefault(name, [])
            if isinstance(before, list):
                if not before or _goes_on(before, values):
                    before.append(values)
                    continue
                column = found[name] = Column(values.dtype)
                for part in before:
                    column.append(part)
            found[name].append(values)
        if not number % 16:
            let_go()
    return {name: _as_one(parts) if isinstance(parts, list) else parts.whole() for name, parts in found.items()}


def _goes_on(before: list[Any], column: Any) -> bool:
    """Whether a column lies behind others in the array of which all are slices."""
    of, last = before[0].base, before[-1]
    if not isinstance(of, np.ndarray) or of.dtype != column.dtype or of.ndim != 1 or is_one(of):
        return False
    there = all(one.base is of and one.flags.c_contiguous for one in (last, column))
    return there and bool(column.ctypes.data == last.ctypes.data + last.nbytes)


def _as_one(slices: list[Any]) -> Any:
    """Return the part of an array that slices are which lie one after the other."""
    if len(slices) == 1:
        return slices[0]
    of = slices[0].base
    begin = (slices[0].ctypes.data - of.ctypes.data) // of.itemsize
    return of[begin : begin + sum(map(len, slices))]


def shelved(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns from a file of their own; few, or where it has no room, as they are. None can be written to."""
    for column in columns.values():
        column.flags.writeable = False
    there = [name for name, column in columns.items() if not is_one(column)]
    there.sort(key=lambda name: -columns[name].itemsize)  # so that each begins at a multiple of it
    total = sum(columns[name].nbytes for name in there)
    if total < SHELVED_BYTES:
        return dict(columns)
    let_go()
    try:
        with TemporaryFile(buffering=0) as file:
            _leave_room(file, 2 * total)
            for name in there:
                _write(file, columns[name])
            pages = mapped(file, total)
    except OSError:
        return dict(columns)
    found, at = dict(columns), 0
    for name in there:
        found[name] = np.frombuffer(pages, columns[name].dtype, len(columns[name]), at)
        at += columns[name].nbytes
    return found


def room(to: Any, count: int) -> npt.NDArray[Any]:
    """Return room for a column that is not written from its first row to its last: in a file where it is large."""
    size = np.dtype(to).itemsize * count
    if size < SHELVED_BYTES or not hasattr(os, "posix_fallocate"):
        return np.empty(count, to)
    try:
        with TemporaryFile(buffering=0) as file:
            _leave_room(file, 2 * size)
            os.posix_fallocate(file.fileno(), 0, size)  # so that no page lacks when it is written to
            return np.frombuffer(mapped(file, size, mmap.ACCESS_WRITE), to)
    except OSError:
        return np.empty(count, to)


def _leave_room(file: Any, needed: int) -> None:
    """Refuse to write where fewer bytes are free: results may go there, too, and have as much left as is taken."""
    if hasattr(os, "fstatvfs"):
        found = os.fstatvfs(file.fileno())
        if found.f_bavail * found.f_frsize < needed:
            raise OSError(errno.ENOSPC, "no space is left for columns")


def _write(file: Any, part: Any) -> None:
    """Write values, and give up the pages that they were read from."""
    left = np.ascontiguousarray(part).data.cast("B") if len(part) else memoryview(b"")
    while left:
        left = left[file.write(left) :]
    pages = getattr(part.base, "base", None)
    if isinstance(pages, memoryview) and isinstance(pages.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.obj.madvise(mmap.MADV_DONTNEED)


def is_one(column: Any) -> bool:
    """Whether a column is stored as one value for all of its rows."""
    return len(column) > 0 and not any(column.strides)


def constant(value: Any, rows: int) -> Any:
    """Return a column that has a numpy integer in all rows: ``numpy.broadcast_to``, in a fifth of the time."""
    return np.ndarray(rows, value.dtype, value, strides=(0,))
