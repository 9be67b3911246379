"""What an operator of a name that nobody knows may excuse: what lacks beside it may be what it is.

It belongs to its layer and ranks. There it may be any operator, or a part of one, and so the edges of what is beside it
may be as they should; so may those of what it feeds, or is fed by, through whichever collectives. Nothing else is in
doubt: what is wrong in another layer, or on another rank, is wrong whatever it is.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS, TRANSFER_OPS
from clustersim.legality.graph_rules.views.graph import BoolArray, GraphView, once

BETWEEN: Final = (*COLLECTIVE_OPS, *TRANSFER_OPS, "boundary")
"""Operators through which one is looked at by those of other ranks, layers and stages."""


def in_doubt(view: GraphView, layer: Int64Array, rank: Int64Array) -> BoolArray:
    """Return which pairs of a layer and a rank may have, in an unknown operator, what they lack."""
    found: BoolArray = np.isin(_key(view, layer, rank), _cells(view)) | np.isin(rank, _anywhere(view))
    return found


@once
def doubted(view: GraphView) -> BoolArray:
    """Return which nodes are in doubt."""
    unknown = view.unknown
    if unknown is None or not unknown.any():
        return np.zeros(len(view), bool)
    found: BoolArray = unknown | _linked(view, unknown, view.source, view.target)
    found |= _linked(view, unknown, view.target, view.source)
    beside = in_doubt(view, view.layer[view.member_node], view.member_rank)
    found[view.member_node[beside]] = True
    return found


def _linked(view: GraphView, unknown: BoolArray, source: Int64Array, target: Int64Array) -> BoolArray:
    """Return what unknown operators reach over edges of one direction, up to what is no collective or transfer."""
    between = view.mask(lambda node: node.op in BETWEEN)
    found, grown = unknown, unknown
    while grown.any():
        ends = np.zeros(len(view), bool)
        ends[target[(grown & (unknown | between))[source]]] = True
        grown = ends & ~found
        found = found | ends
    return found


def _key(view: GraphView, layer: Int64Array, rank: Int64Array) -> Int64Array:
    return (layer + 1) * max(1, view.num_ranks, view.plan.world if view.plan is not None else 0) + rank


@once
def _cells(view: GraphView) -> Int64Array:
    own = _of_unknown(view)
    return np.unique(_key(view, view.layer[view.member_node[own]], view.member_rank[own]))


@once
def _anywhere(view: GraphView) -> Int64Array:
    """Return the ranks of unknown operators that don't say their layer, and may be of any."""
    own = _of_unknown(view)
    return np.unique(view.member_rank[own & ~view.says("layer")[view.member_node]])


def _of_unknown(view: GraphView) -> BoolArray:
    unknown = view.unknown if view.unknown is not None else np.zeros(len(view), bool)
    found: BoolArray = unknown[view.member_node]
    return found
