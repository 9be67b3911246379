"""A step graph made ready to be executed: the ranks of each node, what each in-edge brings to each of them."""

from __future__ import annotations

from clustersim.graph.blueprint import EDGE_KINDS, EdgeKind, Node
from clustersim.graph.stepgraph import StepGraph
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One in-edge at one rank: the ``place``-th value that node ``source`` made arrives."""

    kind: EdgeKind
    source: int
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WiredNode:
    """One node of a step graph.

    Parameters
    ----------
    node : Node
    layer, stage : int
    ranks : tuple of int
    wires : tuple of tuple of Wire
        Per rank, in the order of the graph's edges.
    cached_layers : tuple of tuple of int
        Per rank, the layers whose K/V is written there before what a K/V edge brings (of ``kv_move``).
    half : int
        1 or 2 where it is of one half of a step, else 0.
    """

    node: Node
    layer: int
    stage: int
    ranks: tuple[int, ...]
    wires: tuple[tuple[Wire, ...], ...]
    cached_layers: tuple[tuple[int, ...], ...]
    half: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class WiredGraph:
    """A step graph as lists: its nodes, and what needs each of them."""

    nodes: tuple[WiredNode, ...]
    followers: tuple[tuple[int, ...], ...]
    needs: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.nodes)


def wired(graph: StepGraph) -> WiredGraph:
    """Return the graph with, for each rank of each node, what arrives there.

    An edge brings to a rank what its source made on that very rank; the rendezvous of a send and a receive (kind
    ``sync``) brings it from the sender's.
    """
    sources: list[list[tuple[int, EdgeKind]]] = [[] for _ in range(len(graph))]
    followers: list[list[int]] = [[] for _ in range(len(graph))]
    for source, target, kind in zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True):
        sources[target].append((source, EDGE_KINDS[kind]))
        followers[source].append(target)
    members = [graph.ranks_of(node) for node in range(len(graph))]
    symbols = [graph.symbols[symbol] for symbol in graph.symbol.tolist()]
    layers, stages = graph.layer.tolist(), graph.stage.tolist()
    halves = graph.half.tolist() or [0] * len(graph)

    def wires(target: int, rank: int) -> tuple[Wire, ...]:
        return tuple(
            Wire(kind=kind, source=source, place=members[source].index(rank) if rank in members[source] else 0)
            for source, kind in sources[target]
            if kind == "sync" or rank in members[source]
        )

    def written(target: int) -> tuple[tuple[int, ...], ...]:
        before = _before([source for source, kind in sources[target] if kind == "kv"], sources)
        writes = [node for node in before if symbols[node].name == "kv_write"]
        return tuple(
            tuple(sorted({layers[node] for node in writes if rank in members[node]})) for rank in members[target]
        )

    nodes = tuple(
        WiredNode(
            node=symbol,
            layer=layers[index],
            stage=stages[index],
            ranks=members[index],
            wires=tuple(wires(index, rank) for rank in members[index]),
            cached_layers=written(index) if symbol.name == "kv_move" else (),
            half=halves[index],
        )
        for index, symbol in enumerate(symbols)
    )
    return WiredGraph(
        nodes=nodes,
        followers=tuple(tuple(dict.fromkeys(after)) for after in followers),
        needs=tuple(len({source for source, _ in before}) for before in sources),
    )


def _before(starts: list[int], sources: list[list[tuple[int, EdgeKind]]]) -> list[int]:
    """Return the nodes from which edges lead to ``starts``, these included, ascending."""
    found, pending = dict.fromkeys(starts), list(starts)
    while pending:
        for source, _ in sources[pending.pop()]:
            if source not in found:
                found[source] = None
                pending.append(source)
    return sorted(found)
