"""The topology of a cluster: devices, NICs, switches and directed links with capacity and latency.

Links are arrays indexed by link id; the networkx graph is made from them on first use, routes on demand.
Crossbars (NVSwitch, leaf and spine switches) are ideal: only links limit traffic. Not modelled: buffers,
packet loss, adaptive routing, CPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.cluster.device import Device, Limits
from clustersim.cluster.host import HostRouter, nearest_hosts
from clustersim.cluster.routing import Router, ShortestPaths
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.values import dataclass

if TYPE_CHECKING:
    import networkx as nx

MAX_DEVICES: Final = 262_144
"""More devices than any cluster has; a typing error is more likely than a wish."""

MAX_GROUPED: Final = 1024
"""More devices than this of several kinds are refused: their routes are searched for one by one."""

Edge = tuple[str, str, float, float, str]
"""From, to, capacity in bytes/s, latency in seconds, tier."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceKinds:
    """Kinds of devices of one topology.

    Parameters
    ----------
    devices : tuple of Device
    reduces : tuple of bool
        Whether the scale-up switch of each kind reduces.
    of : int64 array of shape (devices,)
        Kind of each device.
    """

    devices: tuple[Device, ...]
    reduces: tuple[bool, ...]
    of: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topology:
    """Devices, of one kind or of several, and the links between them.

    Parameters
    ----------
    device : Device
        The kind of all devices; or, where there are several, of those in view (:meth:`seen_from`).
    devices : tuple of str
        Names in index order, such as ``n0.g0``; a device's index is its position.
    node_of : Int64Array
        Shape ``[devices]``: each device's scale-up domain (node, rack on one NVLink switch, torus slice).
    vertices, vertex_kinds : tuple of str
        All vertices with their kinds (``device``, ``nic``, ``switch``, ``leaf``, ``spine``, ``pcie_switch``,
        ``host``); the devices come first, in index order.
    link_ends : tuple of (str, str)
        Tail and head of each directed link, by link id.
    link_capacity, link_latency_s : FloatArray
        Shape ``[links]``: bytes/s and seconds.
    link_tier : tuple of str
        ``scaleup``, ``pcie``, ``nic``, ``fabric``, ``ici`` or ``host``.
    in_switch_reduction : bool
        Whether the scale-up switch reduces and multicasts (NVLink SHARP).
    router : Router
        Chooses the links between two devices.
    source : str
        Where the figures come from.
    copied : tuple of (int, int) or None
        Devices and links of a node where nodes are copies, numbered node by node, and routes inside them alike.
    hosts : HostRouter or None
        Chooses the links between a device and the memory of its host; None where there is no way to one.
    kinds : DeviceKinds or None
        Kinds of devices; None where there is one.
    """

    name: str
    device: Device
    devices: tuple[str, ...]
    node_of: Int64Array
    vertices: tuple[str, ...]
    vertex_kinds: tuple[str, ...]
    link_ends: tuple[tuple[str, str], ...]
    link_capacity: FloatArray
    link_latency_s: FloatArray
    link_tier: tuple[str, ...]
    in_switch_reduction: bool
    router: Router = field(repr=False)
    source: str = ""
    copied: tuple[int, int] | None = None
    hosts: HostRouter | None = None
    kinds: DeviceKinds | None = None
    _routes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)
    _graphs: list[nx.DiGraph] = field(default_factory=list, init=False, repr=False)
    _views: dict[int, Topology] = field(default_factory=dict, init=False, repr=False)
    _limited: dict[Limits, Topology] = field(default_factory=dict, init=False, repr=False)

    def with_kinds(self, kinds: DeviceKinds) -> Topology:
        """Return the topology with devices of several kinds, those of the first one in view."""
        return replace(self, kinds=kinds)

    def with_limits(self, limits: Limits) -> Topology:
        """Return the topology with the limits of an engine's own all-reduces (``Device.custom_limits``)."""
        if not limits:
            return self
        if limits not in self._limited:
            kinds, limited = self.kinds, partial(replace, custom_limits=dict(limits))
            if kinds is not None:
                kinds = replace(kinds, devices=tuple(limited(device) for device in kinds.devices))
            self._limited[limits] = replace(self, device=limited(self.device), kinds=kinds)
        return self._limited[limits]

    def seen_from(self, device: int) -> Topology:
        """Return the topology as ranks on devices of the kind of ``device`` see it: ``device`` is of that kind.

        Where all devices are of one kind it is the topology itself.
        """
        kinds = self.kinds
        if kinds is None or not 0 <= device < len(self.devices):
            return self
        kind = int(kinds.of[device])
        if kind not in self._views:
            view = replace(self, device=kinds.devices[kind], in_switch_reduction=kinds.reduces[kind])
            self._views[kind] = view
        return self._views[kind]

    def device_names(self) -> tuple[str, ...]:
        """Return the names of the kinds of devices, each once."""
        kinds = (self.device,) if self.kinds is None else self.kinds.devices
        return tuple(dict.fromkeys(device.name for device in kinds))

    def of_kind(self, name: str) -> tuple[int, ...]:
        """Return the devices whose kind has a name."""
        if self.kinds is None:
            return tuple(range(len(self.devices))) if name == self.device.name else ()
        named = [device.name == name for device in self.kinds.devices]
        return tuple(index for index, kind in enumerate(self.kinds.of.tolist()) if named[kind])

    @property
    def graph(self) -> nx.DiGraph:
        """The topology as a networkx graph, made on first use.

        Vertices have ``kind``; edges have ``capacity`` (bytes/s), ``latency_s``, ``link`` (id) and ``tier``.
        """
        if not self._graphs:
            import networkx as nx

            graph = nx.DiGraph(name=self.name)
            graph.add_nodes_from(
                (vertex, {"kind": kind}) for vertex, kind in zip(self.vertices, self.vertex_kinds, strict=True)
            )
            columns = zip(
                self.link_ends,
                self.link_capacity.tolist(),
                self.link_latency_s.tolist(),
                self.link_tier,
                strict=True,
            )
            graph.add_edges_from(
                (tail, head, {"capacity": capacity, "latency_s": latency_s, "link": link, "tier": tier})
                for link, ((tail, head), capacity, latency_s, tier) in enumerate(columns)
            )
            self._graphs.append(graph)
        return self._graphs[0]

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the link ids from device ``source`` to device ``target``; empty when they are the same.

        The same pair has the same route in every run and every fresh object.
        """
        route = self._routes.get((source, target))
        if route is None:
            for index in (source, target):
                if not 0 <= index < len(self.devices):
                    raise IndexError(f"device index {index} is outside 0 … {len(self.devices) - 1}")
            route = () if source == target else self.router.path(source, target)
            self._routes[source, target] = route
        return route

    def in_first_copy(self, devices: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return the devices of node 0 that stand where these stand in theirs, and how much higher these links are.

        Routes among the one are routes among the other, link by link, where nodes are copies and all devices are in
        one; else the devices themselves and 0 are returned.
        """
        if self.copied is None or not devices or not 0 <= min(devices) <= max(devices) < len(self.devices):
            return devices, 0
        size, links = self.copied
        node = devices[0] // size
        if not node or any(device // size != node for device in devices):
            return devices, 0
        return tuple(device - node * size for device in devices), node * links

    def transit(self, source: int, target: int) -> tuple[float, float]:
        """Return the latency in seconds (sum) and the bandwidth in bytes/s (minimum) of a route.

        From a device to itself that is 0 s and infinite bytes/s.
        """
        links = list(self.route(source, target))
        if not links:
            return 0.0, float("inf")
        return float(self.link_latency_s[links].sum()), float(self.link_capacity[links].min())

    def index_of(self, device: str) -> int:
        """Return the index of a device by its name.

        Raises
        ------
        InputError
            When there is no such device.
        """
        try:
            return self.devices.index(device)
        except ValueError:
            near = did_you_mean(device, self.devices) if len(self.devices) <= 1024 else ""
            range_ = f"{self.devices[0]} … {self.devices[-1]}"
            near = near if "did you mean" in near else f"; its devices are {range_}"
            raise InputError(Problem(message=f"{self.name} has no device {device!r}{near}")) from None


def topology_from_edges(
    name: str,
    device: Device,
    devices: Sequence[str],
    edges: Iterable[Edge],
    *,
    duplex: bool = True,
    node_of: Sequence[int] | None = None,
    vertex_kinds: Sequence[tuple[str, str]] = (),
    in_switch_reduction: bool = False,
    device_transit: bool | None = None,
    source: str = "",
) -> Topology:
    """Build a topology from a list of links.

    Parameters
    ----------
    devices : Sequence of str
        Names in index order; every other name in ``edges`` is a switch unless ``vertex_kinds`` says more.
    edges : Iterable of (from, to, bytes/s, seconds, tier)
        With ``duplex`` each also gives the link in the other direction, with the next id.
    node_of : Sequence of int or None
        Node of each device; None puts all on node 0.
    vertex_kinds : Sequence of (name, kind)
        Kinds of vertices that are no devices.
    device_transit : bool or None
        Whether traffic may pass through other devices; None: only when there is nothing but devices.

    Raises
    ------
    InputError
        On duplicate names or links, a capacity that is not positive, or devices that cannot reach each other.

    Examples
    --------
    ``topology_from_edges("pair", device, ["a", "b"], [("a", "b", 100e9, 1e-6, "scaleup")])``
    """
    links = [link for edge in edges for link in ((edge, _reversed(edge)) if duplex else (edge,))]
    kinds = dict.fromkeys(devices, "device") | dict(vertex_kinds)
    for tail, head, *_ in links:
        kinds.setdefault(tail, "switch")
        kinds.setdefault(head, "switch")
    problems = _wrong_links(devices, links)
    vertices = tuple(kinds)
    index = {vertex: position for position, vertex in enumerate(vertices)}
    transit = len(devices) == len(vertices) if device_transit is None else device_transit
    if problems:
        raise InputError(problems)
    router = ShortestPaths(
        len(vertices),
        [(index[tail], index[head]) for tail, head, *_ in links],
        [link[2] for link in links],
        [link[3] for link in links],
        [position < len(devices) and not transit for position in range(len(vertices))],
    )
    problems = _unreachable(devices, router, transit)
    if problems:
        raise InputError(problems)
    return Topology(
        name=name,
        device=device,
        devices=tuple(devices),
        node_of=np.array([0] * len(devices) if node_of is None else node_of, dtype=np.int64),
        vertices=vertices,
        vertex_kinds=tuple(kinds.values()),
        link_ends=tuple((tail, head) for tail, head, *_ in links),
        link_capacity=np.array([link[2] for link in links], dtype=np.float64),
        link_latency_s=np.array([link[3] for link in links], dtype=np.float64),
        link_tier=tuple(link[4] for link in links),
        in_switch_reduction=in_switch_reduction,
        router=router,
        source=source,
        hosts=nearest_hosts(router, tuple(kinds.values()), len(devices), len(links)),
    )


def _reversed(edge: Edge) -> Edge:
    tail, head, capacity, latency_s, tier = edge
    return head, tail, capacity, latency_s, tier


def _wrong_links(devices: Sequence[str], links: Sequence[Edge]) -> list[Problem]:
    counts = Counter(devices)
    problems = [
        Problem(message=f"{count} devices have the name {name!r}") for name, count in counts.items() if count > 1
    ]
    seen = Counter((tail, head) for tail, head, *_ in links)
    for tail, head, capacity, latency_s, _ in links:
        arrow = f"{tail} → {head}"
        if tail == head:
            problems.append(Problem(message=f"the link {arrow} joins a vertex with itself"))
        if not 0 < capacity < float("inf"):
            message = f"the link {arrow} has the capacity {capacity:g} bytes/s; expected a positive one"
            problems.append(Problem(message=message))
        if not 0 <= latency_s < float("inf"):
            message = f"the link {arrow} has the latency {latency_s:g} s; expected 0 s or more"
            problems.append(Problem(message=message))
    problems += [
        Problem(message=f"{count} links {tail} → {head}; write one with the sum of their capacities")
        for (tail, head), count in seen.items()
        if count > 1
    ]
    if not devices:
        problems.append(Problem(message="there is no device"))
    return problems


def _unreachable(devices: Sequence[str], router: ShortestPaths, transit: bool) -> list[Problem]:
    """Name, per device that others cannot reach, the first that cannot."""
    problems = []
    for target, name in enumerate(devices):
        lost = next((s for s in range(len(devices)) if not router.reaches(s, target)), None)
        if lost is not None:
            hint = "" if transit else " without passing through another device (device_transit is false)"
            problems.append(Problem(message=f"device {name!r} is unreachable from {devices[lost]!r}{hint}"))
    return problems
