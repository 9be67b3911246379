"""A graph from outside as rows that can be merged: operators and edges, one by one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import EDGE_KINDS, STREAMS, Node
from clustersim.graph.foreign.read import FIGURES, ForeignGraph
from clustersim.graph.stepgraph import StepGraph
from clustersim.legality.rule import Violation
from clustersim.values import dataclass

Link = tuple[int, str]
"""The other end of an edge, and the kind of the edge."""


class Place(NamedTuple):
    """Where an operator is."""

    ranks: tuple[int, ...]
    layer: int
    stage: int
    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operator of one rank, or one collective."""

    node: Node
    cell: Place
    unsaid: frozenset[str]
    figures: tuple[float, ...]

    @property
    def place(self) -> str:
        """Where it is, in words."""
        ranks, layer = self.cell.ranks, self.cell.layer
        where = f"layer {layer}, " if layer >= 0 else ""
        whose = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        return f"{where}{whose}, {self.node.name}"


class Rows:
    """The operators and edges of a graph; rows that are merged are gone."""

    def __init__(self, found: ForeignGraph) -> None:
        graph = found.graph
        self.found = found
        self.rows: dict[int, Row] = {}
        columns = (graph.symbol, graph.group, graph.layer, graph.stage, graph.unit)
        for at, (symbol, group, layer, stage, unit) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            self.rows[at] = Row(
                node=graph.symbols[symbol], cell=Place(graph.groups[group], layer, stage, unit),
                unsaid=found.unsaid[symbol], figures=tuple(found.figures[at].tolist()),
            )  # fmt: skip
        self.violations: list[Violation] = []
        self.into: dict[int, set[Link]] = defaultdict(set)
        self.out: dict[int, set[Link]] = defaultdict(set)
        for source, target, kind in zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True):
            self.into[target].add((source, EDGE_KINDS[kind]))
            self.out[source].add((target, EDGE_KINDS[kind]))

    def readers(self, at: int) -> set[str]:
        """Return the names of what reads a row."""
        return {self.rows[target].node.name for target, _ in self.out[at]}

    def cut(self, source: int, target: int) -> None:
        """Drop the edges from one row to another."""
        self.out[source] = {link for link in self.out[source] if link[0] != target}
        self.into[target] = {link for link in self.into[target] if link[0] != source}

    def cells(self) -> dict[Place, dict[str, list[int]]]:
        """Return the operators of each place by name."""
        found: dict[Place, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for at, row in self.rows.items():
            found[row.cell][row.node.name].append(at)
        return found

    def breaks(self, rule: str, at: int, message: str, fix: str) -> None:
        """Note that a rule is broken at a row."""
        written = self.found.written[at] if self.found.written else None
        where = self.rows[at].place + (f" (node {written.id!r:.80})" if written else "")
        number = written.number if written else None
        self.violations.append(Violation(rule=rule, level="G", where=where, message=message, fix=fix, node=number))

    def merge(self, parts: list[int], row: Row, *, at: int) -> None:
        """Put one row, at the place of ``at``, in place of several: inside edges go, all others are its own."""
        gone = set(parts)
        into = {link for part in parts for link in self.into.pop(part, ()) if link[0] not in gone}
        out = {link for part in parts for link in self.out.pop(part, ()) if link[0] not in gone}
        for part in parts:
            del self.rows[part]
        for source, kind in into:
            self.out[source] = {link for link in self.out[source] if link[0] not in gone} | {(at, kind)}
        for target, kind in out:
            self.into[target] = {link for link in self.into[target] if link[0] not in gone} | {(at, kind)}
        self.rows[at], self.into[at], self.out[at] = row, into, out

    def graph(self) -> ForeignGraph:
        """Return what is left as a graph."""
        self.rows = dict(sorted(self.rows.items()))
        number = {at: position for position, at in enumerate(self.rows)}
        symbols: dict[tuple[Node, frozenset[str]], int] = {}
        groups: dict[tuple[int, ...], int] = {}
        rows: list[tuple[int, ...]] = []
        for row in self.rows.values():
            ranks, layer, stage, unit = row.cell
            stream = -1 if row.node.is_structural else STREAMS.index(row.node.stream)
            symbol = symbols.setdefault((row.node, row.unsaid), len(symbols))
            rows.append((symbol, groups.setdefault(ranks, len(groups)), layer, stage, unit, stream))
        edges = sorted(
            (number[source], number[target], EDGE_KINDS.index(kind))
            for target, links in self.into.items()
            for source, kind in links
        )
        names = ("symbol", "group", "layer", "stage", "unit", "stream")
        columns: dict[str, Any] = dict(zip(names, _columns(rows, 6), strict=True))
        columns |= dict(zip(("source", "target", "kind"), _columns(edges, 3), strict=True))
        graph = StepGraph(symbols=tuple(node for node, _ in symbols), groups=tuple(groups), **columns)
        figures = np.array([row.figures for row in self.rows.values()], np.float64).reshape(-1, len(FIGURES))
        written = tuple(self.found.written[at] for at in self.rows) if self.found.written else ()
        unsaid = tuple(unsaid for _, unsaid in symbols)
        return replace(self.found, graph=graph, unsaid=unsaid, figures=figures, written=written)


def _columns(rows: list[tuple[int, ...]] | list[tuple[int, int, int]], width: int) -> Int64Array:
    return np.array(rows, np.int64).reshape(-1, width).T
