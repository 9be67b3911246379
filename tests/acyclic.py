"""Whether a step graph has a cycle."""

from __future__ import annotations

import networkx as nx
import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.stepgraph import StepGraph


def is_acyclic(graph: StepGraph, extra: tuple[Int64Array, Int64Array] | None = None) -> bool:
    """Tell whether the edges (and ``extra`` ones) leave no cycle."""
    sources = graph.source if extra is None else np.concatenate((graph.source, extra[0]))
    targets = graph.target if extra is None else np.concatenate((graph.target, extra[1]))
    if np.all(sources < targets):
        return True
    return nx.is_directed_acyclic_graph(nx.DiGraph(zip(sources.tolist(), targets.tolist(), strict=True)))
