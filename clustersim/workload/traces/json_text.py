"""JSON of traces: numbers as decimals, values by path (``usage.prompt_tokens``), and where a path leads in the text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from clustersim.errors import InputError, Problem, unreadable
from clustersim.workload.traces.text import MAX_PROBLEMS, TraceText, shorten

Step = str | int
"""A key of an object, or the number of an entry of a list."""
Fault = tuple[list[Step], str]
"""Steps to a place, message."""

ABSENT: Final = object()
_BLANK: Final = re.compile(r"[ \t\r\n]*")


def parsed(file: TraceText, text: str, expected: str, *, line: int | None = None) -> Any:
    """Return what a JSON text says, which is a line of a file or all of it; no key of an object may be there twice.

    Raises
    ------
    InputError
        When it is no JSON.
    """
    try:
        return json.loads(text, parse_float=_decimal, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        message, column = f"cannot be read as JSON: {unreadable(error)}; expected {expected}", None
        if isinstance(error, json.JSONDecodeError):
            line, column = line or error.lineno, error.colno
        raise InputError(file.problem(message, line=line, column=column)) from None


def steps_to(record: Mapping[str, Any], key: str) -> list[Step]:
    """Return the keys that lead to a value: the key as such where there is one, else its parts between dots."""
    return [key] if key in record else [*key.split(".")]


def value_at(record: Mapping[str, Any], key: str) -> Any:
    """Return the value that a key or a path leads to, or ``ABSENT``."""
    value: Any = record
    for step in steps_to(record, key):
        value = value.get(step, ABSENT) if isinstance(value, dict) else ABSENT
    return value


def offset_of(text: str, steps: Sequence[Step]) -> int | None:
    """Return where the key or the entry begins to which steps lead in a JSON text; None where there is none."""
    scan = json.JSONDecoder().raw_decode
    at = place = _past_blank(text, 0)
    for step in steps:
        opening, at, number = text[at], at + 1, 0
        if opening not in "{[":
            return None
        while True:
            place = at = _past_blank(text, at)
            if text[at] in "}]":
                return None
            found: Step = number
            if opening == "{":
                found, at = scan(text, at)
                at = _past_blank(text, _past_blank(text, at) + 1)  # what follows the colon
            if found == step:
                break
            at = _past_blank(text, scan(text, at)[1])
            at, number = at + (text[at] == ","), number + 1
    return place


def placed(file: TraceText, steps: Sequence[Step], message: str) -> Problem:
    """Return a problem at the place to which steps lead in a file that is one JSON text, as far as they lead."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
    at = next(at for end in range(len(steps), -1, -1) if (at := offset_of(file.text, steps[:end])) is not None)
    line, column = file.place(at)
    return Problem(message=message, file=file.name, line=line, column=column, path=path)


def placed_error(file: TraceText, wrong: Sequence[Fault]) -> InputError:
    """Return the error for what is wrong in a file that is one JSON text; only what is shown is looked up in it."""
    return file.error([placed(file, *one) for one in wrong[:MAX_PROBLEMS]], len(wrong))


def json_words(value: object) -> str:
    """Return a value as JSON writes it, cut for a message."""
    return shorten(json.dumps(value, default=str, ensure_ascii=False))


def _past_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return at if match is None else match.end()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.60} is there twice")
    return found


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"the exponent of {shorten(text)} is out of range") from None
