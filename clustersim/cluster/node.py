"""What is inside one node: devices, NICs, scale-up switch or mesh, PCIe; every node of a cluster is a copy.

::

    nvswitch            mesh                 pcie (per socket)
    g0 g1 … g7          g0 ─ g1              g0 g1  nic0
     ╲ │   ╱            │ ╲╱ │                ╲ │  ╱
     nvswitch           g2 ─ g3              pcie0 … ─ host0 ══ host1 ─ …
    g0 ─ nic0 …         g0 ─ nic0 …
"""

from __future__ import annotations

from clustersim.cluster.host import HostLinks, read_host_links
from clustersim.cluster.reading import Reader
from clustersim.values import dataclass

NodeLink = tuple[int, int, float, float, str]
"""Tail and head (positions in ``vertices``), bytes/s, seconds, tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The vertices and directed links of one node.

    Parameters
    ----------
    vertices : tuple of (name, kind)
        Devices first, then NICs, then the rest.
    num_devices, num_nics : int
        How many of the first vertices are devices, and how many of the next NICs.
    links : tuple of NodeLink
        Both directions of every link.
    host : HostLinks or None
        Links to host memory that are not among these.
    """

    vertices: tuple[tuple[str, str], ...]
    num_devices: int
    num_nics: int
    links: tuple[NodeLink, ...]
    host: HostLinks | None = None

    def nic_of(self, device: int) -> int:
        """Return the position among the NICs of the one that ``device`` uses: its share in order."""
        return device * self.num_nics // self.num_devices


def nvswitch_node(fabric: Reader, *, num_nics: int) -> Node:
    """Every device has one link to and one from an ideal switch, and a NIC of its own on PCIe."""
    num_devices = fabric.count("devices_per_node")
    capacity = fabric.quantity("scaleup_bandwidth", "bandwidth")
    latency_s = fabric.quantity("scaleup_latency", "time", zero=True)
    switch = num_devices + num_nics
    links = [link for device in range(num_devices) for link in _both(device, switch, capacity, latency_s, "scaleup")]
    return Node(
        vertices=(
            *_named("g", "device", num_devices),
            *_named("nic", "nic", num_nics),
            ("nvswitch", "switch"),
        ),
        num_devices=num_devices,
        num_nics=num_nics,
        links=(*links, *_direct_nics(fabric, num_devices, num_nics)),
        host=read_host_links(fabric, num_devices),
    )


def mesh_node(fabric: Reader, *, num_nics: int) -> Node:
    """Every device has a link to every other, and a NIC on PCIe; nothing passes through a device."""
    num_devices = fabric.count("devices_per_node")
    capacity = fabric.quantity("link_bandwidth", "bandwidth")
    latency_s = fabric.quantity("link_latency", "time", zero=True)
    links = [
        link
        for low in range(num_devices)
        for high in range(low + 1, num_devices)
        for link in _both(low, high, capacity, latency_s, "scaleup")
    ]
    return Node(
        vertices=(*_named("g", "device", num_devices), *_named("nic", "nic", num_nics)),
        num_devices=num_devices,
        num_nics=num_nics,
        links=(*links, *_direct_nics(fabric, num_devices, num_nics)),
        host=read_host_links(fabric, num_devices),
    )


def pcie_node(fabric: Reader, *, num_nics: int) -> Node:
    """Devices and NICs on PCIe switches (or straight on the host bridge when a socket has none).

    Sockets are joined pairwise. Peers under one switch turn there; all others pass their host bridges.
    """
    num_devices = fabric.count("devices_per_node")
    sockets = fabric.count("sockets", 1)
    switches = fabric.count("switches_per_socket", 0, least=0)
    capacity = fabric.quantity("pcie_bandwidth", "bandwidth")
    latency_s = fabric.quantity("pcie_latency", "time", zero=True)
    ports = sockets * max(switches, 1)
    if ports > num_devices:
        fabric.problem("devices_per_node", f"{num_devices} devices can't populate {ports} PCIe switches")
    first_switch = num_devices + num_nics
    first_host = first_switch + sockets * switches
    first_port = first_switch if switches else first_host
    links: list[NodeLink] = []
    for count, first in ((num_devices, 0), (num_nics, num_devices)):
        for position in range(count):
            port = first_port + position * ports // count
            links += _both(first + position, port, capacity, latency_s, "pcie")
    for switch in range(sockets * switches):
        host = first_host + switch // switches
        links += _both(first_switch + switch, host, capacity, latency_s, "pcie")
    links += _socket_links(fabric, first_host, sockets)
    return Node(
        vertices=(
            *_named("g", "device", num_devices),
            *_named("nic", "nic", num_nics),
            *_named("pcie", "pcie_switch", sockets * switches),
            *_named("host", "host", sockets),
        ),
        num_devices=num_devices,
        num_nics=num_nics,
        links=tuple(links),
    )


def _socket_links(fabric: Reader, first_host: int, sockets: int) -> list[NodeLink]:
    """Join every two sockets; the keys are needed only where there are two."""
    if sockets == 1 and not fabric.has("socket_bandwidth") and not fabric.has("socket_latency"):
        return []
    capacity = fabric.quantity("socket_bandwidth", "bandwidth")
    latency_s = fabric.quantity("socket_latency", "time", zero=True)
    return [
        link
        for low in range(sockets)
        for high in range(low + 1, sockets)
        for link in _both(first_host + low, first_host + high, capacity, latency_s, "pcie")
    ]


def _direct_nics(fabric: Reader, num_devices: int, num_nics: int) -> list[NodeLink]:
    """Link every device with the NIC that it uses."""
    if not num_nics and not fabric.has("pcie_bandwidth") and not fabric.has("pcie_latency"):
        return []
    capacity = fabric.quantity("pcie_bandwidth", "bandwidth")
    latency_s = fabric.quantity("pcie_latency", "time", zero=True)
    if not num_nics:
        return []
    return [
        link
        for device in range(num_devices)
        for link in _both(device, num_devices + device * num_nics // num_devices, capacity, latency_s, "pcie")
    ]


def _named(prefix: str, kind: str, count: int) -> list[tuple[str, str]]:
    return [(f"{prefix}{number}", kind) for number in range(count)]


def _both(tail: int, head: int, capacity: float, latency_s: float, tier: str) -> tuple[NodeLink, NodeLink]:
    return (tail, head, capacity, latency_s, tier), (head, tail, capacity, latency_s, tier)
