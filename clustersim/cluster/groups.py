"""The fabric kind ``groups``: nodes of several kinds, with devices of their own, on one network.

::

    spine0 … spine3                every leaf on every spine
      ╱│╲      ╱│╲
    leaf0     leaf1                all NICs of a group of nodes on one leaf
      │         │
    n0 n1     n2 n3                nodes of group 0, nodes of group 1

Every group names its device. Not modelled: host memory (nothing can be swapped there), and more than one leaf per
group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from clustersim.cluster.device import Device
from clustersim.cluster.node import Node, mesh_node, nvswitch_node, pcie_node
from clustersim.cluster.reading import MOST_OVERSUBSCRIBED, Reader
from clustersim.cluster.topology import MAX_GROUPED, DeviceKinds, Edge, Topology, topology_from_edges
from clustersim.values import dataclass

NODES: Final = {"nvswitch": nvswitch_node, "mesh": mesh_node, "pcie": pcie_node}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that are alike.

    Parameters
    ----------
    device : str
        Name of its device.
    node : Node
    nodes : int
    in_switch_reduction : bool
        Whether the scale-up switch of a node reduces.
    nic_bandwidth, nic_latency_s : float
        Of a NIC's link to the leaf, in each direction.
    """

    device: str
    node: Node
    nodes: int
    in_switch_reduction: bool
    nic_bandwidth: float
    nic_latency_s: float

    @property
    def bandwidth(self) -> float:
        """Bytes/s of all its NICs."""
        return self.nodes * self.node.num_nics * self.nic_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of nodes and the network between them."""

    groups: tuple[Group, ...]
    spines: int
    fabric_latency_s: float
    oversubscription: float


def read_groups(fabric: Reader) -> Groups:
    """Read the keys ``groups``, ``spines``, ``fabric_latency`` and ``oversubscription``."""
    groups = tuple(_group(entry) for entry in fabric.entries("groups"))
    if not groups:
        fabric.problem("groups", "there is no group of nodes; expected one or more")
    devices = sum(group.nodes * group.node.num_devices for group in groups)
    if devices > MAX_GROUPED:
        fabric.problem("groups", f"{devices} devices are more than the {MAX_GROUPED} that groups of nodes may have")
    return Groups(
        groups=groups,
        spines=fabric.count("spines", 1),
        fabric_latency_s=fabric.quantity("fabric_latency", "time", zero=True),
        oversubscription=fabric.number("oversubscription", 1.0, least=1.0, most=MOST_OVERSUBSCRIBED),
    )


def _group(entry: Reader) -> Group:
    device = entry.text("device")
    kind = entry.choice("kind", tuple(NODES), "nvswitch")
    num_nics = entry.count("nics_per_node", entry.count("devices_per_node"))
    node = NODES[kind](entry, num_nics=num_nics)
    if node.host is not None:
        entry.problem("host_bandwidth", "groups of nodes have no host memory; leave it out")
    group = Group(
        device=device,
        node=node,
        nodes=entry.count("nodes", 1),
        in_switch_reduction=kind == "nvswitch" and entry.flag("in_switch_reduction", False),
        nic_bandwidth=entry.quantity("nic_bandwidth", "bandwidth"),
        nic_latency_s=entry.quantity("nic_latency", "time", zero=True),
    )
    entry.finish()
    return group


def groups_topology(found: Groups, *, name: str, devices: Mapping[str, Device], source: str) -> Topology:
    """Build the topology.

    Parameters
    ----------
    found : Groups
    name : str
    devices : mapping
        By the names that groups use.
    source : str
    """
    names: list[str] = []
    node_of: list[int] = []
    kind_of: list[int] = []
    kinds: list[tuple[str, str]] = []
    edges: list[Edge] = []
    number = 0
    for which, group in enumerate(found.groups):
        leaf = f"leaf{which}"
        kinds.append((leaf, "leaf"))
        for _ in range(group.nodes):
            inside = [(f"n{number}.{vertex}", kind) for vertex, kind in group.node.vertices]
            names += [vertex for vertex, _ in inside[: group.node.num_devices]]
            node_of += [number] * group.node.num_devices
            kind_of += [which] * group.node.num_devices
            kinds += inside[group.node.num_devices :]
            for tail, head, capacity, latency_s, tier in group.node.links:
                edges.append((inside[tail][0], inside[head][0], capacity, latency_s, tier))
            for vertex, kind in inside:
                if kind == "nic":
                    edges += _both(vertex, leaf, group.nic_bandwidth, group.nic_latency_s, "nic")
            number += 1
        if len(found.groups) > 1:
            each = group.bandwidth / (found.spines * found.oversubscription)
            for spine in range(found.spines):
                edges += _both(leaf, f"spine{spine}", each, found.fabric_latency_s, "fabric")
    if len(found.groups) > 1:
        kinds += [(f"spine{spine}", "spine") for spine in range(found.spines)]
    plain = topology_from_edges(
        name,
        devices[found.groups[0].device],
        names,
        edges,
        duplex=False,
        node_of=node_of,
        vertex_kinds=kinds,
        in_switch_reduction=found.groups[0].in_switch_reduction,
        device_transit=False,
        source=source,
    )
    return plain.with_kinds(
        DeviceKinds(
            devices=tuple(devices[group.device] for group in found.groups),
            reduces=tuple(group.in_switch_reduction for group in found.groups),
            of=np.array(kind_of, np.int64),
        )
    )


def _both(tail: str, head: str, capacity: float, latency_s: float, tier: str) -> tuple[Edge, Edge]:
    return (tail, head, capacity, latency_s, tier), (head, tail, capacity, latency_s, tier)
