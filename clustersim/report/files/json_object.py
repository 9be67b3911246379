"""A JSON object with lists that are longer than memory, written a part at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TextIO

import numpy as np

BATCH: Final = 4096
"""Values of a list that are written at a time."""


def write_object(file: TextIO, entries: Mapping[str, Any]) -> None:
    """Write a JSON object as ``json.dump`` would, its lists a part at a time: some are longer than memory."""
    file.write("{")
    for number, (key, value) in enumerate(entries.items()):
        file.write(f"{', ' if number else ''}{json.dumps(key)}: ")
        if isinstance(value, str) or not isinstance(value, Iterable):
            file.write(json.dumps(value, allow_nan=False))
        else:
            _write_list(file, value)
    file.write("}")


def _write_list(file: TextIO, values: Iterable[Any]) -> None:
    file.write("[")
    between = ""
    for part in _parts(values):
        file.write(between + json.dumps(part, allow_nan=False)[1:-1])
        between = ", "
    file.write("]")


def _parts(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the values in lists of a bounded length, as plain numbers."""
    if isinstance(values, np.ndarray):
        yield from (values[first : first + BATCH].tolist() for first in range(0, len(values), BATCH))
        return
    part: list[Any] = []
    for value in values:
        part.append(value)
        if len(part) == BATCH:
            yield part
            part = []
    if part:
        yield part
