"""A graph as programs for drawing have it: vertices and arrows with attributes that are texts, in nested clusters.

DOT (:mod:`clustersim.graph.foreign.dot`) and GraphML (:mod:`clustersim.graph.foreign.graphml`) are read into it, and it
becomes a document as :mod:`clustersim.graph.foreign.read` reads it. Attributes that only say how to draw are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final

from clustersim.errors import InputError
from clustersim.graph.blueprint import EDGE_KINDS
from clustersim.graph.export import FORMAT
from clustersim.graph.foreign.json_text import parsed
from clustersim.graph.foreign.read import NODE_KEYS, TOP_KEYS
from clustersim.graph.foreign.unread_keys import ENDS, KeyReader, is_misspelt
from clustersim.values import dataclass

Place = tuple[int, int]
"""Line and column, counted from 1."""

TEXTS: Final = ("name", "op", "module", "variant", "rule", "axis", "where", "stream", "title", "scenario")
"""Attributes that are texts as they stand; others are numbers, or JSON."""

MOST_VERTICES: Final = 2_000_000
"""More arrows or vertices are a slip of the pen: one line may join each vertex of a group to each of another."""


@dataclass(slots=True, kw_only=True)
class Vertex:
    """A vertex: its id, what is said of it, where, and the clusters around it from the outermost, in words."""

    id: str
    place: Place
    attributes: dict[str, str] = field(default_factory=dict)
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """An arrow from one vertex to another."""

    source: str
    target: str
    place: Place
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A directed graph with its attributes, and where these are."""

    attributes: Mapping[str, str]
    vertices: Mapping[str, Vertex]
    arrows: tuple[Arrow, ...]
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A document of a graph, and where its parts are in the text: path such as ``nodes[3]`` → line and column."""

    document: dict[str, Any]
    places: Mapping[str, Place]


def document_of(drawing: Drawing) -> Drawn:
    """Return what a drawing says as a document; what its writer calls things is in ``said`` of its nodes."""
    document: dict[str, Any] = {"format": FORMAT}
    document |= {key: _value(key, text) for key, text in drawing.attributes.items() if key in TOP_KEYS}
    places = dict(drawing.places)
    nodes, edges = [], []
    for at, vertex in enumerate(drawing.vertices.values()):
        places[f"nodes[{at}]"] = vertex.place
        nodes.append({"id": vertex.id, **_facts(vertex.attributes), "said": tuple(_said(vertex))})
    for at, arrow in enumerate(drawing.arrows):
        places[f"edges[{at}]"] = arrow.place
        kind = {"kind": arrow.attributes["kind"]} if "kind" in arrow.attributes else {}
        edges.append({"source": arrow.source, "target": arrow.target, **kind})
    return Drawn(document=document | {"nodes": nodes, "edges": edges}, places=places)


def keys_of(drawing: Drawing) -> KeyReader:
    """Look at the attributes of a drawing that are neither read nor say how to draw."""
    reader = KeyReader(drawn=True)
    reader.look("graph", drawing.attributes, "")
    for at, vertex in enumerate(drawing.vertices.values()):
        reader.look("node", [key for key in vertex.attributes if key not in _OURS], f"nodes[{at}]")
    for at, arrow in enumerate(drawing.arrows):
        reader.look("edge", arrow.attributes, f"edges[{at}]")
    return reader


def document_of_objects(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of JSON that is a graph, and none of clustersim's: nodes with ids, and edges or links.

    Nodes may be ids alone; ends of edges may be called source and target, from and to, src and dst, or stand in a list.
    What is declared may stand in a ``graph`` of its own, as networkx has it.
    """
    inside = found.get("graph")
    said = {**(inside if isinstance(inside, dict) else {}), **found}
    document = {"format": FORMAT, **{key: value for key, value in said.items() if key in TOP_KEYS}}
    nodes = found.get("nodes")
    edges = found.get("edges", found.get("links", []))
    if isinstance(nodes, dict):
        nodes = [{"id": name, **(node if isinstance(node, dict) else {})} for name, node in nodes.items()]
    if isinstance(nodes, list):
        document["nodes"] = [_object_node(node) for node in nodes]
    document["edges"] = [_object_edge(edge) for edge in edges] if isinstance(edges, list) else edges
    return document


def _object_node(node: Any) -> Any:
    if isinstance(node, str):
        return {"id": node, "said": (("id", node),)}
    if not isinstance(node, dict):
        return node
    identity = node.get("id", node.get("name", node.get("label")))
    known = {key: value for key, value in node.items() if key in NODE_KEYS and value is not None}
    said = [(str(key), str(value)) for key, value in node.items() if isinstance(value, str | int)]
    short = tuple((key, text) for key, text in said if key not in NODE_KEYS and len(text) <= MOST_SAID)
    own = (("id", identity),) if isinstance(identity, str) else ()
    return {**known, "id": identity, "said": (*short, *own)}


def _object_edge(edge: Any) -> Any:
    if isinstance(edge, list) and len(edge) in (2, 3):
        return {"source": edge[0], "target": edge[1]}
    if not isinstance(edge, dict):
        return edge
    for source, target in ENDS:
        if source in edge and target in edge:
            said = edge.get("kind")
            meant = said in EDGE_KINDS or (isinstance(said, str) and any(is_misspelt(said, one) for one in EDGE_KINDS))
            kind = {"kind": said} if meant else {}
            return {"source": edge[source], "target": edge[target], **kind}
    return edge


def _said(vertex: Vertex) -> Iterator[tuple[str, str]]:
    """Yield (attribute, text) of all that may name an operator or its place, the most telling first."""
    yield from (
        (key, text) for key, text in vertex.attributes.items() if key not in NODE_KEYS and len(text) <= MOST_SAID
    )
    yield "id", vertex.id
    yield from (("cluster", cluster) for cluster in reversed(vertex.clusters))


_OURS: Final = ("terms", "least", "amount_of")
"""Attributes that step graphs in DOT and GraphML have beside those of the JSON."""

MOST_SAID: Final = 200
"""Longer texts name nothing."""


def _facts(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return what a vertex says in the words of a document; see :func:`clustersim.graph.export.plain_facts`."""
    placed = not {"pos", "height"}.isdisjoint(attributes)
    found = {
        key: _value(key, text)
        for key, text in attributes.items()
        if key in NODE_KEYS and key != "id" and not _is_drawn(key, text, placed)
    }
    terms = {key: _value(key, attributes[key]) for key in ("terms", "least") if key in attributes}
    if terms or ("amount" in found and not isinstance(found["amount"], dict)):
        found["amount"] = terms | ({"value": found["amount"]} if "amount" in found else {})
    return found


def _is_drawn(key: str, text: str, placed: bool) -> bool:
    """Whether an attribute is Graphviz's, not ours: a width in inches, and which layers of a drawing show a vertex."""
    if key == "width":
        inches = re.fullmatch(r"\d*\.?\d+", text)
        return inches is not None and ("." in text or (placed and float(text) <= _WIDEST))
    return key == "layer" and re.fullmatch(r"all|[A-Za-z]\w*(?:[:,]\w+)+", text) is not None


_WIDEST: Final = 20.0
"""Inches of what is drawn: operators are wider in elements."""


def _value(key: str, text: str) -> Any:
    if key in TEXTS:
        return text
    if key == "ranks" and re.fullmatch(r"\d{1,9}(?:\s*[, ]\s*\d{1,9})*", text.strip()):
        return [int(rank) for rank in re.split(r"[,\s]+", text.strip())]
    if text in ("True", "False"):
        return text == "True"
    try:
        return parsed(text)
    except InputError:
        return text
