"""Collectives that do what another one of the same ranks has done already, with the same inputs."""

from __future__ import annotations

import numpy as np

from clustersim.legality.finding import NOTHING, Finding
from clustersim.legality.graph_rules.finding import judged, operator
from clustersim.legality.graph_rules.views.dataflow import LOGICAL
from clustersim.legality.graph_rules.views.graph import ORDER, BoolArray, GraphView


def repeated(view: GraphView, among: BoolArray) -> Finding:
    """Find collectives whose kind, ranks and inputs are those of another one: each takes place once."""
    among = among & view.mask(lambda node: node.name not in LOGICAL)  # how often these come is a matter of EP-2
    into = np.flatnonzero(among[view.target] & (view.kind != ORDER))
    if not len(into):
        return NOTHING
    order = np.lexsort((view.source[into], view.target[into]))
    ends, sources = view.target[into][order], view.source[into][order]
    nodes, begins = np.unique(ends, return_index=True)
    offsets, ranks = view.members
    seen: dict[tuple[object, ...], int] = {}
    twin: dict[int, int] = {}
    for node, inputs in zip(nodes.tolist(), np.split(sources, begins[1:]), strict=True):
        symbol = view.symbols[int(view.symbol[node])]
        joined = ranks[offsets[node] : offsets[node + 1]]
        first = seen.setdefault((symbol.op, symbol.axis, joined.tobytes(), np.unique(inputs).tobytes()), node)
        if first != node:
            twin[node] = first
    again = np.array(sorted(twin), np.int64)
    return judged(
        view, 0, again, lambda at: f"it does once more what {operator(view, twin[at])} has done with the same inputs",
        "let the ranks of a group take part in each collective once", np.arange(len(view)),
    )  # fmt: skip
