"""Step graphs in files: the JSON, GraphML and DOT that clustersim writes, and those of other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from clustersim import inputs
from clustersim.errors import InputError, Problem
from clustersim.graph.drawing import Drawing, Place, document_of, document_of_objects, keys_of
from clustersim.graph.foreign.dot import read_dot
from clustersim.graph.foreign.graphml import read_graphml
from clustersim.graph.foreign.json_text import located, parsed
from clustersim.graph.foreign.naming import Naming, in_own_words
from clustersim.graph.foreign.read import ForeignGraph, Placing, read_graph
from clustersim.graph.foreign.unread_keys import KeyReader, is_misspelt, keys_of_objects
from clustersim.graph.stepgraph import Written
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.graph_names import NamesFile, read_names, shipped_names
from clustersim.scenario.graph_plan import model_of_graph, plan_of_graph
from clustersim.scenario.text.scalars import kind_of
from clustersim.simulation.foreign.contradictions import contradictions
from clustersim.values import dataclass

DRAWINGS: Final[Mapping[str, Callable[[str, str | None], Drawing]]] = {
    ".dot": read_dot,
    ".gv": read_dot,
    ".graphml": read_graphml,
}
"""Suffix → the function that reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A graph as it is written, where a problem with a part of it is, and the keys of it that nobody reads."""

    document: Mapping[str, Any]
    placed: Placing
    keys: KeyReader


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

    def placed(problems: Iterable[Problem]) -> list[Problem]:
        return _elsewhere(source.placed([replace(one, file=one.file or file) for one in problems]), own, declared)

    slips = list(source.keys.problems)
    try:
        if "plan" in document:
            document["plan"] = plan_of_graph(document["plan"])
        if "model" in document:
            try:
                document["model"] = model_of_graph(document["model"], file)
            except InputError as error:
                slips += error.problems
                del document["model"]
        naming = in_own_words(document, (*([own.table] if own else ()), *shipped_names()))
        try:
            found = read_graph(naming.document, file)
        except InputError as error:
            raise InputError([*slips, *(_as_written(problem, naming) for problem in error.problems)]) from None
        problems = [*slips, *(_as_written(problem, naming) for problem in contradictions(found))]
        if problems:
            raise InputError(problems)
    except InputError as error:
        raise InputError(placed(error.problems)) from None
    written = tuple(Written(number=at, id=source.document["nodes"][at]["id"]) for at in naming.origins)
    return replace(found, naming=naming, written=written, placed=placed, unread=source.keys.unread())


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
    if not isinstance(found, Mapping) or not isinstance(found.get("nodes"), list | dict):
        raise InputError(located([_no_graph(found, file)], text))
    if "format" in found:
        return _Source(document=found, placed=lambda problems: located(problems, text), keys=KeyReader())
    nodes, links = found["nodes"], "edges" if "edges" in found or "links" not in found else "links"
    if len(nodes) > 1 and "edges" not in found and "links" not in found:  # nobody wrote a step with none
        raise InputError(located([_no_edges(found, file)], text))
    names = list(nodes) if isinstance(nodes, dict) else None

    def placed(problems: Iterable[Problem]) -> list[Problem]:
        return located([replace(one, path=_in_objects(one.path, names, links)) for one in problems], text)

    return _Source(document=document_of_objects(found), placed=placed, keys=keys_of_objects(found))


def _no_graph(found: Any, file: str) -> Problem:
    """Say what a graph has that something else has not."""
    wanted = 'expected an object with nodes and edges, such as {"nodes": [{"id": …}], "edges": []}'
    if not isinstance(found, Mapping):
        return Problem(file=file, message=f"{wanted}, but found {kind_of(found)}", quotes=False)
    if "nodes" in found:
        return Problem(
            file=file, path="nodes", message=f"expected a list of nodes, but found {kind_of(found['nodes'])}"
        )
    meant = next((key for key in found if is_misspelt(key, "nodes")), None)
    if meant is not None:
        return Problem(file=file, path=meant, message="unknown key; did you mean 'nodes'?")
    return Problem(file=file, message=f"{wanted}, but there are no nodes", quotes=False)


def _no_edges(found: Mapping[str, Any], file: str) -> Problem:
    meant = next((key for key in found if any(is_misspelt(key, one) for one in ("edges", "links"))), "")
    message = f'expected edges, such as "edges": [{{"source": …, "target": …}}], but there are none; {_LINKS}'
    return Problem(file=file, path=meant, message=f"unknown key; {message}" if meant else message, quotes=bool(meant))


_LINKS: Final = "they may be called links, and their ends source and target, from and to, or src and dst"


def _in_objects(path: str, names: list[str] | None, links: str) -> str:
    """Return the path in JSON of another program: nodes may be an object, and edges may be called links."""
    head, bracket, rest = path.partition("[")
    number, _, rest = rest.partition("]")
    if head == "edges":
        return links + path.removeprefix("edges")
    named = names is not None and head == "nodes" and number.isdecimal() and int(number) < len(names)
    return f"nodes.{names[int(number)]}{rest}" if named and names is not None and bracket else path


def _drawn(text: str, file: str, read: Callable[[str, str | None], Drawing]) -> _Source:
    drawing = read(text, file)
    drawn = document_of(drawing)

    def placed(problems: Iterable[Problem]) -> list[Problem]:
        return [_at(_with_example(problem, drawn.document, read), drawn.places) for problem in problems]

    return _Source(document=drawn.document, placed=placed, keys=keys_of(drawing))


def _with_example(problem: Problem, document: Mapping[str, Any], read: Callable[..., Drawing]) -> Problem:
    """Say how an attribute that must be an object, and is a text, is written: as JSON, in DOT with its quotes."""
    text = document.get(problem.path)
    if not isinstance(text, str) or not problem.message.startswith("expected an object"):
        return problem
    try:
        found = parse_yaml("{" + text.strip(" {}").replace("=", ": ") + "}", problem.path).data
    except InputError:
        return problem
    if not found or None in found.values():
        return problem
    plain = json.dumps(found)
    example = f"{problem.path}={json.dumps(plain)}" if read is read_dot else plain
    return replace(problem, message=f"{problem.message}; write {example}")


def _at(problem: Problem, places: Mapping[str, Place]) -> Problem:
    head = problem.path.partition(".")[0]  # nodes[3] of nodes[3].layer, and plan of plan.tp
    line, column = places.get(head, places.get(head.partition("[")[0], (None, None)))
    return problem if problem.line is not None else replace(problem, line=line, column=column)
