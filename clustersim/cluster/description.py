"""What a topology is, as plain data for a terminal or JSON: counts, device, tiers, bisection, one route."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np

from clustersim.cluster.host import HOST_TIER
from clustersim.cluster.topology import Topology
from clustersim.errors import InputError, Problem

MAX_FLOW_LINKS: Final = 10_000
"""Above this many links the bisection is not computed: maximum flow would take seconds."""

DeviceKey = str | int


def describe(topology: Topology, source: DeviceKey | None = None, target: DeviceKey | None = None) -> dict[str, Any]:
    """Describe a topology, and the route between two of its devices.

    Parameters
    ----------
    source, target : str or int or None
        Name or index of a device each; None for both leaves the route out.

    Returns
    -------
    dict
        Plain data (text, numbers, lists, dicts). ``tiers`` has a row per tier, bandwidth and latency;
        ``bisection`` is None for a single device, and its ``bytes_per_s`` None where the graph is too large.
        ``route`` is there only when two devices are given; from a device to itself it has no hops and its
        ``bytes_per_s`` is None.

    Raises
    ------
    InputError
        When there is no such device, or only one of the two is given.
    """
    per_node = np.bincount(topology.node_of)
    description: dict[str, Any] = {
        "name": topology.name,
        "devices": len(topology.devices),
        "nodes": len(per_node),
        "devices_per_node": sorted({int(count) for count in per_node}),
        "first_device": topology.devices[0],
        "last_device": topology.devices[-1],
        "device": _device(topology),
        "vertices": dict(Counter(topology.vertex_kinds)),
        "links": len(topology.link_ends),
        "tiers": _tiers(topology),
        "in_switch_reduction": topology.in_switch_reduction,
        "bisection": _bisection(topology),
        "source": topology.source.strip(),
    }
    if (source is None) != (target is None):
        raise InputError(Problem(message="expected two devices for a route, but found only one"))
    if source is not None and target is not None:
        description["route"] = _route(topology, _index(topology, source), _index(topology, target))
    return description


def _device(topology: Topology) -> dict[str, Any]:
    device = topology.device
    return {
        "name": device.name,
        "vendor": device.vendor,
        "memory_bytes": device.memory_bytes,
        "sheet_memory_bytes": device.sheet_memory_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "flops": dict(device.flops),
        "power_w": device.power_w,
        "price_per_hour": device.price_per_hour,
        "source": device.source,
    }


def _tiers(topology: Topology) -> list[dict[str, Any]]:
    """Count directed links by tier, bandwidth and latency, in the order in which they first appear."""
    rows = Counter(
        zip(
            topology.link_tier,
            topology.link_capacity.tolist(),
            topology.link_latency_s.tolist(),
            strict=True,
        )
    )
    return [
        {"tier": tier, "links": count, "bytes_per_s": capacity, "latency_s": latency_s}
        for (tier, capacity, latency_s), count in rows.items()
    ]


def _bisection(topology: Topology) -> dict[str, Any] | None:
    """Return the maximum flow from one half of the nodes (of the devices, in a single node) to the other."""
    count = len(topology.devices)
    num_nodes = int(topology.node_of.max()) + 1
    if count < 2:
        return None
    if num_nodes > 1:
        what, lower = "nodes", topology.node_of < num_nodes // 2
    else:
        what, lower = "devices", np.arange(count) < count // 2
    flow = _max_flow(topology, lower.tolist()) if len(topology.link_ends) <= MAX_FLOW_LINKS else None
    return {"between": f"the first half of the {what} and the rest, one way", "bytes_per_s": flow}


def _max_flow(topology: Topology, lower: list[bool]) -> float:
    import networkx as nx

    graph = nx.DiGraph()
    # Whole bytes: the algorithm is exact on integers.
    graph.add_edges_from(
        (tail, head, {"capacity": round(capacity)})
        for (tail, head), capacity, tier in zip(
            topology.link_ends, topology.link_capacity.tolist(), topology.link_tier, strict=True
        )
        if tier != HOST_TIER  # nothing between devices takes these
    )
    for device, is_lower in zip(topology.devices, lower, strict=True):
        if is_lower:
            graph.add_edge("all sources", device)
        else:
            graph.add_edge(device, "all targets")
    return float(nx.maximum_flow_value(graph, "all sources", "all targets"))


def _route(topology: Topology, source: int, target: int) -> dict[str, Any]:
    alpha_s, bytes_per_s = topology.transit(source, target)
    hops = [
        {
            "from": topology.link_ends[link][0],
            "to": topology.link_ends[link][1],
            "tier": topology.link_tier[link],
            "bytes_per_s": float(topology.link_capacity[link]),
            "latency_s": float(topology.link_latency_s[link]),
        }
        for link in topology.route(source, target)
    ]
    return {
        "source": topology.devices[source],
        "target": topology.devices[target],
        "alpha_s": alpha_s,
        "bytes_per_s": bytes_per_s if hops else None,
        "hops": hops,
    }


def _index(topology: Topology, key: DeviceKey) -> int:
    if isinstance(key, str):
        return topology.index_of(key)
    if not 0 <= key < len(topology.devices):
        raise InputError(
            Problem(message=f"{topology.name} has no device {key}; expected 0 … {len(topology.devices) - 1}")
        )
    return key
