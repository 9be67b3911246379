"""The fabric kind ``graph``: vertices and links written down one by one.

::

    fabric:
      kind: graph
      vertices:
        - {name: gpu0, kind: device, node: 0}      # devices are numbered in this order
        - {name: gpu1, kind: device, node: 0}
        - {name: sw0, kind: switch}
      links:
        - {between: [gpu0, sw0], capacity: 50 GB/s, latency: 1 us, tier: scaleup}    # both directions
        - {from: gpu1, to: sw0, capacity: 50 GB/s, latency: 1 us, tier: scaleup}     # one direction
        - {from: sw0, to: gpu1, capacity: 25 GB/s, latency: 1 us, tier: scaleup}
      device_transit: false                        # may traffic pass through other devices?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clustersim.cluster.device import Device
from clustersim.cluster.reading import Reader
from clustersim.cluster.topology import Edge, Topology, topology_from_edges
from clustersim.errors import did_you_mean
from clustersim.values import dataclass

KINDS: Final = ("device", "nic", "switch", "leaf", "spine", "pcie_switch", "host")
TIERS: Final = ("scaleup", "pcie", "nic", "fabric", "ici")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeList:
    """Vertices (name, kind, node) and directed links as the user wrote them."""

    vertices: tuple[tuple[str, str, int], ...]
    edges: tuple[Edge, ...]
    device_transit: bool | None
    in_switch_reduction: bool


def read_edge_list(fabric: Reader) -> EdgeList:
    """Read the keys ``vertices``, ``links``, ``device_transit`` and ``in_switch_reduction``."""
    vertices: dict[str, tuple[str, str, int]] = {}
    for entry in fabric.entries("vertices"):
        name, kind = entry.text("name"), entry.choice("kind", KINDS)
        node = entry.count("node", 0, least=0) if kind == "device" else 0
        if name in vertices:
            entry.problem("name", f"a second vertex has the name {name!r}")
        vertices[name] = (name, kind, node)
        entry.finish()
    edges: list[Edge] = []
    for entry in fabric.entries("links"):
        edges += _edges(entry, tuple(vertices))
    nodes = sorted({node for _, kind, node in vertices.values() if kind == "device"})
    if vertices and not nodes:
        fabric.problem("vertices", "there is no vertex of kind 'device'")
    if nodes != list(range(len(nodes))):
        fabric.problem("vertices", f"nodes must be numbered from 0 without gaps, but are {nodes}")
    return EdgeList(
        vertices=tuple(vertices.values()),
        edges=tuple(edges),
        device_transit=fabric.flag("device_transit") if fabric.has("device_transit") else None,
        in_switch_reduction=fabric.flag("in_switch_reduction", False),
    )


def edge_list_topology(edge_list: EdgeList, *, name: str, device: Device, source: str) -> Topology:
    """Build the topology; raises InputError as :func:`topology_from_edges` does."""
    devices = [vertex for vertex in edge_list.vertices if vertex[1] == "device"]
    return topology_from_edges(
        name,
        device,
        [vertex for vertex, _, _ in devices],
        edge_list.edges,
        duplex=False,
        node_of=[node for _, _, node in devices],
        vertex_kinds=[(vertex, kind) for vertex, kind, _ in edge_list.vertices if kind != "device"],
        in_switch_reduction=edge_list.in_switch_reduction,
        device_transit=edge_list.device_transit,
        source=source,
    )


def _edges(entry: Reader, vertices: Sequence[str]) -> list[Edge]:
    both_ways = entry.has("between")
    if both_ways:
        ends = entry.texts("between", 2)
        if entry.has("from") or entry.has("to"):
            entry.problem("between", "expected either 'between' or 'from' and 'to', but found both")
    else:
        ends = (entry.text("from"), entry.text("to"))
    for key, end in zip(("between", "between") if both_ways else ("from", "to"), ends, strict=True):
        if end != "?" and end not in vertices:
            entry.problem(key, f"there is no vertex {end!r}{did_you_mean(end, vertices)}")
    capacity = entry.quantity("capacity", "bandwidth")
    latency_s = entry.quantity("latency", "time", zero=True)
    tier = entry.choice("tier", TIERS, "fabric")
    entry.finish()
    tail, head = ends
    forth: Edge = (tail, head, capacity, latency_s, tier)
    back: Edge = (head, tail, capacity, latency_s, tier)
    return [forth, back] if both_ways else [forth]
