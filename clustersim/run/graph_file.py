"""Step graphs in files: the JSON, GraphML and DOT that clustersim writes, and those of other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from clustersim import inputs
from clustersim.errors import InputError, Problem
from clustersim.graph.dot import read_dot
from clustersim.graph.drawing import Drawing, Place, document_of, document_of_objects
from clustersim.graph.foreign import ForeignGraph, read_graph
from clustersim.graph.graphml import read_graphml
from clustersim.graph.json_text import located, parsed
from clustersim.graph.naming import Naming, in_own_words
from clustersim.run.graph_contradictions import contradictions
from clustersim.scenario.graph_names import NamesFile, read_names, shipped_names
from clustersim.scenario.graph_plan import plan_of_graph

DRAWINGS: Final[Mapping[str, Callable[[str, str | None], Drawing]]] = {
    ".dot": read_dot,
    ".gv": read_dot,
    ".graphml": read_graphml,
}
"""Suffix → the function that reads it."""

GRAPH_SUFFIXES: Final = (".json", *DRAWINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A graph as it is written, and where a problem with a part of it is."""

    document: Mapping[str, Any]
    placed: Callable[[Iterable[Problem]], list[Problem]]


def graph_at(path: Path, names: str | None = None) -> ForeignGraph:
    """Read a step graph in a file; ``names`` is a file of names, or the name of one that ships.

    Raises
    ------
    InputError
        When a file can't be read, is no graph, or contradicts itself.
    """
    return graph_in(inputs.read_text(path, most=inputs.TEXT_BYTES), str(path), path.suffix, names)


def graph_in(text: str, file: str, suffix: str = ".json", names: str | None = None) -> ForeignGraph:
    """Read a step graph that is a text; see :func:`graph_at`."""
    own = read_names(names) if names is not None else None
    source = _drawn(text, file, DRAWINGS[suffix]) if suffix in DRAWINGS else _parsed(text, file)
    declared = {key: value for key, value in (own.declared if own else {}).items() if key not in source.document}
    document = {**source.document, **declared}
    if "plan" in document:
        document["plan"] = plan_of_graph(document["plan"])
    naming = in_own_words(document, (*([own.table] if own else ()), *shipped_names()))
    try:
        found = replace(read_graph(naming.document, file), naming=naming)
        problems = [replace(problem, file=file) for problem in contradictions(found)]
        if problems:
            raise InputError(problems)
    except InputError as error:
        written = [_as_written(problem, naming) for problem in error.problems]
        raise InputError(_elsewhere(source.placed(written), own, declared)) from None
    return found


def _as_written(problem: Problem, naming: Naming) -> Problem:
    """Name the node of the file where the document, in which a node may be several, has another number."""
    head, _, rest = problem.path.partition("]")
    at = head.removeprefix("nodes[")
    if head == problem.path or not at.isdecimal() or int(at) >= len(naming.origins):
        return problem
    return replace(problem, path=f"nodes[{naming.origins[int(at)]}]{rest}")


def _elsewhere(problems: list[Problem], own: NamesFile | None, declared: Mapping[str, Any]) -> list[Problem]:
    """Place problems with what the file of names declares there."""
    if own is None or own.document is None:
        return problems
    return [
        own.document.placed([replace(problem, file=None, line=None, column=None)])[0]
        if problem.path.partition(".")[0].partition("[")[0] in declared
        else problem
        for problem in problems
    ]


def _parsed(text: str, file: str) -> _Source:
    found = parsed(text, file)
    if not isinstance(found, Mapping):
        raise InputError(Problem(file=file, message="expected an object with nodes and edges"))
    document = found if "format" in found or "nodes" not in found else document_of_objects(found)
    return _Source(document=document, placed=lambda problems: located(problems, text))


def _drawn(text: str, file: str, read: Callable[[str, str | None], Drawing]) -> _Source:
    drawn = document_of(read(text, file))

    def placed(problems: Iterable[Problem]) -> list[Problem]:
        return [_at(problem, drawn.places) for problem in problems]

    return _Source(document=drawn.document, placed=placed)


def _at(problem: Problem, places: Mapping[str, Place]) -> Problem:
    line, column = places.get(f"{problem.path.partition(']')[0]}]", (None, None))
    return problem if problem.line is not None else replace(problem, line=line, column=column)
