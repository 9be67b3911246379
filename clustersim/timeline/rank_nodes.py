"""Which operators of a template are on which rank and stream, and when each of many passes has them."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.timeline.spans import STREAMS

COMM: Final = STREAMS.index("comm")


class RankNodes:
    """Of one template: which nodes are on which rank and stream.

    Parameters
    ----------
    template : PassTemplate
    """

    def __init__(self, template: PassTemplate) -> None:
        self.template = template
        self.node, self.local = template.flat("members")
        self.stream = template.instance_stream[template.node_instance[self.node]]

    def by_rank(self, node_ns: Int64Array) -> Int64Array:
        """Add up nanoseconds of each node by rank and stream, int64 of shape (ranks, streams)."""
        total = np.zeros(self.template.ranks * len(STREAMS), np.int64)
        node, firsts, places = self._in_order
        if len(node):
            total[places] = np.add.reduceat(node_ns[node], firsts)
        return total.reshape(-1, len(STREAMS))

    @cached_property
    def _in_order(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Nodes in order of (rank, stream), where each such pair begins, and which it is."""
        place = self.local * len(STREAMS) + self.stream
        order = np.argsort(place, kind="stable")
        places, firsts = np.unique(place[order], return_index=True)
        return self.node[order], firsts, places

    @cached_property
    def alike(self) -> list[int]:
        """Per rank the first one that has the same instances."""
        first: dict[bytes, int] = {}
        of_rank = (self.template.node_instance[nodes].tobytes() for nodes, _ in self.nodes_of)
        return [first.setdefault(instances, rank) for rank, instances in enumerate(of_rank)]

    @cached_property
    def nodes_of(self) -> list[tuple[Int64Array, npt.NDArray[np.bool_]]]:
        """Per rank its nodes, and which of them communicate."""
        found = []
        for rank in range(self.template.ranks):
            mine = np.flatnonzero(self.local == rank)
            found.append((self.node[mine], self.stream[mine] == COMM))
        return found

    @cached_property
    def fills(self) -> list[bool]:
        """Per rank whether it takes part in every instance of a chain, so that it has no gap in a pass."""
        template = self.template
        return [
            template.is_chain and len(np.unique(template.node_instance[nodes])) == len(template.instance_class)
            for nodes, _ in self.nodes_of
        ]

    def ends(self, by_instance: Int64Array) -> Int64Array:
        """Return the end of every instance of passes; both of shape (passes, instances)."""
        return np.ascontiguousarray(self.template.ends(np.ascontiguousarray(by_instance.T)).T)


def rank_nodes(template: PassTemplate) -> RankNodes:
    """Return which nodes of a template are on which rank, worked out once."""
    if RankNodes not in template.made:
        template.made[RankNodes] = RankNodes(template)
    found: RankNodes = template.made[RankNodes]
    return found
