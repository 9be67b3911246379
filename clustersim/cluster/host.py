"""The links between the devices of a node and the memory of its host, where a topology's file gives them.

::

    devices_per_host_link: 1        2 (both share what is above their port)
    g0 ── host0                     g0 ── port0 ── host0
    g1 ──┘                          g1 ──┘

They come after all other links of a cluster, node by node, and nothing between devices takes them. Not modelled: the
bandwidth of the host's memory, and that a device has one port for its NIC and its host (their links are apart here).
"""

from __future__ import annotations

from typing import Final, Protocol

from clustersim.cluster.reading import Reader
from clustersim.cluster.routing import ShortestPaths
from clustersim.values import dataclass

HOST_TIER: Final = "host"
HOST_KEYS: Final = ("host_bandwidth", "host_latency", "devices_per_host_link")


class HostRouter(Protocol):
    """Chooses the links between a device and the memory of its host."""

    def host_path(self, device: int, *, out: bool) -> tuple[int, ...]:
        """Return the link ids in order, out of the device or into it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLinks:
    """The links of one node to its host, as its file has them.

    Parameters
    ----------
    num_devices : int
    capacity, latency_s : float
        Bytes/s in each direction, and seconds.
    shared_by : int
        Devices that share a link to the host.
    """

    num_devices: int
    capacity: float
    latency_s: float
    shared_by: int = 1

    @property
    def ports(self) -> int:
        """How many ports there are between devices and host; none where every device has a link of its own."""
        return 0 if self.shared_by == 1 else -(-self.num_devices // self.shared_by)

    @property
    def count(self) -> int:
        """Directed links of a node."""
        return 2 * (self.num_devices + self.ports)

    def vertices(self, node: str) -> list[tuple[str, str]]:
        """Return the names and kinds of what is added to a node."""
        ports = [(f"{node}.port{number}", "pcie_switch") for number in range(self.ports)]
        return [(f"{node}.host0", "host"), *ports]

    def links(self, node: str) -> list[tuple[str, str]]:
        """Return the ends of the links of a node, in order of their ids."""
        host, *ports = (name for name, _ in self.vertices(node))
        found = []
        for device in range(self.num_devices):
            above = ports[device // self.shared_by] if ports else host
            found += [(f"{node}.g{device}", above), (above, f"{node}.g{device}")]
        for port in ports:
            found += [(port, host), (host, port)]
        return found

    def path(self, device: int, *, out: bool) -> tuple[int, ...]:
        """Return the links between a device of the node and the host, counted from 0 within the node."""
        own = 2 * device + (not out)
        if not self.ports:
            return (own,)
        shared = 2 * (self.num_devices + device // self.shared_by) + (not out)
        return (own, shared) if out else (shared, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedHosts:
    """Routes over host links that were added to every node.

    Parameters
    ----------
    node : HostLinks
    first : int
        Id of the first of these links.
    """

    node: HostLinks
    first: int

    def host_path(self, device: int, *, out: bool) -> tuple[int, ...]:
        """Return the link ids in order, out of the device or into it."""
        number, position = divmod(device, self.node.num_devices)
        before = self.first + number * self.node.count
        return tuple(before + link for link in self.node.path(position, out=out))


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestHosts:
    """Routes over the links that devices reach each other by, to the host that is fewest links away.

    Parameters
    ----------
    inside : ShortestPaths
        Over the vertices of a node.
    hosts : tuple of int
        Its vertices that are hosts; each device reaches one of them, and is reached from there.
    num_devices, num_links : int
        Of a node.
    """

    inside: ShortestPaths
    hosts: tuple[int, ...]
    num_devices: int
    num_links: int

    def host_path(self, device: int, *, out: bool) -> tuple[int, ...]:
        """Return the link ids in order, out of the device or into it."""
        number, position = divmod(device, self.num_devices)
        inside = self.inside
        reached = [host for host in self.hosts if _joined(inside, position, host)]
        host = min(reached, key=lambda one: (len(inside.path(position, one)), one))
        path = inside.path(position, host) if out else inside.path(host, position)
        return tuple(number * self.num_links + link for link in path)


def nearest_hosts(
    inside: ShortestPaths, kinds: tuple[str, ...], num_devices: int, num_links: int
) -> NearestHosts | None:
    """Return routes to the hosts of a graph, or None where some device has none that it reaches both ways."""
    hosts = tuple(vertex for vertex, kind in enumerate(kinds) if kind == "host")
    if not all(any(_joined(inside, device, host) for host in hosts) for device in range(num_devices)):
        return None
    return NearestHosts(inside=inside, hosts=hosts, num_devices=num_devices, num_links=num_links)


def _joined(inside: ShortestPaths, device: int, host: int) -> bool:
    return inside.reaches(device, host) and inside.reaches(host, device)


def read_host_links(fabric: Reader, num_devices: int) -> HostLinks | None:
    """Read the keys ``host_bandwidth``, ``host_latency`` and ``devices_per_host_link``; None where there is none."""
    known = [fabric.has(key) for key in HOST_KEYS]  # all of them: null is a way to leave one out
    if not any(known):
        return None
    return HostLinks(
        num_devices=num_devices,
        capacity=fabric.quantity("host_bandwidth", "bandwidth"),
        latency_s=fabric.quantity("host_latency", "time", zero=True),
        shared_by=fabric.count("devices_per_host_link", 1),
    )
