"""A step graph with what each node does and how long it takes: amounts, FLOPs, bytes, nanoseconds.

Durations are uncontended: links that several transfers share at once are a matter of the replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.cost.precision import Precision
from clustersim.graph.batch import StepBatch, features_of
from clustersim.graph.blueprint import STREAMS
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.table import node_amount
from clustersim.graph.prices.work import bytes_moved, flops
from clustersim.graph.program import CostClass, class_node, depends_on_s
from clustersim.graph.stepgraph import StepGraph
from clustersim.plan.exchange import Exchange
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

NO_DURATION: Final = -1
"""Of nodes that are no work of their own: structural ones, and receives, which end with their send."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedGraph:
    """One step of one replica, or of all that share experts, node by node.

    Parameters
    ----------
    graph : StepGraph
    plan : ParallelPlan
        Of what runs as one (``ParallelPlan.lockstep``).
    batch : StepBatch
        What the step carries.
    amount, flops, bytes_moved : float64 arrays of shape (nodes,)
        On one rank; what an amount counts is in ``clustersim.graph.prices.work.AMOUNT_OF``. For collectives and
        transfers the bytes are the payload.
    duration_ns : int64 array of shape (nodes,)
        :data:`NO_DURATION` where there is none.
    """

    graph: StepGraph
    plan: ParallelPlan
    batch: StepBatch
    amount: FloatArray
    flops: FloatArray
    bytes_moved: FloatArray
    duration_ns: Int64Array


def price_graph(
    graph: StepGraph,
    plan: ParallelPlan,
    batch: StepBatch,
    *,
    pricer: Pricer,
    precision: Precision,
    comm_number: Callable[[str | Exchange, tuple[int, ...]], int],
) -> PricedGraph:
    """Price every node of a graph for a batch.

    Parameters
    ----------
    graph : StepGraph
    plan : ParallelPlan
    batch : StepBatch
    pricer : Pricer
    precision : Precision
    comm_number : callable
        (operator, ranks of the replica) → the number by which the pricer's ``comm`` knows that group; a send has
        its own rank and the receiver's.
    """
    features = features_of(batch, plan.sp, pricer.windows)
    pairs, which = np.unique(np.stack([graph.symbol, graph.group]), axis=1, return_inverse=True)
    rows: list[tuple[float, float, float]] = []
    classes: dict[CostClass, int] = {}
    at = []
    for symbol, group in pairs.T.tolist():
        node, ranks = graph.symbols[symbol], graph.groups[group]
        s = ranks[0] % plan.stage_ranks // plan.tp  # of replicas in lockstep: which of them
        moved = bytes_moved(node, features, s, precision)
        rows.append((node_amount(node, features, s), flops(node, features, s), moved))
        if node.is_structural or node.op == "recv":
            at.append(NO_DURATION)
            continue
        members = (*ranks, ranks[0] + plan.stage_ranks) if node.op == "send" else ranks
        comm = comm_number(node.communication, members) if node.is_collective or node.op == "send" else None
        cls = CostClass(node=class_node(node), s=s if depends_on_s(node, whole=plan.sp.whole) else 0, comm=comm)
        at.append(classes.setdefault(cls, len(classes)))
    by_class = np.append(pricer.price(list(classes), batch), NO_DURATION)
    figures = np.array(rows, np.float64)[which.ravel()]
    return PricedGraph(
        graph=graph,
        plan=plan,
        batch=batch,
        amount=figures[:, 0],
        flops=figures[:, 1],
        bytes_moved=figures[:, 2],
        duration_ns=by_class[np.array(at, np.int64)][which.ravel()],
    )


def start_times(graph: StepGraph, duration_ns: Int64Array) -> Int64Array:
    """Return when each node starts if nothing shares a link: the longest path through edges and in-order streams.

    Parameters
    ----------
    graph : StepGraph
        With every edge pointing forward.
    duration_ns : int64 array of shape (nodes,)
        Negative ones count as 0.

    Returns
    -------
    int64 array of shape (nodes,)
        Nanoseconds from the start of the step.
    """
    offsets, sources = (column.tolist() for column in graph.in_edges)
    durations = np.maximum(duration_ns, 0).tolist()
    streams, groups = graph.stream.tolist(), graph.group.tolist()
    free = [[0] * (1 + max(max(ranks) for ranks in graph.groups)) for _ in STREAMS]
    starts: list[int] = []
    ends: list[int] = []
    for node, stream in enumerate(streams):
        start = max((ends[source] for source in sources[offsets[node] : offsets[node + 1]]), default=0)
        ranks = graph.groups[groups[node]] if stream >= 0 else ()
        for rank in ranks:
            start = max(start, free[stream][rank])
        end = start + durations[node]
        for rank in ranks:
            free[stream][rank] = end
        starts.append(start)
        ends.append(end)
    return np.array(starts, np.int64)
