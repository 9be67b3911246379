"""Devices, links and topologies: what there is to run on, and how one device reaches another."""

from clustersim.cluster.build import build_topology, device_name
from clustersim.cluster.device import Device, device_from
from clustersim.cluster.topology import Topology, topology_from_edges

__all__ = [
    "Device",
    "Topology",
    "build_topology",
    "device_from",
    "device_name",
    "topology_from_edges",
]
