"""The order of each rank's program beside the edges: streams run their operators in order, so both must agree.

One node stands for a collective of all its ranks, and one event for a send that meets its receive, so that a wait of
several ranks for each other is a cycle.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.graph_rules.views.graph import KV, SYNC, BoolArray, GraphView
from clustersim.legality.graph_rules.views.reach import stuck


def successors(view: GraphView, ordered: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Return (source, target): of the nodes in ``ordered``, each one and the next on the same stream of a rank."""
    names = {name: at for at, name in enumerate(dict.fromkeys(symbol.stream for symbol in view.symbols))}
    stream = np.array([names[symbol.stream] for symbol in view.symbols], np.int64)[view.symbol]
    member = (ordered & ~view.mask(lambda node: node.is_structural))[view.member_node]
    node, rank = view.member_node[member], view.member_rank[member]
    order = np.lexsort((node, view.member_position[member], stream[node], rank))
    node, rank = node[order], rank[order]
    same = (rank[1:] == rank[:-1]) & (stream[node[1:]] == stream[node[:-1]]) & (node[1:] != node[:-1])
    return node[:-1][same], node[1:][same]


def waiting(view: GraphView, ordered: BoolArray) -> BoolArray:
    """Return which nodes wait for themselves once the nodes in ``ordered`` run in program order.

    The edges from a write of K/V to who reads it on that rank are left out: rule KV-2 looks at their order.
    """
    first, then = successors(view, ordered)
    kept = ~((view.kind == KV) & view.within_step & view.named("kv_write")[view.source])
    event = np.arange(len(view))
    meets = (view.kind == SYNC) & view.mask(lambda node: node.op == "send")[view.source]
    meets &= view.mask(lambda node: node.op == "recv")[view.target]
    event[view.target[meets]] = view.source[meets]
    source = event[np.concatenate((view.source[kept], first))]
    target = event[np.concatenate((view.target[kept], then))]
    apart = source != target
    source, target = source[apart], target[apart]
    behind = stuck(len(view), source, target)
    if not behind.any():
        return behind
    found: BoolArray = behind & stuck(len(view), target, source)  # on a cycle, or between two
    return found
