"""The cluster as a picture: nodes as boxes with their devices, switches above, and the links between them.

Where everything is follows from kinds of vertices and from who is linked to whom; a browser colours the links
(``page/topology.js``). Of more than 64 devices each node is one mark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, fsum, sqrt
from typing import Any, Final

from clustersim.report.figures.figure import Figure
from clustersim.report.figures.style import BLUE, GREEN, MUTED, ORANGE, PINK, TARGET, YELLOW, template
from clustersim.report.folded.links import node_of
from clustersim.values import dataclass

SHADES: Final = 10
"""Colours that links have by their load, each a trace of its own."""
_MOST_DEVICES: Final = 64
_MOST_NAMES: Final = 32
_LEVEL: Final = {"host": -1.6, "pcie_switch": -0.8, "device": 0.0, "switch": 1.2, "nic": 2.2, "leaf": 3.6, "spine": 4.8}
"""Kind of a vertex → how high it is drawn."""
_MARKS: Final = {
    "device": ("square", BLUE), "node": ("square", BLUE), "nic": ("circle", GREEN), "switch": ("diamond", ORANGE),
    "leaf": ("diamond", YELLOW), "spine": ("diamond", PINK), "pcie_switch": ("circle", PINK),
    "host": ("square-open", MUTED),
}  # fmt: skip
_WORDS: Final = {"nic": "NIC", "pcie_switch": "PCIe switch", "leaf": "leaf switch", "spine": "spine switch"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Where everything is.

    Parameters
    ----------
    vertices : mapping
        Name → (kind, x, y).
    boxes : mapping
        Node → (left, right, bottom, top).
    edges : list of dict
        ``ends`` of each line, the ``points`` that it leads over, and the numbers of its links ``there`` and ``back``.
    failing : list
        [x, y, from when in ns, until when, words] of devices that fail or are slow.
    words : str
        What is drawn.
    """

    vertices: Mapping[str, tuple[str, float, float]]
    boxes: Mapping[str, tuple[float, float, float, float]]
    edges: list[dict[str, Any]]
    failing: list[list[Any]]
    words: str


def topology_drawing(load: Mapping[str, Any]) -> Drawing:
    """Return where the vertices and links of a page are drawn.

    Parameters
    ----------
    load : mapping
        :func:`clustersim.report.folded.links.link_part`'s.
    """
    tiers = {tier for _, _, _, tier, _, used in load["links"] if used} | {"scaleup"}
    links = [link for link in load["links"] if link[3] in tiers]
    whole = sum(kind == "device" for kind in load["kinds"].values()) > _MOST_DEVICES
    ends = {end for _, tail, head, *_ in links for end in (tail, head)}
    kinds = {name: kind for name, kind in load["kinds"].items() if name in ends}
    shown = {name: node_of(name) if whole and node_of(name) else name for name in kinds}
    of = {shown[name]: "node" if shown[name] != name else kind for name, kind in kinds.items()}
    pairs = _pairs(links, shown)
    places = _places(of, list(pairs))
    edges = [
        {
            "ends": list(pair),
            "points": _points(*(places[end] for end in pair), level=of[pair[0]] == of[pair[1]]),
            "there": there,
            "back": back,
        }
        for pair, (there, back) in pairs.items()
    ]
    vertices = {name: (kind, *places[name]) for name, kind in of.items()}
    devices = sum(kind == "device" for kind in kinds.values())
    words = f"{devices} devices" + (", a mark for each node." if whole else ", a box for each node.")
    failing = [
        [*places[shown[device]], at, until, said]
        for names, at, until, said in load["failing"]
        for device in names
        if device in shown
    ]
    boxes = {} if whole else _boxes(vertices)
    return Drawing(vertices=vertices, boxes=boxes, edges=edges, failing=failing, words=words)


def _pairs(
    links: Sequence[Sequence[Any]], shown: Mapping[str, str]
) -> dict[tuple[str, str], tuple[list[int], list[int]]]:
    """Return the links between what is shown, of each pair there and back; a node's own lead from it to itself."""
    found: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for number, tail, head, *_ in links:
        pair = shown[tail], shown[head]
        if pair[::-1] in found and pair[0] != pair[1]:
            found[pair[::-1]][1].append(number)
        else:
            found.setdefault(pair, ([], []))[0].append(number)
    return found


