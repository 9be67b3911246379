"""Reads directed graphs in GraphML (graphml.graphdrawing.org): vertices, edges, and the data that keys declare.

Of extensions only texts inside ``data`` are read, such as the labels of yEd. Entities are none of a graph's matters: a
document type is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from xml.parsers import expat

from clustersim.errors import InputError, Problem
from clustersim.graph.drawing import MOST_VERTICES, Arrow, Drawing, Place, Vertex

DEEPEST: Final = 100
"""Elements inside each other."""


class _RefusedError(Exception):
    """Something that a graph can't have, at the place where the reader is."""


def read_graphml(text: str, file: str | None = None) -> Drawing:
    """Return what a GraphML text draws.

    Raises
    ------
    InputError
        With file, line and column, and what was expected there.
    """
    if "<graphml" not in text:  # nothing is quoted of a file that is something else
        message = "expected a graph in GraphML, which begins with <graphml>"
        raise InputError(Problem(file=file, line=1, column=1, message=message, quotes=False))
    reader = _Reader()
    try:
        reader.parser.Parse(text.encode("utf-8", "surrogatepass"), True)
        if not reader.has_graph:
            raise _RefusedError("expected a graphml with a directed graph")
    except expat.ExpatError as error:
        message = f"no XML: {expat.errors.messages[error.code]}"
        raise InputError(Problem(file=file, line=error.lineno, column=error.offset + 1, message=message)) from None
    except _RefusedError as error:
        line, column = reader.place
        raise InputError(Problem(file=file, line=line, column=column, message=str(error))) from None
    missing = next((a for a in reader.arrows if not {a.source, a.target} <= reader.vertices.keys()), None)
    if missing is not None:
        name = missing.source if missing.source not in reader.vertices else missing.target
        message = f"expected the id of a node, but found {name!r:.60}"
        raise InputError(Problem(file=file, line=missing.place[0], column=missing.place[1], message=message))
    return Drawing(
        attributes=reader.attributes, vertices=reader.vertices, arrows=tuple(reader.arrows), places=reader.places
    )


class _Reader:
    """What a parser of XML calls with each element."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.begins
        self.parser.EndElementHandler = self.ends
        self.parser.CharacterDataHandler = self.text
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.keys: dict[str, str] = {}
        self.attributes: dict[str, str] = {}
        self.places: dict[str, Place] = {}
        self.vertices: dict[str, Vertex] = {}
        self.arrows: list[Arrow] = []
        self.has_graph = False
        self.open: list[tuple[str, dict[str, str]]] = []
        self.data: tuple[str, list[str]] | None = None

        self.place: Place = (1, 1)

    def go_on(self) -> None:
        """Keep where the reader is: once something is refused, it no longer knows."""
        self.place = self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1

    def doctype(self, *_: object) -> None:
        self.go_on()
        raise _RefusedError("expected no document type, since entities have no place in a graph")

    def begins(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.go_on()
        name = tag.rpartition(":")[2]
        if not self.open and name != "graphml":
            raise _RefusedError(f"expected graphml, but found {name!r:.60}")
        if len(self.open) >= DEEPEST:
            raise _RefusedError(f"expected at most {DEEPEST} elements inside each other")
        about: dict[str, str] = self.open[-1][1] if self.open else {}
        match name:
            case "key":
                self.keys[self.needed(attributes, "id", name)] = attributes.get("attr.name", attributes["id"])
            case "graph":
                if attributes.get("edgedefault") == "undirected":
                    raise _RefusedError("expected edgedefault 'directed', since edges of a step have a direction")
                about = about if self.has_graph else self.attributes
                self.has_graph = True
            case "node":
                about = self.vertex(self.needed(attributes, "id", name)).attributes
            case "edge":
                about = {}
                self.arrow(attributes, about)
            case "data" if self.data is None:
                key = self.needed(attributes, "key", name)
                if key not in self.keys:
                    raise _RefusedError(f"expected a key that is declared, but found {key!r:.60}")
                self.data = (self.keys[key], [])
                if about is self.attributes:
                    self.places[self.keys[key]] = self.place
        self.open.append((name, about))

    def ends(self, tag: str) -> None:
        name, about = self.open.pop()
        if name == "data" and self.data is not None and all(outer != "data" for outer, _ in self.open):
            key, texts = self.data
            about[key] = "".join(texts).strip()
            self.data = None
        del tag

    def text(self, text: str) -> None:
        if self.data is not None:
            self.data[1].append(text)

    def vertex(self, name: str) -> Vertex:
        if name in self.vertices:
            raise _RefusedError(f"expected an id of its own, but {name!r:.60} is a node already")
        if len(self.vertices) >= MOST_VERTICES:
            raise _RefusedError(f"expected at most {MOST_VERTICES:,} nodes")
        self.vertices[name] = Vertex(id=name, place=self.place)
        return self.vertices[name]

    def arrow(self, attributes: Mapping[str, str], about: dict[str, str]) -> None:
        source, target = (self.needed(attributes, end, "edge") for end in ("source", "target"))
        if attributes.get("directed") == "false":
            raise _RefusedError("expected a directed edge")
        self.arrows.append(Arrow(source=source, target=target, place=self.place, attributes=about))

    def needed(self, attributes: Mapping[str, str], key: str, tag: str) -> str:
        if key not in attributes:
            raise _RefusedError(f"expected {key!r} of {tag!r}")
        return attributes[key]
