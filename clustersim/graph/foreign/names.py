"""Patterns from the names of other programs to those of step graphs, and what else a name says.

A name is taken apart: what *places* match (the layer, the rank, …) is taken out, and what is left must match the
pattern of an *operator* as a whole, as must the name itself otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.graph.vocabulary import kind_of
from clustersim.values import dataclass

PLACES: Final = ("layer", "rank", "first", "last", "stage", "tp", "sp", "pp", "dp", "part", "expert", "peer")
"""Groups of patterns: numbers of layers, stages and ranks, the first and the last rank of several, coordinates of a
rank along the axes of the plan, the part of a collective, an expert on its own, and the other end of a transfer."""

_MOMENT: Final = re.compile(
    r"(?:^|_)(?P<phase>prefill|decode|decoding)(?:_?(?:step|token|t)_?(?P<step>\d{1,9}))?(?=_|$)", re.IGNORECASE
)
_KERNEL: Final = re.compile(r"_(?:kernel|weight|forward|gemm|matmul)$", re.IGNORECASE)

LONGEST: Final = 200
"""Letters of a name that is matched; longer ones name nothing."""

_DIGITS: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A pattern of names, and the operators that such a name stands for, one after the other."""

    match: re.Pattern[str]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTable:
    """What one file of names says, in order: the first pattern that matches counts."""

    file: str
    places: tuple[re.Pattern[str], ...] = ()
    operators: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a name says: operators, numbers of :data:`PLACES`, and what is left of it without these.

    ``moment`` is the phase, and which step of it, where operators are known only without them.
    """

    names: tuple[str, ...]
    places: Mapping[str, int]
    rest: str
    moment: tuple[str, str] | None = None


def read_name(text: str, tables: Sequence[NameTable]) -> Named:
    """Return what a name says; no operators where no table knows any.

    What places any table knows is taken out. What is left may be a name of step graphs itself.
    """
    text = text.strip()
    if not text or len(text) > LONGEST:
        return Named(names=(), places={}, rest=text[:LONGEST])
    places, rest = _taken(text, dict.fromkeys(place for table in tables for place in table.places))
    if "expert" in places:  # step graphs have the experts of a rank in one operator
        return Named(names=(), places=places, rest=f"expert_{rest}".strip("_"))
    for timeless, moment in ((rest, None), *_without_moment(rest)):
        for tried in dict.fromkeys((timeless, _KERNEL.sub("", timeless))):
            found = _operators(text, tried, tables)
            if found is not None:
                return replace(found, places={**places, **found.places}, rest=rest, moment=moment)
    return Named(names=(), places=places, rest=rest)


def _operators(text: str, rest: str, tables: Sequence[NameTable]) -> Named | None:
    """Return what tables know, or step graphs have, as a name or what is left of it."""
    own = Named(names=(rest.lower(),), places={}, rest=rest) if kind_of(rest.lower()) is not None else None
    for table in tables:
        for pattern in table.operators:
            found = pattern.match.fullmatch(text) or pattern.match.fullmatch(rest)
            if found is not None:
                less = own is not None and pattern.names[0] in COLLECTIVE_OPS  # all_reduce, of expert_down_all_reduce
                return own if less else Named(names=pattern.names, places=_numbers(found), rest=rest)
    return own


def _without_moment(rest: str) -> list[tuple[str, tuple[str, str]]]:
    """Return a name without its phase and step, and these; nothing where it tells none."""
    found = _MOMENT.search(rest)
    if found is None:
        return []
    left = f"{rest[: found.start()]}_{rest[found.end() :]}".strip("_")
    return [(left, (found["phase"].lower().replace("decoding", "decode"), found["step"] or ""))] if left else []


def _taken(text: str, places: Iterable[re.Pattern[str]]) -> tuple[dict[str, int], str]:
    """Return the numbers that places find in a name, and what is left of it, in words that ``_`` joins."""
    found: dict[str, int] = {}
    for place in places:
        match = place.search(text)
        if match is None or set(numbers := _numbers(match)) & set(found):
            continue
        found |= numbers
        text = f"{text[: match.start()]}_{text[match.end() :]}"
    return found, re.sub(r"[\W_]+", "_", text).strip("_")


def _numbers(match: re.Match[str]) -> dict[str, int]:
    groups = match.groupdict()
    return {key: int(text) for key, text in groups.items() if text and text.isdecimal() and len(text) <= _DIGITS}
