"""From plain data (parsed JSON) to dataclasses, with every problem gathered at its place."""

from __future__ import annotations

import json
import types
from collections.abc import Collection, Hashable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from clustersim.errors import Problem, did_you_mean

Value = TypeVar("Value")

MOST: Final = 2**40
"""Larger whole numbers are no count of anything in a step, and products of them would not be exact."""

_WORDS = {
    int: "a whole number of at least 0", float: "a number", bool: "true or false", str: "a text",
    types.NoneType: "null",
}  # fmt: skip


class PlainReader:
    """Reads plain data; what is wrong with it is gathered in ``problems``.

    Parameters
    ----------
    file : str or None
        Where the data is from, for messages.
    """

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def wrong(self, path: str, message: str) -> None:
        """Note a problem at a dotted path."""
        self.problems.append(Problem(file=self.file, path=path, message=message))

    def unexpected(self, path: str, expected: str, found: Any) -> None:
        """Note that something else was expected at a path."""
        self.wrong(path, f"expected {expected}, but found {as_json(found):.60}")

    def mapping(self, found: Any, keys: Collection[str] | None, path: str) -> Mapping[str, Any]:
        """Return an object with none but these keys (None: any); an empty one, and a problem, when it is none."""
        if not isinstance(found, Mapping):
            self.unexpected(path, "an object", found)
            return {}
        for key in found:
            if keys is not None and key not in keys:
                place = f"{path}.{key}" if path else str(key)
                self.wrong(place, f"unknown key{did_you_mean(str(key), list(keys))}")
        return found

    def items(self, found: Any, path: str) -> list[Any]:
        """Return a list; an empty one, and a problem, when it is none."""
        if not isinstance(found, list):
            self.unexpected(path, "a list", found)
            return []
        return found

    def value(self, found: Any, hint: Any, path: str) -> Any:
        """Return a value of the type ``hint``, lists as tuples; the type's own problem when it is another."""
        if not fits(found, hint):
            self.unexpected(path, wording(hint) + (f" and at most {MOST:,}" if _too_large(found) else ""), found)
        return _as_tuple(found)

    def fields(self, found: Any, kind: type[Value], path: str, **given: Any) -> Value | None:
        """Build a dataclass from an object; the fields in ``given`` were read by the caller.

        Returns
        -------
        kind or None
            None when anything of it was wrong.
        """
        before = len(self.problems)
        any_kind: Any = kind
        hints = hints_of(any_kind)
        known = self.mapping(found, hints, path)
        values = dict(given)
        for field in fields(kind):  # type: ignore[arg-type]
            if field.name in given:
                continue
            if field.name in known:
                values[field.name] = self.value(known[field.name], hints[field.name], f"{path}.{field.name}")
            elif field.default is MISSING and field.default_factory is MISSING:
                self.wrong(path, f"{field.name!r} is missing")
        return kind(**values) if len(self.problems) == before else None


class _Absent:
    """Stands for a value that is not there."""


ABSENT: Final = _Absent()


def as_json(found: Any) -> str:
    """Return plain data as JSON writes it, and texts in quotes, for messages."""
    if found is ABSENT:
        return "nothing"
    if isinstance(found, str):
        return repr(found)
    try:
        return json.dumps(found, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return "something that is no JSON"


@cache
def hints_of(kind: Hashable) -> dict[str, Any]:
    """Return the type of each field of a dataclass."""
    return get_type_hints(kind)


def fits(found: Any, hint: Any) -> bool:
    """Say whether plain data is of a type: int (not negative), bool, str, None, Literal, tuple[int, …] or a union."""
    origin = get_origin(hint)
    if origin is Literal:
        return isinstance(found, str) and found in get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(found, choice) for choice in get_args(hint))
    if origin is tuple:
        first, *more = get_args(hint)
        right = isinstance(found, list) and all(fits(item, first) for item in found)
        return right and (more == [...] or len(found) == 1 + len(more))
    if hint is int:
        return type(found) is int and 0 <= found <= MOST
    if hint is float:
        return type(found) in (int, float)
    return isinstance(found, hint)


def _as_tuple(found: Any) -> Any:
    return tuple(map(_as_tuple, found)) if isinstance(found, list) else found


def _too_large(found: Any) -> bool:
    return any(type(item) is int and item > MOST for item in (found if isinstance(found, list) else [found]))


def wording(hint: Any) -> str:
    """Say what values a type has: ``'a', 'b' or null``."""
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(wording(choice) for choice in get_args(hint))
    if origin is tuple:
        first, *more = get_args(hint)
        return (
            f"a list, each item {wording(first)}" if more == [...] else f"a list of {1 + len(more)} of {wording(first)}"
        )
    return _WORDS[hint]
