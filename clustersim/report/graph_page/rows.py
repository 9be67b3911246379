"""A step graph as rows of shapes for a picture: what each stage draws, and which layers are the same.

A *row* is one operator of one layer; the nodes of a row that differ only in the rank are one *shape* per SP
coordinate, and a collective is one shape over all the coordinates that it joins. Consecutive units (modules) of one
layer are a *section*; equal sections in a row are drawn once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import EDGE_KINDS, Node
from clustersim.graph.prices.priced import PricedGraph, start_times
from clustersim.values import dataclass

LONGEST_PATTERN = 8
"""Layers of the longest pattern that is looked for (5 sliding and 1 full attention make one of 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The nodes of one row that are drawn as one.

    Parameters
    ----------
    row : int
        Position within the section.
    s : tuple of int
        SP coordinates that it covers.
    node : Node
    nodes : tuple of int
        Positions in the graph.
    groups : tuple of tuple of int
        Ranks of each of them.
    stage, layer : int
    """

    row: int
    s: tuple[int, ...]
    node: Node
    nodes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    stage: int
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """An edge between shapes of a section, by their positions; None is what lies before or behind the section."""

    source: int | None
    target: int | None
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The operators of one layer on one stage, or those between layers.

    Parameters
    ----------
    layers : tuple of int
        The layers that it stands for; empty outside the layers.
    duration_ns : int
        From the end of the section before to the end of this one, of all its layers together.
    like : tuple of int
        Earlier sections of the stage that its layers equal in turn; it then has no shapes of its own.
    shapes, links : tuples
    modules : tuple of (first row, last row, module)
    """

    layers: tuple[int, ...]
    duration_ns: int
    like: tuple[int, ...] = ()
    shapes: tuple[Shape, ...] = ()
    links: tuple[Link, ...] = ()
    modules: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """One stage: its sections in order, and when it is at work, in ns from the start of the step."""

    stage: int
    begin_ns: int
    end_ns: int
    sections: tuple[Section, ...]


def stages_of(priced: PricedGraph) -> list[StageRows]:
    """Return what each stage of a graph draws."""
    starts = start_times(priced.graph, priced.duration_ns)
    found = _Sections(priced, starts)
    return [found.stage(stage) for stage in np.unique(priced.graph.stage).tolist()]


class _Sections:
    def __init__(self, priced: PricedGraph, starts: Int64Array) -> None:
        self.priced = priced
        self.graph = priced.graph
        self.ends = starts + np.maximum(priced.duration_ns, 0)
        self.starts = starts
        order = np.argsort(self.graph.source, kind="stable")
        self.out_offsets = np.searchsorted(self.graph.source[order], np.arange(len(self.graph) + 1))
        self.out_edges = order
        self.in_order = np.argsort(self.graph.target, kind="stable")
        self.in_offsets = np.searchsorted(self.graph.target[self.in_order], np.arange(len(self.graph) + 1))

    def stage(self, stage: int) -> StageRows:
        nodes = np.flatnonzero(self.graph.stage == stage)
        working = nodes[self.graph.stream[nodes] >= 0]
        begin = int(self.starts[working].min())
        bounds, signatures = self._cut(nodes)
        marks = np.maximum.accumulate(
            [begin] + [int(self.ends[part[self.graph.stream[part] >= 0]].max()) for part in bounds]
        )
        times = np.diff(marks).tolist()
        sections: list[Section] = []
        first: dict[bytes, int] = {}
        for start, length, repeats in patterns(signatures):
            for at in range(start, start + length):
                known = first.setdefault(signatures[at], len(sections))
                new = known == len(sections)
                sections.append(
                    self._section(bounds[at], times[at]) if new else self._same(bounds, [at], times, (known,))
                )
            if repeats > 1:
                rest = list(range(start + length, start + length * repeats))
                like = tuple(first[signatures[at]] for at in range(start, start + length))
                sections.append(self._same(bounds, rest, times, like))
        return StageRows(stage=stage, begin_ns=begin, end_ns=int(marks[-1]), sections=tuple(sections))

    def _same(self, bounds: list[Int64Array], at: list[int], times: list[int], like: tuple[int, ...]) -> Section:
        layers = tuple(int(self.graph.layer[bounds[i][0]]) for i in at)
        return Section(layers=layers, duration_ns=sum(times[i] for i in at), like=like)

    def _cut(self, nodes: Int64Array) -> tuple[list[Int64Array], list[bytes]]:
        """Cut a stage's nodes where the layer changes; return the parts and what tells equal ones."""
        layers = self.graph.layer[nodes]
        parts = np.split(nodes, np.flatnonzero(np.diff(layers)) + 1)
        seen = [
            np.stack(
                [
                    self.graph.symbol[part],
                    self.graph.group[part],
                    self.priced.duration_ns[part],
                    self.priced.amount[part],
                ]
            ).tobytes()
            if self.graph.layer[part[0]] >= 0
            else repr(int(part[0])).encode()
            for part in parts
        ]
        return parts, seen

    def _section(self, nodes: Int64Array, duration_ns: int) -> Section:
        graph, plan = self.graph, self.priced.plan
        shapes: list[Shape] = []
        at: dict[int, int] = {}
        modules: list[str] = []
        members = nodes.tolist()
        for row, (_, group) in enumerate(groupby(members, lambda n: (graph.unit[n], graph.symbol[n]))):
            by_s: dict[tuple[int, ...], list[int]] = {}
            for n in group:
                ranks = (rank % plan.stage_ranks for rank in graph.ranks_of(n))
                by_s.setdefault(tuple(dict.fromkeys(rank // plan.tp for rank in ranks)), []).append(n)
            for s, found in by_s.items():
                at |= dict.fromkeys(found, len(shapes))
                shapes.append(
                    Shape(
                        row=row, s=s, node=graph.symbols[int(graph.symbol[found[0]])], nodes=tuple(found),
                        groups=tuple(graph.ranks_of(n) for n in found), stage=int(graph.stage[found[0]]),
                        layer=int(graph.layer[found[0]]),
                    )
                )  # fmt: skip
            modules.append(shapes[-1].node.module)
        return Section(
            layers=(int(graph.layer[nodes[0]]),) if graph.layer[nodes[0]] >= 0 else (),
            shapes=tuple(shapes),
            links=tuple(self._links(members, at)),
            modules=_runs_of(modules),
            duration_ns=duration_ns,
        )

    def _links(self, members: Sequence[int], at: dict[int, int]) -> list[Link]:
        graph = self.graph
        found: dict[Link, None] = {}
        for n in members:
            for edge in self.in_order[self.in_offsets[n] : self.in_offsets[n + 1]].tolist():
                source = int(graph.source[edge])
                if graph.stage[source] == graph.stage[n]:
                    kind = EDGE_KINDS[graph.kind[edge]]
                    found[Link(source=at.get(source), target=at[n], kind=kind)] = None
            for edge in self.out_edges[self.out_offsets[n] : self.out_offsets[n + 1]].tolist():
                target = int(graph.target[edge])
                if target not in at and graph.stage[target] == graph.stage[n]:
                    found[Link(source=at[n], target=None, kind=EDGE_KINDS[graph.kind[edge]])] = None
        return list(found)


def _runs_of(modules: list[str]) -> tuple[tuple[int, int, str], ...]:
    found, row = [], 0
    for module, group in groupby(modules):
        count = len(list(group))
        found.append((row, row + count - 1, module))
        row += count
    return tuple(found)


def patterns(values: Sequence[bytes]) -> list[tuple[int, int, int]]:
    """Cut a sequence into repeated patterns: (start, length of the pattern, how often it occurs in a row).

    Examples
    --------
    >>> patterns([b"e", b"d", b"d", b"m", b"m", b"m"])
    [(0, 1, 1), (1, 1, 2), (3, 1, 3)]
    >>> patterns([b"s", b"f", b"s", b"f", b"s"])
    [(0, 2, 2), (4, 1, 1)]
    """
    found = []
    at = 0
    while at < len(values):
        best = (1, 1)
        for length in range(1, LONGEST_PATTERN + 1):
            repeats = 1
            while list(values[at + repeats * length : at + (repeats + 1) * length]) == list(values[at : at + length]):
                repeats += 1
            if repeats > 1 and repeats * length > best[0] * best[1]:
                best = (length, repeats)
        found.append((at, *best))
        at += best[0] * best[1]
    return found