def _places(of: Mapping[str, str], pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Return (x, y) of each vertex: devices node by node, others over the middle of what they are linked to."""
    places = _device_places(of, pairs)
    for kind in ("nic", "switch", "pcie_switch", "host", "leaf", "spine"):
        mine = [name for name, one in of.items() if one == kind]
        near = {name: _middle(name, pairs, places) for name in mine}
        by_node: dict[str, list[str]] = {}
        for name in sorted(mine, key=lambda name: near[name]):
            by_node.setdefault(node_of(name), []).append(name)
        for node, some in by_node.items():
            places |= _spread(some, near, _LEVEL[kind], places, whole=not node)
    return places


def _device_places(of: Mapping[str, str], pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[float, float]]:
    """Return where devices, or nodes, are: in a row; without a switch in rows, and planes of a torus side by side."""
    nodes: dict[str, list[str]] = {}
    for name, kind in of.items():
        if kind in ("device", "node"):
            nodes.setdefault(node_of(name), []).append(name)
    flat = any(kind not in ("device", "node") for kind in of.values())
    found, left = {}, 0.0
    for some in nodes.values():
        wide, plane = (len(some), len(some)) if flat else _grid(some, pairs)
        for at, name in enumerate(some):
            found[name] = left + at // plane * (wide + 1) + at % wide, -float(at % plane // wide)
        left += ceil(len(some) / plane) * (wide + 1)
    return found


def _grid(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """Return how many devices are in a row and in a plane: those of a torus are linked at these distances."""
    at = {name: number for number, name in enumerate(names)}
    apart = sorted({abs(at[one] - at[other]) for one, other in pairs if one in at and other in at} - {0, 1})
    if not apart:
        return ceil(sqrt(len(names))), len(names)
    wide = _period(apart, 1)
    far = [one for one in apart if one > wide]
    return wide, _period(far, wide) if far else len(names)


def _period(apart: Sequence[int], step: int) -> int:
    """Return the next distance, of which the one before is where a ring closes if they are a step apart."""
    return apart[1] if len(apart) > 1 and apart[0] + step == apart[1] else apart[0]


def _middle(name: str, pairs: Sequence[tuple[str, str]], places: Mapping[str, tuple[float, float]]) -> float:
    """Return the mean x of what a vertex is linked to and that has a place."""
    near = [places[other][0] for pair in pairs if name in pair for other in pair if other != name and other in places]
    return fsum(near) / len(near) if near else 0.0


def _spread(
    names: Sequence[str],
    near: Mapping[str, float],
    level: float,
    places: Mapping[str, tuple[float, float]],
    *,
    whole: bool,
) -> dict[str, tuple[float, float]]:
    """Return places on a level: where a vertex would be, or side by side where these would lie on each other."""
    at = [near[name] for name in names]
    if len(at) > 1 and min(b - a for a, b in pairwise(at)) < 0.5:
        across = [x for x, _ in places.values()]
        low, high = (min(across), max(across)) if whole else (min(at) - len(at) / 2, max(at) + len(at) / 2)
        at = [low + (high - low) * (index + 0.5) / len(at) for index in range(len(at))]
    return {name: (x, level) for name, x in zip(names, at, strict=True)}


def _points(here: tuple[float, float], there: tuple[float, float], *, level: bool) -> list[tuple[float, float]]:
    """Return the points of a line: around what is between vertices of one kind; below a node for its own links."""
    (x0, y0), (x1, y1) = here, there
    if here == there:
        return [(x0 - 0.3, y0 - 0.4), (x0 + 0.3, y0 - 0.4)]
    if level and ((y0 == y1 and abs(x1 - x0) > 1) or (x0 == x1 and abs(y1 - y0) > 1)):
        bend = 0.35
        return [here, ((x0 + x1) / 2 + bend * (x0 == x1), (y0 + y1) / 2 + bend * (y0 == y1)), there]
    return [here, there]


def _boxes(vertices: Mapping[str, tuple[str, float, float]]) -> dict[str, tuple[float, float, float, float]]:
    nodes: dict[str, list[tuple[float, float]]] = {}
    for name, (_, x, y) in vertices.items():
        if node_of(name):
            nodes.setdefault(node_of(name), []).append((x, y))
    return {
        node: (min(x for x, _ in some) - 0.5, max(x for x, _ in some) + 0.5,
               min(y for _, y in some) - 0.5, max(y for _, y in some) + 0.4)
        for node, some in nodes.items()
    }  # fmt: skip


def topology_figure(drawing: Drawing, height: int) -> Figure:
    """Return the picture: traces that a browser fills, of links by colour, weak ones, their words, and devices that
    fail; then vertices.
    """
    hidden = {"visible": False, "fixedrange": True}
    figure = Figure(
        layout={
            "template": template(), "height": height, "hovermode": "closest", "dragmode": False,
            "xaxis": hidden, "yaxis": hidden, "margin": {"l": 10, "r": 10, "t": 30, "b": 10},
        }
    )  # fmt: skip
    for _ in range(SHADES + 1):
        figure.add_scatter(x=[], y=[], mode="lines", hoverinfo="skip", showlegend=False)
    figure.add_scatter(
        x=[], y=[], mode="markers", marker={"size": 14, "color": "rgba(0,0,0,0)"}, showlegend=False,
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=[], y=[], mode="markers", name="fails or is slow", hovertemplate="%{text}<extra></extra>",
        marker={"symbol": "circle-open", "size": 22, "color": TARGET, "line": {"width": 3}},
        showlegend=bool(drawing.failing),
    )  # fmt: skip
    for node, (left, right, bottom, top) in drawing.boxes.items():
        line = {"width": 1, "color": MUTED}
        figure.add_shape(type="rect", x0=left, x1=right, y0=bottom, y1=top, line=line, layer="below", opacity=0.5)
        figure.add_annotation(
            x=left,
            y=bottom,
            text=node,
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            font={"size": 11, "color": MUTED},
        )
    for kind in dict.fromkeys(kind for kind, _, _ in drawing.vertices.values()):
        _add_vertices(figure, drawing, kind)
    return figure


def _add_vertices(figure: Figure, drawing: Drawing, kind: str) -> None:
    some = {name: (x, y) for name, (of, x, y) in drawing.vertices.items() if of == kind}
    symbol, colour = _MARKS[kind]
    named = len(some) <= _MOST_NAMES and kind in ("device", "node")
    figure.add_scatter(
        x=[x for x, _ in some.values()], y=[y for _, y in some.values()], name=_WORDS.get(kind, kind),
        mode="markers+text" if named else "markers", text=[name.split(".")[-1] for name in some],
        customdata=list(some), textposition="bottom center", textfont={"size": 10, "color": MUTED},
        marker={"symbol": symbol, "size": 12 if kind in ("device", "node") else 9, "color": colour},
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip


def topology_html(identity: str) -> str:
    """Return room for what tells of the window, and for the colours of links."""
    return (
        f'<div class="zoom"><span class="view" id="{identity}-note"></span></div>'
        f'<div class="legend" id="{identity}-legend"></div>'
    )
