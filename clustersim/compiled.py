"""Plain functions of numbers, compiled.

A function of the *subset* takes numbers and named tuples of lists, and lists hold numbers or records. It is written
once and runs twice: as it stands over Python lists of objects (:class:`Objects`), or compiled over numpy arrays
(:class:`Arrays`). The subset: attributes of records, places in lists of one dimension (``table[row][place]``), whole
numbers of 64 bits, floats, ``math``. No allocation, no slices, no negative places, no product beyond 63 bits: compiled
code does not notice any of these.
"""

from __future__ import annotations

import os
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Protocol

import numpy as np

HOME: Final = __name__.split(".")[0]
READ_S: Final = 1.0
COMPILE_S: Final = 20.0
"""What it takes to read what was compiled, the compiler itself included, and to compile; 0.4 and 17 s measured."""


def compiled(entry: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the subset, compiled with all functions that it calls; what the compiler made stays on disk.

    Parameters
    ----------
    entry : function
        It takes numbers, arrays and named tuples of arrays.
    """
    from numba.core import config  # which takes a while

    return entry if config.DISABLE_JIT else _compiled(entry)  # type: ignore[attr-defined]


@cache
def _compiled(entry: Callable[..., Any]) -> _Compiled:
    return _Compiled(entry)


class _Compiled:
    """A function that is compiled when it is called with values of types that it has not had."""

    def __init__(self, entry: Callable[..., Any]) -> None:
        from clustersim import compiler

        self.compiler = compiler
        self.entry = entry
        self.arguments = compiler.Arguments()
        self.made: dict[tuple[Any, ...], Callable[[tuple[int, ...]], Any]] = {}
        self.latest: tuple[int, ...] = ()
        self.latest_made: Any = None

    def __call__(self, *values: Any) -> Any:
        numbers = self.arguments.numbers_of(values)
        if numbers is not self.latest:
            kinds = tuple(map(self.compiler.type_of, values))
            if kinds not in self.made:
                self.made[kinds] = self._compile(kinds)
            self.latest, self.latest_made = numbers, self.made[kinds]
        return self.latest_made(numbers)

    def _compile(self, kinds: tuple[Any, ...]) -> Callable[[tuple[int, ...]], Any]:
        functions = {one: callees(one) for one in _with_callees(self.entry)}
        name = f"{_name_of(self.entry)}-{zlib.crc32(repr(kinds).encode()):08x}"
        found = self.compiler.compile_unit(functions, name, kinds)
        _loaded.add(self.entry)
        return found


_loaded: Final[set[Callable[..., Any]]] = set()
"""Functions that this process has compiled or read."""


def is_loaded(entry: Callable[..., Any]) -> bool:
    """Return whether a function is compiled in this process."""
    return entry in _loaded


def compiler_s(entry: Callable[..., Any]) -> float:
    """Return roughly how many seconds it takes until a function is compiled: none where it is in this process."""
    if is_loaded(entry):
        return 0.0
    name = _name_of(entry)
    elsewhere = Path(os.environ.get("NUMBA_CACHE_DIR") or "~/.cache/numba").expanduser()
    try:
        places = [Path(__file__).parent / "__pycache__", *elsewhere.glob("*")]
        tag = f"py{sys.version_info[0]}{sys.version_info[1]}"
        found = any(list(place.glob(f"*{name}-*.{tag}.nbi")) for place in places)
    except OSError:
        found = False
    return READ_S if found else COMPILE_S


@cache
def _with_callees(entry: Callable[..., Any]) -> tuple[FunctionType, ...]:
    """Return a function and all that it calls, each behind those that it calls."""
    found: dict[FunctionType, None] = {}

    def add(function: FunctionType) -> None:
        if function not in found:
            for one in callees(function).values():
                add(one)
            found[function] = None

    assert isinstance(entry, FunctionType)
    add(entry)
    return tuple(found)


def callees(function: FunctionType) -> dict[str, FunctionType]:
    """Return the functions of this project that a function calls, by the name by which it does."""
    known = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    return {
        name: one for name, one in known.items()
        if isinstance(one, FunctionType) and one.__module__.split(".")[0] == HOME
    }  # fmt: skip


@cache
def _name_of(entry: Callable[..., Any]) -> str:
    """Return how a compiled function is called on disk: as it is, and a number that changes with any of the code.

    The compiler itself would look at one file alone.
    """
    parts = []
    for function in _with_callees(entry):
        code, known = function.__code__, function.__globals__
        numbers = {name: known[name] for name in code.co_names if isinstance(known.get(name), int | float)}
        own = function.__module__, function.__name__
        parts.append(repr((own, code.co_code, code.co_consts, code.co_names, numbers)))
    return f"{entry.__module__}.{entry.__name__}-{zlib.crc32(''.join(parts).encode()):08x}"


class Record:
    """What a list holds: whole numbers by name, all 0 at first, and floats where they are named so."""

    __slots__ = ()
    floats: tuple[str, ...] = ()


class Storage(Protocol):
    """Makes the lists that functions of the subset work on."""

    def numbers(self, count: int, fill: int = 0) -> Any:
        """Return so many whole numbers."""

    def table(self, rows: int, count: int, fill: int = 0) -> Any:
        """Return rows of so many whole numbers each."""

    def records(self, kind: type[Record], count: int) -> Any:
        """Return so many records."""

    def grid(self, kind: type[Record], rows: int, count: int) -> Any:
        """Return rows of so many records each."""

    def sparse_grid(self, kind: type[Record], rows: int, count: int) -> Any:
        """Return rows of so many records each, most of which are never used."""

    def column(self, numbers: Any) -> Any:
        """Return numbers that are read alone, given as an array."""

    def log(self, count: int) -> Any:
        """Return room for so many whole numbers that :func:`logged` reads."""


class Objects:
    """Lists of objects, for functions as they stand."""

    def numbers(self, count: int, fill: int = 0) -> list[int]:
        """Return so many whole numbers."""
        return [fill] * count

    def table(self, rows: int, count: int, fill: int = 0) -> list[list[int]]:
        """Return rows of so many whole numbers each."""
        return [[fill] * count for _ in range(rows)]

    def records(self, kind: type[Record], count: int) -> list[Any]:
        """Return so many records."""
        return [_blank(kind) for _ in range(count)]

    def grid(self, kind: type[Record], rows: int, count: int) -> list[list[Any]]:
        """Return rows of so many records each."""
        return [self.records(kind, count) for _ in range(rows)]

    def sparse_grid(self, kind: type[Record], rows: int, count: int) -> list[Any]:
        """Return rows of so many records each, most of which are never used: they are made when they are."""
        return [_Sparse(kind, count) for _ in range(rows)]

    def column(self, numbers: Any) -> list[Any]:
        """Return numbers that are read alone, given as an array."""
        found: list[Any] = numbers.tolist()
        return found

    def log(self, count: int) -> array[int]:
        """Return room for so many whole numbers that :func:`logged` reads."""
        return array("q", bytes(8 * count))


class Arrays:
    """Arrays of numbers and of records, for compiled functions."""

    def numbers(self, count: int, fill: int = 0) -> Any:
        """Return so many whole numbers."""
        return np.full(count, fill, np.int64)

    def table(self, rows: int, count: int, fill: int = 0) -> Any:
        """Return rows of so many whole numbers each."""
        return np.full((rows, count), fill, np.int64)

    def records(self, kind: type[Record], count: int) -> Any:
        """Return so many records."""
        return np.zeros(count, _type_of(kind))

    def grid(self, kind: type[Record], rows: int, count: int) -> Any:
        """Return rows of so many records each."""
        return np.zeros((rows, count), _type_of(kind))

    def sparse_grid(self, kind: type[Record], rows: int, count: int) -> Any:
        """Return rows of so many records each, most of which are never used."""
        return self.grid(kind, rows, count)

    def column(self, numbers: Any) -> Any:
        """Return numbers that are read alone; to a compiler those that may be written to are another type."""
        found = np.ascontiguousarray(numbers).view()
        found.flags.writeable = False
        return found

    def log(self, count: int) -> Any:
        """Return room for so many whole numbers that :func:`logged` reads."""
        return np.empty(count, np.int64)


def logged(room: Any, count: int, width: int) -> Any:
    """Return what the first numbers of a log are, as rows of so many; a copy."""
    return np.frombuffer(room, np.int64, count).reshape(-1, width).copy() if count else np.empty((0, width), np.int64)


def _type_of(kind: type[Record]) -> Any:
    return np.dtype([(name, np.float64 if name in kind.floats else np.int64) for name in _fields(kind)])


def _fields(kind: type[Record]) -> Iterable[str]:
    return kind.__slots__


def _blank(kind: type[Record]) -> Record:
    found = kind()
    for name in _fields(kind):
        setattr(found, name, 0.0 if name in kind.floats else 0)
    return found


def set_field(records: Any, at: int, name: str, value: float) -> None:
    """Set an attribute of one of the records of a list, of whichever storage."""
    if isinstance(records, np.ndarray):
        records[name][at] = value
    else:
        setattr(records[at], name, value)


def field_of(records: Any, at: int, name: str) -> Any:
    """Return an attribute of one of the records of a list, of whichever storage."""
    return records[name][at] if isinstance(records, np.ndarray) else getattr(records[at], name)


class _Sparse(dict[int, Any]):
    """So many records by their places, made when somebody asks for them."""

    def __init__(self, kind: type[Record], count: int) -> None:
        super().__init__()
        self.kind = kind
        self.count = count

    def __missing__(self, place: int) -> Record:
        if not 0 <= place < self.count:
            raise IndexError(f"there are {self.count} records, and none at {place}")
        found = self[place] = _blank(self.kind)
        return found
