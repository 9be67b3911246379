"""What a graph of another program says in words that nobody reads: refused where a word is misspelt, else listed.

A key is misspelt when a letter or two make it one that is read, and that one is not there beside it. A plural is no
slip (``device`` beside ``devices``): other programs may mean something else by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, get_type_hints

from clustersim.errors import Problem, nearest
from clustersim.graph.foreign.read import NODE_KEYS, TOP_KEYS
from clustersim.graph.foreign.rows import TELLING
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

ENDS: Final = (("source", "target"), ("from", "to"), ("src", "dst"), ("tail", "head"))
"""What edges may call their ends."""

SHORTEST: Final = 4
"""Letters of a key that can be misspelt: of shorter ones each is like each."""

_PLAN: Final = "plan"
_TOP: Final = (*TOP_KEYS, "links")
_NODE: Final = (*NODE_KEYS, "label", *TELLING)
_EDGE: Final = (*(end for pair in ENDS for end in pair), "kind")
_READ: Final = {"graph": _TOP, "node": _NODE, "edge": _EDGE}

DRAWN: Final = frozenset(
    re.findall(
        r"\w+",
        """_background area arrowhead arrowsize arrowtail bb bgcolor center class clusterrank color colorscheme comment
        compound concentrate constraint decorate dir distortion dpi edgetooltip edgeurl fillcolor fixedsize fontcolor
        fontname fontnames fontpath fontsize forcelabels gradientangle group headclip headlabel headport height href
        image imagepos imagescale k labelangle labeldistance labelfloat labelfontcolor labelfontname labelfontsize
        labeljust labelloc landscape layout len lhead lp ltail lwidth margin maxiter minlen mode newrank nodesep
        nojustify normalize ordering orientation outputorder overlap pack pad page penwidth peripheries pin pos
        quadtree quantum rankdir ranksep ratio rects regular remincross resolution root rotate samehead sametail
        samplepoints scale searchsize sep shape shapefile sides size skew smoothing sortv splines start style
        stylesheet tailclip taillabel tailport target tooltip truecolor url vertices viewport voro_margin weight width
        xlp x y z rank label xlabel id""",
    )
)
"""Attributes of Graphviz that say how to draw (graphviz.org/doc/info/attrs.html)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadKey:
    """A key that nobody reads: of what, how often it is there, and the nearest one that is read."""

    of: str
    key: str
    count: int
    nearest: str | None

    def as_json(self) -> dict[str, Any]:
        """Return it as the contract of ``check --json`` has it."""
        return {"of": self.of, "key": self.key, "count": self.count, "nearest": self.nearest}


class KeyReader:
    """Gathers keys that nobody reads; ``problems`` has those that are misspelt, at their paths.

    Parameters
    ----------
    drawn : bool
        Whether attributes that say how to draw are expected, as in DOT and GraphML.
    """

    def __init__(self, *, drawn: bool = False) -> None:
        self.drawn = drawn
        self.problems: list[Problem] = []
        self.counts: dict[tuple[str, str], int] = {}

    def look(self, of: str, keys: Collection[str], path: str) -> None:
        """Look at the keys of the graph, of a node or of an edge."""
        known = _READ[of]
        for key in keys:
            if key in known or (self.drawn and key.lower() in DRAWN):
                continue
            meant = next((one for one in known if one not in keys and is_misspelt(key, one)), None)
            if meant is None:
                self.counts[of, key] = self.counts.get((of, key), 0) + 1
                continue
            place = f"{path}.{key}" if path else key
            self.problems.append(Problem(path=place, message=f"unknown key; did you mean {meant!r}?"))

    def unread(self) -> tuple[UnreadKey, ...]:
        """Return what is to be listed."""
        return tuple(
            UnreadKey(of=of, key=key, count=count, nearest=_PLAN if is_of_plan(of, key) else nearest(key, _READ[of]))
            for (of, key), count in self.counts.items()
        )


def keys_of_objects(found: Mapping[str, Any]) -> KeyReader:
    """Look at the keys of JSON that another program wrote."""
    reader = KeyReader()
    reader.look("graph", found, "")
    nodes = found.get("nodes")
    for at, node in enumerate(nodes.values() if isinstance(nodes, dict) else _items(nodes)):
        if isinstance(node, dict):
            reader.look("node", node, f"nodes[{at}]")
    name = "edges" if "edges" in found else "links"
    for at, edge in enumerate(_items(found.get(name))):
        if isinstance(edge, dict):
            reader.look("edge", edge, f"{name}[{at}]")
    return reader


def is_of_plan(of: str, key: str) -> bool:
    """Whether a key of the graph is one of its plan, written beside it."""
    return of == "graph" and key in get_type_hints(ParallelPlan)


def is_misspelt(word: str, meant: str) -> bool:
    """Whether a word is another one with a slip or two of the pen, and no plural of it.

    Examples
    --------
    >>> is_misspelt("layr", "layer"), is_misspelt("plann", "plan"), is_misspelt("device", "devices")
    (True, True, False)
    """
    small = word.lower()
    if len(meant) < SHORTEST or len(small) < SHORTEST - 1 or small + "s" == meant or small == meant + "s":
        return False
    return _distance(small, meant) <= (1 if len(meant) < 7 else 2)


def _distance(one: str, other: str) -> int:
    """Return how many letters must be put in, left out, changed or exchanged with the next one."""
    if abs(len(one) - len(other)) > 2:
        return 3
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        older, before, row = before, row, [at]
        for to, wanted in enumerate(other, 1):
            cost = min(before[to] + 1, row[to - 1] + 1, before[to - 1] + (letter != wanted))
            if at > 1 and to > 1 and letter == other[to - 2] and one[at - 2] == wanted:
                cost = min(cost, older[to - 2] + 1)
            row.append(cost)
    return row[-1]


def _items(found: Any) -> Iterable[Any]:
    return found if isinstance(found, list) else ()
