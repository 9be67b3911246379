"""A cache that is read behind what the step writes: write → read → attend, in place of both into attention.

A read of the cache behind the step's own write brings what was there and what is new. That is what attention takes
where it has an edge from the write and one from the read, so the edge write → read becomes edges from the write to
what the read feeds, in the same layer and on the same rank. Anything else that a write feeds stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clustersim.graph.foreign.read import ForeignGraph
from clustersim.legality.merging.products import CORES
from clustersim.legality.merging.rows import Rows

TAKERS: Final = (*CORES, "kv_b_proj")
"""What takes entries of the cache, the parts of a ring by the name of the whole."""


def merge_caching(rows: Rows) -> None:
    """Let what a read feeds behind a write take from both."""
    for write, read in list(_chains(rows)):
        rows.cut(write, read)
        for target, kind in list(rows.out[read]):
            if kind == "kv" and rows.rows[target].node.name.startswith(TAKERS):
                rows.out[write].add((target, kind))
                rows.into[target].add((write, kind))


def has_caching(found: ForeignGraph) -> bool:
    """Whether anything reads the cache behind what its step writes."""
    graph = found.graph
    pairs = zip(graph.symbol[graph.source].tolist(), graph.symbol[graph.target].tolist(), strict=True)
    return any((graph.symbols[a].name, graph.symbols[b].name) == ("kv_write", "kv_read") for a, b in set(pairs))


def _chains(rows: Rows) -> Iterator[tuple[int, int]]:
    """Yield (write, read) of one layer and rank that an edge of the cache joins."""
    for at, row in rows.rows.items():
        if row.node.name != "kv_read":
            continue
        for source, kind in rows.into[at]:
            write = rows.rows[source]
            if kind == "kv" and write.node.name == "kv_write" and write.cell == row.cell:
                yield source, at
