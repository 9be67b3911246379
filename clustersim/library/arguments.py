"""Arguments of the library's functions: what each may be, and errors that name it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from clustersim.clock import to_ns
from clustersim.errors import InputError, Problem
from clustersim.units import UnitError, parse

_LONGEST_S: Final = 2.0**33  # 272 years: int64 nanoseconds hold it


@contextmanager
def parameters(**names: str) -> Iterator[None]:
    """Call options of commands what they are here, parameters: by these names, or without their dashes."""
    try:
        yield
    except InputError as error:
        found = [(one, one.path.removeprefix("--")) for one in error.problems]
        raise InputError(
            replace(one, path=names.get(bare, bare).replace("-", "_") if bare != one.path else bare)
            for one, bare in found
        ) from None


def whole_number(name: str, value: object, least: int = 0) -> int | None:
    """Return a whole number of at least so much, or None.

    Raises
    ------
    TypeError
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise TypeError(f"{name}: expected a whole number of at least {least}, or None, but found {value!r}")
    return int(value)


def path_given(name: str, value: object) -> Path:
    """Return a path.

    Raises
    ------
    TypeError
    InputError
        For a text that no file can be called.
    """
    if not isinstance(value, str | Path):
        raise TypeError(f"{name}: expected a path, but found {value!r}")
    if "\0" in str(value):
        raise InputError(Problem(path=name, message=f"no file can be called {value!r}"))
    return Path(value)


def text_given(name: str, value: object) -> str:
    """Return a text.

    Raises
    ------
    TypeError
    """
    if not isinstance(value, str | Path):
        raise TypeError(f"{name}: expected a name or a path, but found {value!r}")
    return str(value)


def size_bytes(name: str, size: object) -> int:
    """Return a size such as ``"30 MB"`` in bytes.

    Raises
    ------
    InputError
    """
    try:
        found = int(parse(size, "bytes", "30 MB"))
    except UnitError as error:
        raise InputError(Problem(path=name, message=str(error))) from None
    if found < 1:
        raise InputError(Problem(path=name, message=f"expected more than nothing, such as '30 MB', but found {size!r}"))
    return found


def instant_ns(at: object) -> int:
    """Return an instant in ns; what lies outside of any run makes no difference.

    Raises
    ------
    InputError
    """
    try:
        real = isinstance(at, int | float | np.integer | np.floating) and not isinstance(at, bool)
        seconds = float(at) if real else parse(at, "time", "12 s")  # type: ignore[arg-type]
    except UnitError as error:
        raise InputError(Problem(path="at", message=str(error))) from None
    if math.isnan(seconds):
        raise InputError(Problem(path="at", message=f"expected an instant such as '12 s', but found {at!r}"))
    return to_ns(max(-_LONGEST_S, min(seconds, _LONGEST_S)))
