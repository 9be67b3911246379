"""The bisection of topologies that ship is what their sources say."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

from clustersim.cluster import Topology
from clustersim.cluster.host import HOST_TIER
from tests.shipped import topology_of


def bisection(topology: Topology) -> float:
    """Return the maximum flow from one half of the nodes (or devices, in a single node) to the other, in bytes/s."""
    num_nodes = int(topology.node_of.max()) + 1
    groups = topology.node_of if num_nodes > 1 else range(len(topology.devices))
    middle = (num_nodes if num_nodes > 1 else len(topology.devices)) // 2
    graph = nx.DiGraph()
    links = zip(topology.link_ends, topology.link_capacity.tolist(), topology.link_tier, strict=True)
    graph.add_edges_from((*ends, {"capacity": round(capacity)}) for ends, capacity, tier in links if tier != HOST_TIER)
    for device, group in zip(topology.devices, groups, strict=True):
        graph.add_edge(*(("all sources", device) if group < middle else (device, "all targets")))
    return float(nx.maximum_flow_value(graph, "all sources", "all targets"))


@pytest.mark.parametrize(
    ("name", "overrides", "bytes_per_s"),
    [
        ("dgx-h100", {"nodes": 2}, 8 * 50e9),
        ("tpu-v6e", {}, 3.2e12),  # docs.cloud.google.com/tpu/docs/v6e: bisection of a pod
        ("mi300x-node", {}, 16 * 64e9),
        ("l40s-node", {}, 33e9),
        ("fat-tree", {}, 8 * 8 * 50e9),
        ("fat-tree", {"oversubscription": 4}, 8 * 8 * 50e9 / 4),
    ],
)
def test_bisection_is_what_crosses_between_halves(name: str, overrides: Any, bytes_per_s: float) -> None:
    assert bisection(topology_of(name, **overrides)) == bytes_per_s
