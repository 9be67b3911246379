"""The edges of a graph beside those of a single device: which (step, layer, rank) needs which operator for which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.graph_rules.views.dataflow import contains, contracted
from clustersim.legality.graph_rules.views.graph import GraphView, base_name, once
from clustersim.legality.reference import EXITS, PREVIOUS, Inputs, head_inputs, inputs_of
from clustersim.values import dataclass

About = Callable[[str, str], bool]
"""Whether a rule is about the edge from one operator to another."""


class Edge(NamedTuple):
    """What an operator of a step, layer and rank needs."""

    step: int
    layer: int
    rank: int
    needed: str
    name: str


def elsewhere(name: str) -> str:
    """Return what an operator inside a layer is called where it feeds another one."""
    return f"{name} of another layer"


class Cells:
    """Edges as integers: which (step, layer, rank) needs which operator for which."""

    def __init__(self, view: GraphView, expected: dict[tuple[int, str], Inputs]) -> None:
        self.full = [symbol.name for symbol in view.symbols]
        names = dict.fromkeys((*view.names, *self.full, *map(elsewhere, view.names), PREVIOUS))
        for inputs in expected.values():
            names |= dict.fromkeys(inputs)
            names |= dict.fromkeys(name for needed in inputs.values() for name in needed)
        self.names = list(names)
        self.number = {name: at for at, name in enumerate(self.names)}
        self.base = {symbol.name: base_name(symbol) for symbol in view.symbols}
        self.parts: dict[str, list[str]] = {}
        for symbol in dict.fromkeys(view.symbols):
            parts = self.parts.setdefault(base_name(symbol), [])
            parts += [symbol.name] if symbol.name not in parts else []
        self.layers = int(view.layer.max(initial=-1)) + 2
        self.ranks = max(1, view.num_ranks)

    def wanted(self, inputs: Inputs) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield (base name, name, what it needs) of every operator, the parts of a ring one by one."""
        for base, needs in inputs.items():
            for name in self.parts.get(base, [base]):
                yield base, name, needs

    def cell(self, step: Int64Array, layer: Int64Array, rank: Int64Array) -> Int64Array:
        return (step * self.layers + layer + 1) * self.ranks + rank

    def key(self, cell: Int64Array, needed: Int64Array | int, name: Int64Array | int) -> Int64Array:
        return (cell * len(self.names) + needed) * len(self.names) + name

    def edge(self, key: int) -> Edge:
        rest, name = divmod(key, len(self.names))
        rest, needed = divmod(rest, len(self.names))
        rest, rank = divmod(rest, self.ranks)
        step, layer = divmod(rest, self.layers)
        return Edge(step, layer - 1, rank, self.names[needed], self.names[name])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """The edges of a graph beside those of a single device, before a rule says which it is about.

    Parameters
    ----------
    cells : Cells
    cell, needed, name : int arrays of shape (edges,)
        What the graph has.
    wanted : tuple of (needed, base name, int array)
        What there should be, as keys of cells, one part per pair of operators and kind of layer.
    """

    cells: Cells
    cell: Int64Array
    needed: Int64Array
    name: Int64Array
    wanted: tuple[tuple[str, str, Int64Array], ...]

    def found_by(self, looked_at: About) -> Int64Array:
        """Return the keys of what the graph has of the edges that a rule is about."""
        cells, wide = self.cells, len(self.cells.names)
        pairs = self.needed * wide + self.name
        table = np.zeros(wide * wide, bool)
        for pair in np.flatnonzero(np.bincount(pairs, minlength=1)).tolist():
            table[pair] = looked_at(cells.names[pair // wide], cells.base[cells.names[pair % wide]])
        kept = table[pairs]
        return np.unique(cells.key(self.cell[kept], self.needed[kept], self.name[kept]))

    def wanted_by(self, looked_at: About) -> Int64Array:
        """Return the keys of the single-device edges that a rule is about."""
        parts = [keys for needed, base, keys in self.wanted if looked_at(needed, base)]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


@once
def edges_of(view: GraphView) -> Edges | None:
    """Return both, None where plan, model or the kind of a step are unknown."""
    model, plan = view.model, view.plan
    if model is None or plan is None or any(step.kind == "unknown" for step in view.steps):
        return None
    kinds = dict.fromkeys(step.kind for step in view.steps)
    expected = {
        (layer, kind): inputs_of(spec, prefills=kind != "decode", decodes=kind != "prefill")
        for kind in kinds
        for layer, spec in enumerate(model.layers)
    } | {(-1, kind): head_inputs(model) for kind in kinds}
    cells = Cells(view, expected)
    cell, needed, name = _there(view, cells)
    return Edges(cells=cells, cell=cell, needed=needed, name=name, wanted=tuple(_wanted(view, cells, expected)))


def _there(view: GraphView, cells: Cells) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return (cell, needed, name) of the edges that the graph has, but for those between parts of one ring."""
    source, target, rank = contracted(view)
    numbers = np.array([cells.number[name] for name in view.names], np.int64)
    others = np.array([cells.number[elsewhere(name)] for name in view.names], np.int64)
    same = view.layer[source] == view.layer[target]
    needed = np.where(same, numbers[view.name[source]], others[view.name[source]])
    needed[~same & view.named(*EXITS)[source]] = cells.number[PREVIOUS]  # which layer that is, is rule PP-6
    full = np.array([cells.number[name] for name in cells.full], np.int64)[view.symbol]
    kept = ~(same & (numbers[view.name[target]] == needed))
    cell = cells.cell(view.step[target[kept]], view.layer[target[kept]], rank[kept])
    return cell, needed[kept], full[target[kept]]


def _wanted(
    view: GraphView, cells: Cells, expected: dict[tuple[int, str], Inputs]
) -> Iterator[tuple[str, str, Int64Array]]:
    """Yield (needed, base name, keys) of the single-device edges whose both ends are on one rank."""
    node, rank = view.member_node, view.member_rank
    wide = len(cells.names)
    cell = cells.cell(view.step[node], view.layer[node], rank) * wide
    base_of = np.array([cells.number[name] for name in view.names], np.int64)[view.name][node]
    full_of = np.array([cells.number[name] for name in cells.full], np.int64)[view.symbol][node]
    part = base_of != full_of
    present = np.sort(np.concatenate((cell + base_of, cell[part] + full_of[part])))
    first = _first_layers(view, cells)
    alike: dict[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], list[int]] = {}
    for (layer, kind), inputs in expected.items():
        if layer < cells.layers - 1:
            alike.setdefault((kind, tuple(inputs.items())), []).append(layer)
    for (kind, items), layers in alike.items():
        steps = np.flatnonzero([step.kind == kind for step in view.steps])
        axes = np.meshgrid(steps, np.array(layers, np.int64), np.arange(cells.ranks), indexing="ij")
        grid = cells.cell(*(axis.ravel() for axis in axes))
        has = {PREVIOUS: ~contains(first, grid)}
        for base, name, needs in cells.wanted(dict(items)):
            for one in (name, *needs):
                if one not in has:
                    has[one] = contains(present, grid * wide + cells.number[one])
            for needed in needs:
                yield needed, base, cells.key(grid[has[name] & has[needed]], cells.number[needed], cells.number[name])


def _first_layers(view: GraphView, cells: Cells) -> Int64Array:
    """Return the cells whose input comes from another stage: the first layer on a rank of a later stage."""
    node, rank = view.member_node, view.member_rank
    inner = (view.layer[node] >= 0) & (view.stage[node] > 0)
    node, rank = node[inner], rank[inner]
    key, layer = view.step[node] * cells.ranks + rank, view.layer[node]
    least = np.full(len(view.steps) * cells.ranks, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(least, key, layer)
    has = np.flatnonzero(least < np.iinfo(np.int64).max)
    return np.sort(cells.cell(has // cells.ranks, least[has], has % cells.ranks))
