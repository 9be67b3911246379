"""The step graph with every rank and every layer: columns in numpy arrays, edges in CSR form.

A node is one operator on one rank, one collective over a group of ranks, one send or receive, one K/V read or
write, or a phase boundary. Nodes are in program order: each stream of each rank runs its nodes in that order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import EDGE_KINDS, INPUT, STREAMS, Axis, Blueprint, Body, Node
from clustersim.graph.turns import Turns, in_turn
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

NO_RANK: Final = -1


class Written(NamedTuple):
    """A node of a graph in a file: which one it is there, counted from 0, and what it is called."""

    number: int
    id: int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One node of a body on the ranks of a stage: the SP coordinates and local ranks that it joins."""

    node: Node
    position: int
    s: tuple[int, ...]
    members: tuple[int, ...]


def axis_groups(plan: ParallelPlan, axis: Axis, where: str) -> list[tuple[int, ...]]:
    """Return the groups of local ranks (s·tp + t) that a collective over ``axis`` joins within one stage."""
    sp, tp = plan.sp.degree, plan.tp
    match axis:
        case "tp":
            return [tuple(range(s * tp, s * tp + tp)) for s in range(1 if where == "s0" else sp)]
        case "sp":
            return [tuple(s * tp + t for s in range(sp)) for t in range(tp)]
        case "stage":
            return [tuple(range(sp * tp))]
        case "expert_tp":
            size = plan.expert_tp
            return [tuple(range(first, first + size)) for first in range(0, sp * tp, size)]


