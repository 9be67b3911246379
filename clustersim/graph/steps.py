"""Several steps of a deployment as one graph: what a step waits for of the one before it.

::

    prefill ── boundary ──► schedule, kv_read          of the step behind it
    decode  ── sample ────► schedule;  kv_write ──► kv_read of the same layer and rank

A *lane* is one micro-batch after the other, each of sequences that no other lane has; lanes and replicas have nothing
to do with each other. The replay keeps this order by its events; here it is edges, so that rules can read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.batch import StepBatch
from clustersim.graph.blueprint import EDGE_KINDS
from clustersim.graph.stepgraph import StepGraph
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeToken:
    """The new token that a step adds to one sequence.

    Parameters
    ----------
    request : int
    position : int
        Tokens of the sequence before this one.
    owner : int
        SP rank that decodes it.
    tokens : int
        New tokens; anything but 1 is not a decode step.
    """

    request: int
    position: int
    owner: int = 0
    tokens: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainedStep:
    """One step: its graph, what it carries, and where it runs.

    Parameters
    ----------
    graph : StepGraph
    batch : StepBatch
    decodes : tuple of DecodeToken
    lane, replica : int
    half : int
        1 or 2 where it is that half of a step; both are lanes of their own, the second right behind the first.
    order : tuple of int
        Of a half, where its nodes are in the program of the whole step; else empty.
    whole : tuple of int
        Of a half, the requests of the whole step.
    """

    graph: StepGraph
    batch: StepBatch
    decodes: tuple[DecodeToken, ...] = ()
    lane: int = 0
    replica: int = 0
    half: int = 0
    order: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class StepChain:
    """Steps in order, and the edges between them.

    Parameters
    ----------
    steps : tuple of ChainedStep
    first : tuple of int
        Number of each step's first node; nodes are numbered through.
    source, target, kind : int arrays of shape (links,)
        Edges between nodes of different steps.
    """

    steps: tuple[ChainedStep, ...]
    first: tuple[int, ...]
    source: Int64Array
    target: Int64Array
    kind: Int64Array


def chain(steps: Sequence[ChainedStep], plan: ParallelPlan) -> StepChain:
    """Join steps: each one waits for the step before it in its lane and replica."""
    first = np.concatenate(([0], np.cumsum([len(step.graph) for step in steps], dtype=np.int64)))
    last: dict[tuple[int, int], int] = {}
    links: list[tuple[int, int, int]] = []
    for at, step in enumerate(steps):
        before = last.get((step.replica, step.lane))
        if before is not None:
            found = _links(steps[before], step, plan)
            links += [(source + int(first[before]), target + int(first[at]), kind) for source, target, kind in found]
        last[step.replica, step.lane] = at
    source, target, kind = np.array(links, np.int64).reshape(-1, 3).T
    return StepChain(steps=tuple(steps), first=tuple(first[:-1].tolist()), source=source, target=target, kind=kind)


def _links(before: ChainedStep, after: ChainedStep, plan: ParallelPlan) -> Iterator[tuple[int, int, int]]:
    start, reads = _named(after.graph, "schedule"), _named(after.graph, "kv_read")
    rank, layer = _first_ranks(after.graph), after.graph.layer
    if before.batch.chunks:
        kind = EDGE_KINDS.index("boundary")
        ends = _named(before.graph, "boundary")
        by_rank = {int(_first_ranks(before.graph)[node]): node for node in ends}
        last_stage = (plan.pp - 1) * plan.stage_ranks
        for node in reads:
            own = int(rank[node])
            # Stages that move no K/V have no boundary of their own: that of the last stage is behind them.
            end = by_rank.get(own, by_rank.get(last_stage + own % plan.stage_ranks))
            if end is not None:
                yield end, node, kind
    else:
        kind = EDGE_KINDS.index("data")
        ends = _named(before.graph, "sample")
        writes = _cells(before.graph, _named(before.graph, "kv_write"))
        for node in reads:
            written = writes.get((int(layer[node]), int(rank[node])))
            if written is not None:
                yield written, node, EDGE_KINDS.index("kv")
    ended = _first_ranks(before.graph)
    for end in ends:
        for node in start:  # replicas in lockstep know their own tokens only, and meet in the layers
            if not plan.sp.whole or ended[end] // plan.tp == rank[node] // plan.tp:
                yield end, node, kind


def _named(graph: StepGraph, name: str) -> list[int]:
    wanted = np.array([symbol.name == name for symbol in graph.symbols])
    return [int(node) for node in np.flatnonzero(wanted[graph.symbol])]


def _first_ranks(graph: StepGraph) -> Int64Array:
    return np.array([ranks[0] for ranks in graph.groups], np.int64)[graph.group]


def _cells(graph: StepGraph, nodes: Sequence[int]) -> Mapping[tuple[int, int], int]:
    rank = _first_ranks(graph)
    return {(int(graph.layer[node]), int(rank[node])): node for node in nodes}
