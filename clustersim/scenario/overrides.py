"""``--set plan.tp=8``: changes of a document before it is validated.

Grammar: ``PATH=VALUE``. A path is keys joined by dots, each followed by any number of list selectors: ``[0]``
(index), ``[name]`` (the item whose ``name`` that is) or ``[*]`` (every item). A key with a dot in it is
quoted: ``expect.'ttft_ms.p99'=< 900``. The value is YAML: ``8``, ``ring``, ``{degree: 2}``; nothing is null.
A lone degree is that degree, whatever else is said beside it: ``plan.ep=2`` is ``plan.ep.degree=2``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.scenario.document import Document, KeyPath, Mark, dotted, parse_yaml
from clustersim.scenario.text.scalars import kind_of
from clustersim.units import plural

_PART: Final = re.compile(
    r"""(?:^|(?<=.)\.)(?P<key>[^\s.=\[\]'"]+|'[^']*'|"[^"]*")|\[(?P<item>\*|[^\s\[\]]+)\]""", re.VERBOSE
)


class _RefusedError(Exception):
    """An override that cannot be applied: (path so far, message)."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def split_override(text: str) -> tuple[list[str], str]:
    """Split ``PATH=VALUE`` into the parts of the path and the text of the value.

    A key is returned as it is, a list selector with its brackets.

    Raises
    ------
    ValueError
        When the text does not follow the grammar.

    Examples
    --------
    >>> split_override("plan.stages.cuts[0]=12.ffn")
    (['plan', 'stages', 'cuts', '[0]'], '12.ffn')
    >>> split_override("expect.'ttft_ms.p99'=< 900")
    (['expect', 'ttft_ms.p99'], '< 900')
    """
    parts: list[str] = []
    position = 0
    while position < len(text) and text[position] != "=":
        found = _PART.match(text, position)
        if found is None or (found["item"] is not None and not parts):
            raise ValueError(f"cannot read {text[position:]!r}; expected KEY.KEY=VALUE, such as plan.tp=8")
        key = found["key"]
        parts.append(f"[{found['item']}]" if key is None else key.strip("'\""))
        position = found.end()
    if not parts or position == len(text):
        raise ValueError(f"expected KEY.KEY=VALUE, such as plan.tp=8, but found {text!r}")
    return parts, text[position + 1 :]


def apply_overrides(
    document: Document, texts: Sequence[str], shorthands: Mapping[KeyPath, str | None], named: Sequence[str] = ()
) -> Document:
    """Return the document with every override applied, in order.

    Parameters
    ----------
    document : Document
        A mapping at its top.
    texts : sequence of str
        ``PATH=VALUE`` each; errors name the second one ``--set #2``.
    shorthands : Mapping from KeyPath to str or None
        Where a lone value stands for a mapping with this key (``plan.sp: 1`` is ``plan.sp: {degree: 1}``), or
        for an empty one.
    named : sequence of str, optional
        What errors call each of them instead, without a slash: files that one names are looked for where one is.

    Raises
    ------
    InputError
        With every override that cannot be read or applied.
    """
    data = copy.deepcopy(document.data)
    marks, key_marks = dict(document.marks), dict(document.key_marks)
    problems: list[Problem] = []
    for number, text in enumerate(texts, 1):
        flag = named[number - 1] if named else f"--set #{number}"
        try:
            parts, value_text = split_override(text)
            value = parse_yaml(value_text, flag).data
            for path in _assign(data, parts, value, shorthands):
                for table in (marks, key_marks):
                    for old in [key for key in table if key[: len(path)] == path]:
                        del table[old]
                for length in range(len(path) + 1):
                    marks.setdefault(path[:length], Mark(file=flag))
                marks[path] = key_marks[path] = Mark(file=flag)
                marks |= dict.fromkeys(_inside(value, path), Mark(file=flag))
        except ValueError as error:
            problems.append(Problem(message=str(error), file=flag))
        except _RefusedError as refused:
            problems.append(Problem(message=refused.message, file=flag, path=dotted(refused.path)))
        except InputError as error:
            problems.extend(Problem(message=problem.message, file=flag) for problem in error.problems)
    if problems:
        raise InputError(problems)
    return Document(file=document.file, data=data, marks=marks, key_marks=key_marks)


def _inside(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of each value in mappings: a later override of one of them says nothing of the others."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield (*path, key)
        yield from _inside(inner, (*path, key))


def _assign(data: Any, parts: list[str], value: Any, shorthands: Mapping[KeyPath, str | None]) -> list[KeyPath]:
    """Set ``value`` in ``data`` (which is changed) and return the paths that were set."""
    places: list[tuple[Any, KeyPath]] = [(data, ())]
    *inner, last = parts
    for part in inner:
        places = [step for place, path in places for step in _enter(place, path, part, shorthands)]
    done: list[KeyPath] = []
    for place, path in places:
        for key in _keys(place, path, last):
            here, inside = (*path, key), place.get(key) if isinstance(place, dict) else None
            if shorthands.get(here) == "degree" and isinstance(inside, dict) and not isinstance(value, dict | None):
                inside["degree"] = value  # a lone degree is one, however the rest is written
                here = (*here, "degree")
            else:
                place[key] = copy.deepcopy(value)
            done.append(here)
    return done


def _enter(place: Any, path: KeyPath, part: str, shorthands: Mapping[KeyPath, str | None]) -> list[tuple[Any, KeyPath]]:
    found = []
    for key in _keys(place, path, part):
        here = (*path, key)
        inside = place.get(key) if isinstance(place, dict) else place[key]
        if inside is None:
            inside = place[key] = {}
        elif here in shorthands and not isinstance(inside, dict | list):
            short = shorthands[here]
            inside = place[key] = {} if short is None else {short: inside}
        found.append((inside, here))
    return found


def _keys(place: Any, path: KeyPath, part: str) -> list[str | int]:
    """Return the keys of ``place`` that one part of a path selects."""
    if not part.startswith("["):
        if not isinstance(place, dict):
            raise _RefusedError(path, f"is {kind_of(place)}, so it has no key {part!r}")
        return [part]
    if not isinstance(place, list):
        raise _RefusedError(path, f"is {kind_of(place)}, so {part} selects nothing in it")
    item = part[1:-1]
    if item == "*":
        return list(range(len(place)))
    if item.isascii() and item.isdecimal():
        if int(item) >= len(place):
            raise _RefusedError(path, f"has {plural(len(place), 'item')}, so there is no {part}")
        return [int(item)]
    named = [entry.get("name") if isinstance(entry, dict) else None for entry in place]
    if item not in named:
        raise _RefusedError(path, f"has no item named {item!r}{did_you_mean(item, [name for name in named if name])}")
    return [named.index(item)]
