"""Puts copies of a node and the network between them together to a topology, and routes over both."""

from __future__ import annotations

import numpy as np

from clustersim.cluster.device import Device
from clustersim.cluster.host import HOST_TIER, AddedHosts, HostRouter, nearest_hosts
from clustersim.cluster.leaf_spine import LeafSpine
from clustersim.cluster.node import Node
from clustersim.cluster.routing import ShortestPaths
from clustersim.cluster.topology import Topology
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesRouter:
    """Inside a node the shortest path; between nodes from the source's own NIC to the target's own.

    Link ids: those of node 0, of node 1, …, then those of the network, then those to hosts that were added.
    """

    node: Node
    inside: ShortestPaths
    network: LeafSpine | None
    num_nodes: int

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Return the link ids in order."""
        node = self.node
        here, a = divmod(source, node.num_devices)
        there, b = divmod(target, node.num_devices)
        if here == there:
            return self._shifted(here, a, b)
        assert self.network is not None
        nic_a, nic_b = node.nic_of(a), node.nic_of(b)
        first = self.num_nodes * len(node.links)
        between = self.network.path(here * node.num_nics + nic_a, there * node.num_nics + nic_b)
        return (
            *self._shifted(here, a, node.num_devices + nic_a),
            *(first + link for link in between),
            *self._shifted(there, node.num_devices + nic_b, b),
        )

    def _shifted(self, number: int, tail: int, head: int) -> tuple[int, ...]:
        first = number * len(self.node.links)
        return tuple(first + link for link in self.inside.path(tail, head))


def assemble(
    *,
    name: str,
    device: Device,
    node: Node,
    nodes: int,
    network: LeafSpine | None,
    in_switch_reduction: bool,
    source: str,
) -> Topology:
    """Build the topology of ``nodes`` copies of ``node``, joined by ``network`` (None for a single node)."""
    names = [[f"n{number}.{vertex}" for vertex, _ in node.vertices] for number in range(nodes)]
    ends = [(inside[tail], inside[head]) for inside in names for tail, head, *_ in node.links]
    last_nic = node.num_devices + node.num_nics
    outer = [] if network is None else network.links([n for ns in names for n in ns[node.num_devices : last_nic]])
    switches = [] if network is None else _switches(network)
    devices = tuple(vertex for inside in names for vertex in inside[: node.num_devices])
    rest = [vertex for inside in names for vertex in inside[node.num_devices :]]
    rest_kinds = [kind for _, kind in node.vertices[node.num_devices :]] * nodes
    added = [] if node.host is None else [node.host] * nodes
    to_hosts = [ends for number, host in enumerate(added) for ends in host.links(f"n{number}")]
    at_hosts = [vertex for number, host in enumerate(added) for vertex in host.vertices(f"n{number}")]
    host_figures = (0.0, 0.0) if node.host is None else (node.host.capacity, node.host.latency_s)
    capacity, latency_s = (
        np.concatenate(
            [np.tile([link[at] for link in node.links], nodes), [link[at] for link in outer], [figure] * len(to_hosts)]
        )
        for at, figure in zip((2, 3), host_figures, strict=True)
    )
    inside = _inside(node)
    return Topology(
        name=name,
        device=device,
        devices=devices,
        node_of=np.repeat(np.arange(nodes, dtype=np.int64), node.num_devices),
        vertices=(*devices, *rest, *(vertex for vertex, _ in (*switches, *at_hosts))),
        vertex_kinds=(*("device",) * len(devices), *rest_kinds, *(kind for _, kind in (*switches, *at_hosts))),
        link_ends=(*ends, *((tail, head) for tail, head, *_ in outer), *to_hosts),
        link_capacity=capacity.astype(np.float64),
        link_latency_s=latency_s.astype(np.float64),
        link_tier=(*(link[4] for link in node.links),) * nodes
        + tuple(link[4] for link in outer)
        + (HOST_TIER,) * len(to_hosts),
        in_switch_reduction=in_switch_reduction,
        source=source,
        copied=(node.num_devices, len(node.links)),
        router=NodesRouter(node=node, inside=inside, network=network, num_nodes=nodes),
        hosts=_hosts(node, inside, len(ends) + len(outer)),
    )


def _hosts(node: Node, inside: ShortestPaths, first: int) -> HostRouter | None:
    if node.host is not None:
        return AddedHosts(node=node.host, first=first)
    return nearest_hosts(inside, tuple(kind for _, kind in node.vertices), node.num_devices, len(node.links))


def _switches(network: LeafSpine) -> list[tuple[str, str]]:
    leaves = [(f"leaf{number}", "leaf") for number in range(network.num_leaves)]
    return leaves + [(f"spine{number}", "spine") for number in range(network.spines)]


def _inside(node: Node) -> ShortestPaths:
    ends_here = node.num_devices + node.num_nics
    return ShortestPaths(
        len(node.vertices),
        [(tail, head) for tail, head, *_ in node.links],
        [link[2] for link in node.links],
        [link[3] for link in node.links],
        [vertex < ends_here for vertex in range(len(node.vertices))],
    )
