"""A YAML or JSON file as plain data, with the file, line and column of every value and key."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from clustersim import inputs
from clustersim.errors import InputError, Problem
from clustersim.graph.foreign.json_text import parsed
from clustersim.inputs import resolved
from clustersim.scenario.text.tree import Node, compose
from clustersim.values import dataclass

KeyPath = tuple[str | int, ...]
"""Where a value lies in a document, such as ``("plan", "stages", "cuts", 0)``."""

REMEMBERED: Final = 1 << 16
"""Texts of at most so many characters are parsed once: many scenarios name one device."""
MOST_NAMED: Final = 12
"""Keys that a message lists."""
_KEYS: Final = re.compile(r"""^[ \t{"']*([A-Za-z_][\w-]*)["']?[ \t]*:""", re.MULTILINE)
_LEFT_OUT: Final = {"plan": "model"}
"""What is told of a key that nobody wrote, at which other one: a plan that is left out is that of the model."""
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_\-/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A position: the file (or ``--set #2``), and line and column counted from 1."""

    file: str
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Plain data (dicts, lists, scalars) with the marks of its values and of its keys.

    Parameters
    ----------
    file : str
        Name of the file as errors show it.
    data : object
        The content.
    marks, key_marks : Mapping from KeyPath to Mark
        Where each value is written, and where the key of each value in a mapping is written.
    """

    file: str
    data: Any
    marks: Mapping[KeyPath, Mark]
    key_marks: Mapping[KeyPath, Mark]

    def mark(self, path: KeyPath, *, key: bool = False) -> Mark:
        """Return the position of a value (of its key with ``key``), or of what holds it when it is absent."""
        if key and path in self.key_marks:
            return self.key_marks[path]
        for length in range(len(path), -1, -1):
            if path[:length] in self.marks:
                return self.marks[path[:length]]
        return Mark(file=self.file)

    def problem(self, path: KeyPath, message: str, *, key: bool = False) -> Problem:
        """Return a problem that is placed at a value (at its key with ``key``)."""
        mark = self.mark(path, key=key)
        return Problem(message=message, file=mark.file, line=mark.line, column=mark.column, path=dotted(path))

    def within(self, path: KeyPath) -> Document:
        """Return the part of the document at ``path`` as a document of its own."""
        data = self.data
        for part in path:
            data = data[part]
        depth = len(path)
        return Document(
            file=self.mark(path).file,
            data=data,
            marks={key[depth:]: mark for key, mark in self.marks.items() if key[:depth] == path},
            key_marks={
                key[depth:]: mark for key, mark in self.key_marks.items() if key[:depth] == path and len(key) > depth
            },
        )

    def placed(self, problems: Iterable[Problem], prefix: KeyPath = ()) -> list[Problem]:
        """Return problems that name only a path with the position that the path has in this document.

        Problems that have a line, or are of another file, are kept. ``prefix`` is the path, in this document,
        of the data that the problems speak of.
        """
        known = {dotted(path[len(prefix) :]): path for path in self.marks if path[: len(prefix)] == prefix}
        found = []
        for problem in problems:
            if problem.line is not None or problem.file not in (None, self.file):
                found.append(problem)
                continue
            path = problem.path
            while path not in known and path:
                path = path[: max(path.rfind("."), path.rfind("["), 0)] or _LEFT_OUT.get(path, "")
            mark = self.mark(known.get(path, prefix))
            whole = ".".join(part for part in (dotted(prefix), problem.path) if part)
            found.append(replace(problem, file=mark.file, line=mark.line, column=mark.column, path=whole))
        return found


def dotted(path: KeyPath) -> str:
    """Write a path as people do: ``plan.stages.cuts[0]``; a key with a dot in it is quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _PLAIN_KEY.fullmatch(part) else repr(part)
            text += f".{key}" if text else key
    return text


def shown(path: Path) -> str:
    """Return how errors name a file: relative to the working directory where it lies inside it."""
    try:
        return str(resolved(path).relative_to(resolved(Path.cwd())))
    except (ValueError, OSError):
        return str(path)


def parse_yaml(text: str, file: str) -> Document:
    """Return a YAML text as a document; ``file`` is its name in errors."""
    if len(text) > REMEMBERED:
        return _parse_yaml(text, file)
    document = _parsed_before(text, file)
    return replace(document, data=_copied(document.data))


@lru_cache(maxsize=64)
def _parsed_before(text: str, file: str) -> Document:
    return _parse_yaml(text, file)


def _copied(data: Any) -> Any:
    """Return data that nobody else holds: whoever reads a document may change what it says."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(item) for item in data] if isinstance(data, list) else data


def _parse_yaml(text: str, file: str) -> Document:
    marks: dict[KeyPath, Mark] = {}
    key_marks: dict[KeyPath, Mark] = {}

    def plain(node: Node, path: KeyPath) -> Any:
        marks[path] = Mark(file=file, line=node.line, column=node.column)
        if isinstance(node.value, dict):
            for name, (key, _) in node.value.items():
                key_marks[(*path, name)] = Mark(file=file, line=key.line, column=key.column)
            return {name: plain(value, (*path, name)) for name, (_, value) in node.value.items()}
        if isinstance(node.value, list):
            return [plain(item, (*path, index)) for index, item in enumerate(node.value)]
        return node.value

    data = plain(compose(text, file), ())
    return Document(file=file, data=data, marks=marks, key_marks=key_marks)


def parse_json(text: str, file: str) -> Document:
    """Return a JSON text as a document.

    JSON is YAML in nearly every case: the marks come from there, and are absent in the few others.
    """

    try:
        data = parsed(text.removeprefix("\ufeff"), file)
    except InputError as error:
        plain = [problem.message.replace("no JSON: ", "not valid JSON: ") for problem in error.problems]
        told = zip(error.problems, plain, strict=True)
        raise InputError(replace(problem, message=message, quotes=True) for problem, message in told) from None
    try:
        placed = parse_yaml(text, file)
    except InputError:
        return Document(file=file, data=data, marks={}, key_marks={})
    return Document(file=file, data=data, marks=placed.marks, key_marks=placed.key_marks)


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file; see :func:`clustersim.inputs.read_text` for the errors."""
    return inputs.read_text(path, most=inputs.DOCUMENT_BYTES, name=shown(path))


def read_document(path: Path) -> Document:
    """Read a YAML file, or a JSON file where the name ends with ``.json``."""
    text = read_text(path)
    return parse_json(text, shown(path)) if path.suffix == ".json" else parse_yaml(text, shown(path))


_EXAMPLES: Final = {
    "scenario": "name: my-scenario",
    "topology": "name: my-topology",
    "model": "model_type: llama",
    "engine": "inherits: vllm-0.19",
    "dashboard": "figures: [{figure: headline}]",
}
"""What a file may be → a line of one."""


def read_mapping(path: Path, kind: str, known: Collection[str]) -> Document:
    """Read a file that must hold a mapping at its top.

    Parameters
    ----------
    path : Path
    kind : str
        What it should be, such as ``model``.
    known : collection of str
        Keys at its top. A file with none of them is something else, and nothing of it is quoted.

    Raises
    ------
    InputError
        Also with line and column where it is no YAML.
    """
    text = read_text(path)
    try:
        document = parse_json(text, shown(path)) if path.suffix == ".json" else parse_yaml(text, shown(path))
    except InputError as error:
        if inputs.recognised(_KEYS.findall(text), known):
            raise
        raise InputError(_unquoted(problem, kind) for problem in error.problems[:1]) from None
    if document.data is None:
        message = f"is empty; expected a mapping of keys, such as {_EXAMPLES.get(kind, 'name: …')!r}"
        raise InputError(Problem(message=message, file=document.file))
    if not isinstance(document.data, dict):
        found = "a list" if isinstance(document.data, list) else "a lone value"
        message = f"expected a mapping of keys, such as {_EXAMPLES.get(kind, 'name: …')!r}, but found {found}"
        raise InputError(replace(document.problem((), message), quotes=False))
    if not inputs.recognised(document.data, known):
        message = f"is no {kind}: it has none of the keys {', '.join(sorted(known)[:MOST_NAMED])}"
        raise InputError(Problem(message=message, file=document.file))
    return document


def _unquoted(problem: Problem, kind: str) -> Problem:
    """Say that a file can't be read, and nothing of what is in it."""
    plain = problem.message.startswith(("not valid", "nested"))  # the words of the parser
    message = problem.message if plain else f"not readable as {'an' if kind[:1] in 'aeiou' else 'a'} {kind}"
    return replace(problem, message=message, path="", quotes=False)
