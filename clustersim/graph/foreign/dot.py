"""Reads directed graphs in the DOT language of Graphviz: the part that says what there is, not how to draw it.

``strict``, ``digraph``, subgraphs and clusters, statements of nodes and edges with attributes, chains of edges,
defaults (``node [...]``), quoted ids, comments, ports (graphviz.org/doc/info/lang.html). A ``graph`` is refused: its
edges have no direction. Of HTML and of records the texts count, and not how they are set.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import field
from itertools import pairwise, product
from typing import Final, NoReturn

from clustersim.errors import InputError, Problem
from clustersim.graph.drawing import MOST_VERTICES, Arrow, Drawing, Place, Vertex
from clustersim.values import dataclass

DEEPEST: Final = 50
"""Subgraphs inside each other."""

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<number>-?(?:\.\d+|\d+(?:\.\d*)?))
    |(?P<word>[^\W\d]\w*)
    |(?P<mark>->|--|[{}\[\];,=:+])
    |(?P<html><)""",
    re.VERBOSE | re.DOTALL,
)
_BEFORE: Final = re.compile(r"(?>\s|//[^\n]*\n|\#[^\n]*\n|/\*.*?\*/)*+", re.DOTALL)
_BEGINS: Final = re.compile(r"(?:strict|digraph|graph)\b", re.IGNORECASE)
_TAG: Final = re.compile(r"<!--.*?-->|<\s*/?\s*(\w*)[^<>]*>", re.DOTALL)
_IN_LINE: Final = ("b", "i", "u", "o", "s", "sub", "sup", "font")
_FIELD: Final = re.compile(r"(?<!\\)(?:[{}|]|<[^<>]*>)")
"""What parts a record: braces, bars, and the names of ports."""
_ESCAPES: Final = {"n": "\n", "l": "\n", "r": "\n", '"': '"', "\\": "\\", "\n": ""}
_KEYWORDS: Final = ("strict", "graph", "digraph", "node", "edge", "subgraph")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    place: Place


@dataclass(slots=True)
class _Scope:
    """A graph or subgraph: defaults of what is in it, its vertices, and what its cluster is called."""

    node: dict[str, str] = field(default_factory=dict)
    edge: dict[str, str] = field(default_factory=dict)
    graph: dict[str, str] = field(default_factory=dict)
    members: dict[str, None] = field(default_factory=dict)
    name: str = ""


def read_dot(text: str, file: str | None = None) -> Drawing:
    """Return what a DOT text draws.

    Raises
    ------
    InputError
        With file, line and column, and what was expected there.
    """
    before = _BEFORE.match(text)
    at = before.end() if before else 0
    if _BEGINS.match(text, at) is None:  # nothing is quoted of a file that is something else
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        message = "expected a graph in DOT, which begins with 'digraph'"
        raise InputError(Problem(file=file, line=line, column=column, message=message, quotes=False))
    return _Parser(list(_tokens(text, file)), file).graph()


def _tokens(text: str, file: str | None) -> Iterator[_Token]:
    at, line, begins = 0, 1, 0
    while at < len(text):
        place = (line, at - begins + 1)
        match = _TOKEN.match(text, at)
        end = _html_end(text, at) if match is not None and match.lastgroup == "html" else match.end() if match else -1
        if match is None or end < 0:
            what = {'"': "the end of a text in quotes", "<": "the end of an HTML text", "/": "the end of a comment"}
            found = what.get(text[at])
            message = (
                f"expected {found}"
                if found
                else f"expected a name, a text in quotes or a mark of DOT, but found {text[at]!r}"
            )
            raise InputError(Problem(file=file, line=place[0], column=place[1], message=message))
        word = text[at:end]
        if match.lastgroup != "space":
            kind = str(match.lastgroup)
            shown = {"text": _unquoted, "html": _of_html}.get(kind, str)
            yield _Token(kind, shown(word), place)
        line += word.count("\n")
        begins = at + word.rfind("\n") + 1 if "\n" in word else begins
        at = end
    yield _Token("end", "the end of the file", (line, at - begins + 1))


def _html_end(text: str, at: int) -> int:
    depth = 0
    for match in re.compile("[<>]").finditer(text, at):
        depth += 1 if match[0] == "<" else -1
        if not depth:
            return match.end()
    return -1


def _unquoted(word: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), word[1:-1], flags=re.DOTALL)


def _of_html(word: str) -> str:
    """Return the texts of an HTML text, a line each."""
    lines = _TAG.sub(lambda found: "" if (found[1] or "b").lower() in _IN_LINE else "\n", word[1:-1]).split("\n")
    return "\n".join(filter(None, (html.unescape(line).strip() for line in lines)))


def _label(vertex: Vertex) -> str:
    """Return what stands on a vertex: of a record the texts of its fields, a line each; ``\\N`` is its id."""
    text = vertex.attributes.get("label", "\\N")
    if vertex.attributes.get("shape", "").lower() in ("record", "mrecord"):
        text = "\n".join(filter(None, (line.strip() for line in _FIELD.sub("\n", text).split("\n"))))
        text = re.sub(r"\\([{}|<> ])", r"\1", text)
    return text.replace("\\N", vertex.id)


