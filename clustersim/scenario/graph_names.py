"""Reads files of names: patterns from what other programs call operators to the names of step graphs.

::

    places:       # taken out of a name, wherever they stand
      - layers?[._]?(?P<layer>\\d+)
      - (gpu|rank)[._]?(?P<rank>\\d+)
    operators:    # of what is left, or of the whole name
      - {match: (self_)?attn_q_proj, name: q_proj}
      - {match: mlp, name: [ffn_norm, ffn_up, ffn_act, ffn_down]}
    plan: {tp: 2}   # and model, step, precision, stages: what the graph itself has no words for

What places match is taken out of a name, and ``_`` stands for each run of what is no letter or digit: of
``model.layers.0.self_attn.q_proj`` patterns of operators have ``model_self_attn_q_proj`` to match, or the name itself
as it is written. Both as a whole, and case does not matter. Those that ship lie in the folder ``names``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

from clustersim import catalog
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.graph.foreign.names import PLACES, NameTable, Pattern
from clustersim.graph.vocabulary import BESIDE, CORE, KINDS, POST_ATTENTION, kind_of
from clustersim.scenario.document import Document, KeyPath, Mark, read_mapping
from clustersim.scenario.lookup import find
from clustersim.scenario.text.scalars import kind_of as kind_of_value
from clustersim.values import dataclass

FOLDER: Final = "names"
DECLARED: Final = ("step", "plan", "model", "precision", "stages")
"""What a file of names may say of the graph, as the JSON of a graph does."""

_KEYS: Final = ("places", "operators", *DECLARED)
LONGEST_PATTERN: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesFile:
    """A table of names, and what the file declares of the graph."""

    table: NameTable
    declared: Mapping[str, Any] = field(default_factory=dict)
    document: Document | None = None


@cache
def shipped_names() -> tuple[NameTable, ...]:
    """Return the tables that ship."""
    return tuple(_read(catalog.path_of(FOLDER, name)).table for name in catalog.names(FOLDER))


def read_names(text: str) -> NamesFile:
    """Read a file of names: a path, or the name of one that ships.

    Raises
    ------
    InputError
        With every problem at its line and column: what is no pattern, unknown operators, unknown keys.
    """
    mark = Mark(file="--names")
    return _read(find(text, folder=FOLDER, kind="file of names", mark=mark, path="", base=Path.cwd()))


def _read(path: Path) -> NamesFile:
    document = read_mapping(path, "file of names", _KEYS)
    reading = _Reading(document)
    table = NameTable(file=document.file, places=tuple(reading.places()), operators=tuple(reading.operators()))
    if reading.problems:
        raise InputError(reading.problems)
    declared = {key: document.data[key] for key in DECLARED if key in document.data}
    return NamesFile(table=table, declared=declared, document=document)


class _Reading:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        for key in document.data:
            if key not in _KEYS:
                self.wrong((key,), f"unknown key{did_you_mean(str(key), _KEYS)}", key=True)

    def wrong(self, path: KeyPath, message: str, *, key: bool = False) -> None:
        self.problems.append(self.document.problem(path, message, key=key))

    def items(self, key: str) -> Iterator[tuple[KeyPath, Any]]:
        found = self.document.data.get(key, [])
        if not isinstance(found, list):
            self.wrong((key,), f"expected a list, but found {kind_of_value(found)}")
            return
        yield from (((key, at), item) for at, item in enumerate(found))

    def places(self) -> Iterator[re.Pattern[str]]:
        for path, text in self.items("places"):
            found = self.pattern(path, text)
            if found is None:
                continue
            if not found.groupindex:
                self.wrong(
                    path, f"expected a group that names a place, such as (?P<layer>\\d+); known: {', '.join(PLACES)}"
                )
            yield found

    def operators(self) -> Iterator[Pattern]:
        for path, item in self.items("operators"):
            if not isinstance(item, dict) or set(item) != {"match", "name"}:
                self.wrong(path, "expected match and name, such as {match: attn_q_proj, name: q_proj}")
                continue
            found = self.pattern((*path, "match"), item["match"])
            names = item["name"] if isinstance(item["name"], list) else [item["name"]]
            for name in names or [None]:
                self.name((*path, "name"), name)
            if found is not None:
                yield Pattern(match=found, names=tuple(map(str, names)))

    def name(self, path: KeyPath, name: object) -> None:
        if not isinstance(name, str):
            self.wrong(path, "expected the name of an operator, or a list of them")
        elif kind_of(name) is None and name not in (CORE, POST_ATTENTION, *BESIDE):
            self.wrong(path, f"unknown operator {name!r:.60}{did_you_mean(name, [CORE, *KINDS])}")

    def pattern(self, path: KeyPath, text: object) -> re.Pattern[str] | None:
        if not isinstance(text, str) or not 0 < len(text) <= LONGEST_PATTERN:
            self.wrong(path, f"expected a regular expression of at most {LONGEST_PATTERN} letters")
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = re.compile(text, re.IGNORECASE)
                endless = _is_endless(_parser.parse(text))
        except (re.error, RecursionError, OverflowError, Warning) as error:
            self.wrong(path, f"no regular expression: {error}")
            return None
        if endless:
            self.wrong(path, "expected no repeat inside a repeat, which may take forever to match")
            return None
        for group in found.groupindex:
            if group not in PLACES:
                self.wrong(path, f"unknown group {group!r}{did_you_mean(group, PLACES)}")
        return found


def _is_endless(parsed: Any, inside: bool = False) -> bool:
    """Whether a pattern repeats without a limit what itself repeats without one."""
    for operator, argument in parsed:
        repeats = operator in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and argument[1] > 20
        if repeats and inside:
            return True
        for part in argument if isinstance(argument, tuple) else ():
            for branch in part if isinstance(part, list) else [part]:
                if isinstance(branch, _parser.SubPattern) and _is_endless(branch, inside or repeats):
                    return True
    return False