def place(body: Body, plan: ParallelPlan) -> list[Placed]:
    """Return the nodes of a body on every rank of a stage, in program order."""
    sp, tp = plan.sp.degree, plan.tp
    found = []
    for position, node in enumerate(body.nodes):
        if node.axis is not None:
            groups = axis_groups(plan, node.axis, node.where)
        else:
            groups = [(rank,) for rank in range(tp if node.where == "s0" else sp * tp)]
        for members in groups:
            s = tuple(sorted({member // tp for member in members}))
            own = _visited(node, members[0] // plan.expert_tp) if node.loads else node
            found.append(Placed(node=own, position=position, s=s, members=members))
    return found


def _visited(node: Node, ep_rank: int) -> Node:
    """Return an operator of experts as an EP rank runs it, with the rows that its visits bring."""
    load, own = node.loads[ep_rank], node.visits[ep_rank : ep_rank + 1]
    return replace(node, amount=tuple((feature, value * load) for feature, value in node.amount), loads=(), visits=own)


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """One step of one replica (or of one stage of it), expanded.

    Parameters
    ----------
    symbols : tuple of Node
        What the nodes are, each once; column ``symbol`` points into it.
    groups : tuple of tuple of int
        Ranks that a node joins, each set once; column ``group`` points into it.
    symbol, group, layer, stage, unit, stream : int arrays of shape (nodes,)
        ``stream`` is an index into ``STREAMS``, −1 for structural nodes; ``layer`` −1 outside the layers.
    source, target, kind : int arrays of shape (edges,)
        Edges between node positions; ``kind`` is an index into ``EDGE_KINDS``.
    half : int array of shape (nodes,)
        Where a step runs as two halves that overlap: of which one a node is, 0 for both; else empty.
    """

    symbols: tuple[Node, ...]
    groups: tuple[tuple[int, ...], ...]
    symbol: Int64Array
    group: Int64Array
    layer: Int64Array
    stage: Int64Array
    unit: Int64Array
    stream: Int64Array
    source: Int64Array
    target: Int64Array
    kind: Int64Array
    half: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.symbol)

    @cached_property
    def in_edges(self) -> tuple[Int64Array, Int64Array]:
        """CSR of incoming edges: (offsets of shape (nodes + 1,), source nodes)."""
        order = np.argsort(self.target, kind="stable")
        counts = np.bincount(self.target, minlength=len(self))
        return np.concatenate(([0], np.cumsum(counts))), self.source[order]

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Return the ranks (within the replica) that a node runs on."""
        return self.groups[int(self.group[node])]

    def stream_order(self) -> tuple[Int64Array, Int64Array]:
        """Return (source, target) of the edges that say: a stream of a rank runs its nodes in program order."""
        last: dict[tuple[int, int], int] = {}
        sources, targets = [], []
        for node in range(len(self)):
            stream = int(self.stream[node])
            if stream < 0:
                continue
            for rank in self.groups[int(self.group[node])]:
                before = last.get((rank, stream))
                if before is not None:
                    sources.append(before)
                    targets.append(node)
                last[rank, stream] = node
        return np.array(sources, np.int64), np.array(targets, np.int64)


def expand(blueprint: Blueprint, plan: ParallelPlan, stages: Iterable[int] | None = None) -> StepGraph:
    """Expand a blueprint over the ranks and layers of one replica.

    Parameters
    ----------
    blueprint : Blueprint
    plan : ParallelPlan
    stages : iterable of int, optional
        Only these stages; by default all, joined by rendezvous edges between sends and receives.
    """
    chosen = list(range(len(blueprint.stages)) if stages is None else stages)
    grown = _Expansion(plan)
    for stage in chosen:
        grown.stage(blueprint, stage)
    return grown.finish()


class _Expansion:
    def __init__(self, plan: ParallelPlan) -> None:
        self.plan = plan
        self.symbols: dict[Node, int] = {}
        self.groups: dict[tuple[int, ...], int] = {}
        self.units: list[tuple[_Tile, int, int, int, int]] = []
        """Of each unit: its tile, layer, stage, number in the stage, and half."""
        self.edges: list[tuple[Int64Array, int]] = []
        """Edges, and from which position on they count."""
        self.bodies: dict[tuple[Body, int], _Tile] = {}
        self.count = 0
        self.sends: dict[int, int] = {}
        self.turns = Turns()
        self.turn: list[int] = []

    def stage(self, blueprint: Blueprint, stage: int) -> None:
        base = stage * self.plan.stage_ranks
        leaving = {half: np.full(self.plan.stage_ranks, NO_RANK, np.int64) for half in (1, 2)}
        received = {rank + self.plan.stage_ranks: node for rank, node in self.sends.items()}
        self.sends = {}
        halves = (1, 2) if any(unit.half for unit in blueprint.stages[stage]) else (1,)
        for index, unit in enumerate(blueprint.stages[stage]):
            key = (unit.body, stage)
            tile = self.bodies.get(key)
            if tile is None:
                tile = self.bodies[key] = _Tile(unit.body, self.plan, base, self.symbols, self.groups)
            self.units.append((tile, unit.layer, stage, index, unit.half))
            of = (unit.half,) if unit.half else halves
            entering = np.concatenate([leaving[half][tile.entry_rank] for half in of])
            self.edges += ((tile.edges, self.count), (tile.joined(entering, self.count), self.count))
            turns = self.turns.of(unit.body, unit.half)
            self.turn += [turns[position] for position in tile.position]
            for half in of:
                leaving[half][tile.leaves] = tile.exit_node[tile.leaves] + self.count
            self._rendezvous(unit.body, tile, base, received)
            self.count += len(tile.symbol)

    def _rendezvous(self, body: Body, tile: _Tile, base: int, received: dict[int, int]) -> None:
        if body.name == "send":
            self.sends = {base + local: int(n) + self.count for local, n in enumerate(tile.exit_node) if n >= 0}
        elif body.name == "recv":
            pairs = [
                (received[base + local], int(node) + self.count)
                for local, node in enumerate(tile.exit_node)
                if base + local in received
            ]
            if pairs:
                sync = EDGE_KINDS.index("sync")
                self.edges.append((np.array([[a, b, sync] for a, b in pairs], np.int64).T, 0))

    def finish(self) -> StepGraph:
        tiles, *told = zip(*self.units, strict=True)
        sizes = [len(tile.symbol) for tile in tiles]
        made = (np.concatenate([getattr(tile, name) for tile in tiles]) for name in ("symbol", "group", "stream"))
        columns = np.stack((*made, *np.repeat(np.array(told, np.int64), sizes, axis=1)))
        edges, firsts = zip(*self.edges, strict=True)
        source, target, kind = np.concatenate(edges, axis=1)
        since = np.repeat(np.array(firsts, np.int64), [edge.shape[1] for edge in edges])
        source, target = source + since, target + since
        if columns[-1].any():
            order = in_turn(np.array(self.turn, np.int64))
            place = np.argsort(order)
            columns, source, target = columns[:, order], place[source], place[target]
        symbol, group, stream, layer, stage, unit, half = columns
        return StepGraph(
            symbols=tuple(self.symbols),
            groups=tuple(self.groups),
            symbol=symbol,
            group=group,
            layer=layer,
            stage=stage,
            unit=unit,
            stream=stream,
            source=source,
            target=target,
            kind=kind,
            half=half if half.any() else np.empty(0, np.int64),
        )


class _Tile:
    """One body on the ranks of one stage, numbered from zero, ready to be repeated per layer."""

    def __init__(
        self,
        body: Body,
        plan: ParallelPlan,
        base: int,
        symbols: dict[Node, int],
        groups: dict[tuple[int, ...], int],
    ) -> None:
        placed = place(body, plan)
        self.position = [item.position for item in placed]
        at: dict[tuple[int, int], int] = {}
        for index, item in enumerate(placed):
            for member in item.members:
                at[item.position, member] = index
        nodes = {id(item.node): item.node for item in placed}  # one on many ranks, whose hash takes long
        numbers = {key: symbols.setdefault(node, len(symbols)) for key, node in nodes.items()}
        self.symbol = np.array([numbers[id(item.node)] for item in placed], np.int64)
        members = [tuple(base + m for m in item.members) for item in placed]
        self.group = np.array([groups.setdefault(m, len(groups)) for m in members], np.int64)
        self.stream = np.array(
            [-1 if item.node.is_structural else STREAMS.index(item.node.stream) for item in placed], np.int64
        )
        edges: dict[tuple[int, int, int], None] = {}
        entries: dict[tuple[int, int, int], None] = {}
        for edge in body.edges:
            kind = EDGE_KINDS.index(edge.kind)
            for local in range(plan.stage_ranks):
                target = at.get((edge.target, local))
                if target is None:
                    continue
                if edge.source == INPUT:
                    entries[local, target, kind] = None
                    continue
                source = at.get((edge.source, local))
                if source is not None:
                    edges[source, target, kind] = None
        self.edges = np.array(list(edges), np.int64).reshape(-1, 3).T
        entry = np.array(list(entries), np.int64).reshape(-1, 3).T
        self.entry_rank, self.entry_node, self.entry_kind = entry
        self.exit_node = np.array([at.get((body.exit, local), NO_RANK) for local in range(plan.stage_ranks)], np.int64)
        self.leaves = self.exit_node != NO_RANK
        self._joined: dict[bytes, Int64Array] = {}

    def joined(self, entering: Int64Array, count: int) -> Int64Array:
        """Return the edges, each once and in order, from what enters to nodes; positions count from ``count`` on.

        Layers that are alike are entered from as far before them: what is found of one is kept for the next.
        """
        linked = entering != NO_RANK
        behind = (entering - count)[linked]
        key = linked.tobytes() + behind.tobytes()
        found = self._joined.get(key)
        if found is None:
            copies, first = len(entering) // max(len(self.entry_rank), 1), int(behind.min(initial=0))
            nodes, kinds = (np.tile(column, copies)[linked] for column in (self.entry_node, self.entry_kind))
            many, width = len(EDGE_KINDS), len(self.symbol)
            edges = np.unique(((behind - first) * width + nodes) * many + kinds)
            found = np.stack([edges // many // width + first, edges // many % width, edges % many])
            self._joined[key] = found
        return found