class _Parser:
    def __init__(self, tokens: list[_Token], file: str | None) -> None:
        self.tokens, self.at, self.file = tokens, 0, file
        self.vertices: dict[str, Vertex] = {}
        self.arrows: list[Arrow] = []
        self.places: dict[str, Place] = {}

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def fail(self, expected: str) -> NoReturn:
        found = self.token.text if self.token.kind == "end" else f"{self.token.text!r:.60}"
        line, column = self.token.place
        message = f"expected {expected}, but found {found}"
        raise InputError(Problem(file=self.file, line=line, column=column, message=message))

    def takes(self, mark: str) -> bool:
        """Go on, if the next token is this mark or keyword."""
        here = self.token
        same = here.text == mark if here.kind == "mark" else here.kind == "word" and here.text.lower() == mark
        self.at += same
        return same

    def needs(self, mark: str) -> None:
        if not self.takes(mark):
            self.fail(f"{mark!r}")

    def identity(self, what: str) -> str:
        """Return an id, texts that ``+`` joins as one."""
        here = self.token
        if here.kind not in ("text", "number", "word", "html") or (
            here.kind == "word" and here.text.lower() in _KEYWORDS
        ):
            self.fail(what)
        self.at += 1
        text = here.text
        while here.kind == "text" and self.takes("+"):
            if self.token.kind != "text":
                self.fail("a text in quotes behind '+'")
            text += self.token.text
            self.at += 1
        return text

    def graph(self) -> Drawing:
        self.takes("strict")
        if self.token.text.lower() == "graph":
            self.fail("'digraph', since edges of a step have a direction")
        self.needs("digraph")
        top = _Scope()
        if self.token.text != "{":
            top.name = self.identity("a name or '{'")
        self.needs("{")
        self.statements(top, (), 0)
        if self.token.kind != "end":
            self.fail("the end of the file, since a file has one graph")
        for vertex in self.vertices.values():
            if "label" in vertex.attributes:
                vertex.attributes["label"] = _label(vertex)
        return Drawing(attributes=top.graph, vertices=self.vertices, arrows=tuple(self.arrows), places=self.places)

    def statements(self, scope: _Scope, around: tuple[_Scope, ...], depth: int) -> None:
        if depth > DEEPEST:
            self.fail(f"at most {DEEPEST} subgraphs inside each other")
        while not self.takes("}"):
            if self.token.kind == "end":
                self.fail("a statement or '}'")
            if not self.takes(";") and not self.takes(","):
                self.statement(scope, around, depth)

    def statement(self, scope: _Scope, around: tuple[_Scope, ...], depth: int) -> None:
        for kind, defaults in (("graph", scope.graph), ("node", scope.node), ("edge", scope.edge)):
            if self.takes(kind):
                if self.token.text != "[":
                    self.fail("'['")
                here, found = self.tokens[self.at - 1].place, self.attributes()
                defaults |= found
                if kind == "graph" and not around:
                    self.places |= dict.fromkeys(found, here)
                return
        first = self.at
        if self.tokens[min(self.at + 1, len(self.tokens) - 1)].text == "=" and self.token.kind != "mark":
            key = self.identity("a name")
            if not around:
                self.places[key] = self.tokens[first].place
            self.needs("=")
            scope.graph[key] = self.identity("a value")
            return
        ends = [self.end(scope, around, depth)]
        place = self.tokens[first].place
        if self.token.text == "--":
            self.fail("'->', since edges of a step have a direction")
        while self.takes("->"):
            ends.append(self.end(scope, around, depth))
        attributes = self.attributes() if self.token.text == "[" else {}
        if len(ends) == 1 and self.tokens[first].text != "{" and self.tokens[first].text.lower() != "subgraph":
            self.vertices[ends[0][0]].attributes |= attributes
        for sources, targets in pairwise(ends):
            if len(self.arrows) + len(sources) * len(targets) > MOST_VERTICES:
                self.fail(f"at most {MOST_VERTICES:,} edges")
            for source, target in product(sources, targets):
                self.arrows.append(Arrow(source=source, target=target, place=place, attributes=scope.edge | attributes))

    def end(self, scope: _Scope, around: tuple[_Scope, ...], depth: int) -> list[str]:
        """Read a vertex, or a subgraph, and return the vertices that it stands for."""
        if self.token.text == "{" or self.token.text.lower() == "subgraph":
            inner = _Scope(node=dict(scope.node), edge=dict(scope.edge))
            if self.takes("subgraph") and self.token.text != "{":
                inner.name = self.identity("a name or '{'")
            self.needs("{")
            self.statements(inner, (*around, scope), depth + 1)
            self.called(inner)
            scope.members |= inner.members
            return list(inner.members)
        place = self.token.place
        name = self.identity("a node, an edge, a subgraph or an attribute")
        for _ in range(2):  # a port, and where on the node it is
            if self.takes(":"):
                self.identity("a port")
        if name not in self.vertices:
            if len(self.vertices) >= MOST_VERTICES:
                self.fail(f"at most {MOST_VERTICES:,} nodes")
            self.vertices[name] = Vertex(id=name, place=place, attributes=dict(scope.node))
        scope.members[name] = None
        return [name]

    def called(self, cluster: _Scope) -> None:
        """Tell the vertices of a subgraph what it is called, by its name and its label."""
        words = tuple(dict.fromkeys(filter(None, (cluster.name, cluster.graph.get("label", "")))))
        for name in cluster.members:
            vertex = self.vertices[name]
            vertex.clusters = (*words, *vertex.clusters)

    def attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while self.takes("["):
            while not self.takes("]"):
                key = self.identity("the name of an attribute or ']'")
                found[key] = self.identity("a value") if self.takes("=") else "true"
                if not self.takes(","):
                    self.takes(";")
        return found
