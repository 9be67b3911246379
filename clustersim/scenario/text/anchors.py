"""Anchors and aliases of a YAML text: how to part one place from the others that share its value.

``tp: &d 6`` and ``ep: *d`` are one value at two places. Before one of them changes, the alias is written out, or the
anchor moves to the first alias: ``tp: 6`` and ``ep: &d 6`` mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from clustersim.scenario.document import KeyPath, parse_yaml
from clustersim.scenario.text.flow import flow
from clustersim.values import dataclass

_Loader: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ANCHOR: Final = re.compile(r"&[^\s,\[\]{}]+[ \t]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Name:
    """An anchor or an alias in a text: where, and of which value."""

    name: str
    is_alias: bool
    path: KeyPath
    start: int
    end: int


def parted(text: str, path: KeyPath) -> str:
    """Return a text of the same meaning in which no other place shares the value at ``path``, or a part of it.

    Parameters
    ----------
    text : str
        A YAML text.
    path : KeyPath
        A value that is there, or is to be added to the mappings on the way.
    """
    while True:
        names = list(_names(text))
        alias = next((one for one in names if one.is_alias and _meet(one.path, path)), None)
        if alias is not None:
            text = _spliced(text, alias, flow(_value(text, alias.path)))
            continue
        moved = next(((anchor, alias) for anchor, alias in _pairs(names) if _meet(anchor.path, path)), None)
        if moved is None:
            return text
        anchor, alias = moved
        text = _spliced(text, alias, f"&{anchor.name} {flow(_value(text, anchor.path))}")
        text = text[: anchor.start] + _ANCHOR.sub("", text[anchor.start :], count=1)


def _meet(one: KeyPath, other: KeyPath) -> bool:
    """Whether one of two values lies in the other."""
    shortest = min(len(one), len(other))
    return one[:shortest] == other[:shortest]


def _pairs(names: list[_Name]) -> Iterator[tuple[_Name, _Name]]:
    """Yield each alias with its anchor: the last one before it of that name."""
    anchors: dict[str, _Name] = {}
    for one in names:
        if one.is_alias and one.name in anchors:
            yield anchors[one.name], one
        elif not one.is_alias:
            anchors[one.name] = one


def _value(text: str, path: KeyPath) -> Any:
    value = parse_yaml(text, "").data
    for part in path:
        value = value[part]
    return value


def _spliced(text: str, name: _Name, new: str) -> str:
    return text[: name.start] + new + text[name.end :]


def _names(text: str) -> Iterator[_Name]:
    """Yield the anchors and aliases of values in their order; those of keys are left out: no path leads to them."""
    events = iter(yaml.parse(text, Loader=_Loader))

    def names(event: Any, path: KeyPath | None) -> Iterator[_Name]:
        if event.anchor is not None and path is not None:
            is_alias, start, end = isinstance(event, yaml.AliasEvent), event.start_mark.index, event.end_mark.index
            yield _Name(name=event.anchor, is_alias=is_alias, path=path, start=start, end=end)
        if isinstance(event, yaml.MappingStartEvent):
            while not isinstance(key := next(events), yaml.MappingEndEvent):
                yield from names(key, None)
                below = (*path, key.value) if path is not None and isinstance(key, yaml.ScalarEvent) else None
                yield from names(next(events), below)
        elif isinstance(event, yaml.SequenceStartEvent):
            position = 0
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                yield from names(item, None if path is None else (*path, position))
                position += 1

    for event in events:
        if isinstance(event, yaml.NodeEvent):
            yield from names(event, ())
