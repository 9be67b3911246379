"""JSON as strict as a graph needs it, and the line and column of a path in its text.

The standard reader keeps the last of two equal keys, and takes ``NaN`` and numbers without limit; here these are
problems with a place. The text is walked token by token only to find a place: that takes ten times as long as reading.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from clustersim.errors import InputError, Problem
from clustersim.values import dataclass

MOST_DIGITS: Final = 40
"""Of a whole number; ids that are hashes have up to 39."""

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


class _SuspectError(Exception):
    """Something that the standard reader would take, and a graph can't have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A key or the beginning of a value: its dotted path, where it begins, and its text."""

    path: str
    offset: int
    text: str
    is_key: bool = False
    repeated: bool = False


_WANTED: Final = {
    "Expecting value": "a value",
    "Expecting property name enclosed in double quotes": "a key in double quotes",
}


def parsed(text: str, file: str | None = None) -> Any:
    """Return what a JSON text says.

    Raises
    ------
    InputError
        With line and column: no JSON, a key twice in one object, a number that is none or has no end, or objects
        nested too deeply.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse, parse_int=_whole, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        raise InputError(
            Problem(
                file=file, line=error.lineno, column=error.colno, message=f"no JSON: {_told(error)}",
                quotes='"nodes"' in text,
            )
        ) from None  # fmt: skip
    except RecursionError:
        raise InputError(Problem(file=file, message="nested too deeply")) from None
    except _SuspectError:
        raise InputError(_suspects(text, file)) from None


def _told(error: json.JSONDecodeError) -> str:
    """Say what was expected where, and of which kind what is there is: it may be of a file that is not ours."""
    there = error.doc[error.pos : error.pos + 1]
    kind = "a word without quotes" if there.isalpha() else "a number" if there.isdigit() else repr(there)
    found = "the end of the text" if not there else kind
    message = f"{error.msg[:1].lower()}{error.msg[1:]}"
    if message.startswith("expecting "):
        return f"expected {_WANTED.get(error.msg, message.removeprefix('expecting '))}, but found {found}"
    return f"{message}, found {found}" if error.msg == "Extra data" else message


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _SuspectError
    return found


def _refuse(constant: str) -> Any:
    raise _SuspectError(constant)


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _SuspectError
    return int(digits)


def _finite(digits: str) -> float:
    found = float(digits)
    if found in (float("inf"), float("-inf")):
        raise _SuspectError
    return found


def _suspects(text: str, file: str | None) -> list[Problem]:
    lines = _Lines(text)
    found = []
    for token in tokens(text):
        if (message := _fault(token)) is not None:
            line, column = lines.place(token.offset)
            found.append(Problem(file=file, line=line, column=column, path=token.path, message=message))
    return found


def _fault(token: Token) -> str | None:
    if token.is_key:
        return "the key is there twice; keep one of them" if token.repeated else None
    if token.text in ("NaN", "Infinity", "-Infinity"):
        return f"expected a number, but found {token.text}, which JSON does not have"
    if not token.text.startswith(("-", *"0123456789")):
        return None
    try:
        (_whole if token.text.lstrip("-").isdecimal() else _finite)(token.text)
    except _SuspectError:
        return f"expected a number of usual size, but found {token.text:.30}"
    return None


def located(problems: Iterable[Problem], text: str) -> list[Problem]:
    """Return problems with the line and column of their paths, or of the nearest part of a path that is there."""
    found = list(problems)
    wanted = {part for problem in found for part in _parents(problem.path)}
    offsets: dict[tuple[str, bool], int] = {}
    for token in tokens(text) if wanted else ():
        if token.path in wanted:
            offsets.setdefault((token.path, token.is_key), token.offset)
    lines = _Lines(text)
    return [_at(problem, offsets, lines) for problem in found]


def _at(problem: Problem, offsets: Mapping[tuple[str, bool], int], lines: _Lines) -> Problem:
    of_key = problem.message.startswith("unknown key")
    known = [place for part in _parents(problem.path) for place in ((part, of_key), (part, False)) if place in offsets]
    if problem.line is not None or not known:
        return problem
    line, column = lines.place(offsets[known[0]])
    return replace(problem, line=line, column=column)


def _parents(path: str) -> list[str]:
    """Return a path and the paths around it, the longest first."""
    ends = [at for at, letter in enumerate(path) if letter in ".["]
    return [part for part in (path, *(path[:end] for end in reversed(ends))) if part]


def tokens(text: str) -> Iterator[Token]:
    """Yield every key and every value of a JSON text, in order, with its path such as ``nodes[3].ranks[0]``."""
    around: list[tuple[str, set[str] | None, int]] = []  # per open object or list: its path, its keys, its items
    path, expects_key = "", False
    for match in _TOKEN.finditer(text):
        word = match[0]
        if word in ("}", "]"):
            if around:
                around.pop()
            continue
        if word == ":":
            continue
        if word == ",":
            if around:
                outer, keys, items = around[-1]
                around[-1] = (outer, keys, items + 1)
                path, expects_key = f"{outer}[{items + 1}]", keys is not None
            continue
        if expects_key and around:
            outer, keys, _ = around[-1]
            key = json.loads(word) if word.startswith('"') else word
            path = f"{outer}.{key}" if outer else key
            yield Token(path=path, offset=match.start(), text=word, is_key=True, repeated=key in (keys or ()))
            if keys is not None:
                keys.add(key)
            expects_key = False
            continue
        yield Token(path=path, offset=match.start(), text=word)
        if word in ("{", "["):
            around.append((path, set() if word == "{" else None, 0))
            expects_key = word == "{"
            path = f"{path}[0]"


class _Lines:
    """Where lines of a text begin."""

    def __init__(self, text: str) -> None:
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column, counted from 1."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1
