"""From a topology's YAML document, a scenario's overrides and a device's document to a :class:`Topology`.

A document is data: ``name``, ``device`` (a file of ``topologies/devices``), ``nodes`` (where the fabric has
nodes), ``fabric`` (a ``kind`` with its parameters), ``price`` (of one device, optional), ``peer_access`` (whether
devices reach each other's memory; they do unless it is false) and ``source``. An override replaces ``nodes``,
``device``, ``price``, ``peer_access`` or any parameter of the fabric by its bare name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from clustersim.cluster.assembly import assemble
from clustersim.cluster.device import Device, device_from
from clustersim.cluster.edge_list import edge_list_topology, read_edge_list
from clustersim.cluster.groups import groups_topology, read_groups
from clustersim.cluster.leaf_spine import NETWORK_KEYS, leaf_spine
from clustersim.cluster.node import Node, mesh_node, nvswitch_node, pcie_node
from clustersim.cluster.reading import Reader
from clustersim.cluster.topology import MAX_DEVICES, Topology
from clustersim.cluster.torus import read_torus, torus_topology
from clustersim.errors import InputError, Problem

TOP_KEYS: Final = ("device", "nodes", "price", "peer_access")
"""What an override replaces outside the fabric."""

Finisher = Callable[[str, Device, str], Topology]
"""Builds what was read, given name, device and source; called only when nothing was wrong."""


def device_name(document: Mapping[str, object], overrides: Mapping[str, object], *, where: str | None = None) -> str:
    """Return the name of the device that a topology is made of, so that its document can be read.

    Raises
    ------
    InputError
        When neither the document nor the overrides name one.
    """
    problems: list[Problem] = []
    name = _merged(document, overrides, problems, where)[0].text("device")
    if problems:
        raise InputError(problems)
    return name


def build_topology(
    document: Mapping[str, object],
    overrides: Mapping[str, object],
    device_document: Mapping[str, object],
    *,
    where: str | None = None,
    others: Mapping[str, Mapping[str, object]] | None = None,
) -> Topology:
    """Build a topology.

    Parameters
    ----------
    document : Mapping
        A file of ``topologies`` (or an inline topology) after YAML parsing.
    overrides : Mapping
        The scenario's ``topology:`` mapping, such as ``{name: dgx-h100, nodes: 2}``; empty when it is only
        a name.
    device_document : Mapping
        The file of ``topologies/devices`` that :func:`device_name` names.
    where : str or None
        The topology's file, for error messages.
    others : Mapping, optional
        Devices of groups of nodes: the name that a group uses → its document.

    Raises
    ------
    InputError
        With every problem. Those of the document have ``file == where`` and a path within it, such as
        ``fabric.nic_bandwidth``; those of an override have no file and a path such as
        ``topology.nic_bandwidth``; those of the device have the file ``device NAME`` and a path within the
        device's document.
    """
    problems: list[Problem] = []
    top, fabric = _merged(document, overrides, problems, where)
    name, wanted = top.text("name"), top.text("device")
    source = top.text("source") if top.has("source") else ""
    device = _device(device_document, problems, f"device {wanted}")
    price = top.maybe("price", "price")
    if others and price is not None:
        top.problem("price", "devices of several kinds have prices of their own: price.per_hour of each device's file")
    if device is not None and price is not None:
        device = replace(device, price_per_hour=price)
    devices = {name: _device(found, problems, f"device {name}") for name, found in (others or {}).items()}
    if not top.flag("peer_access", default=True):
        device = device and device.without_peer_access()
        devices = {name: found and found.without_peer_access() for name, found in devices.items()}
    known = len(problems)
    kind = fabric.choice("kind", (*FABRICS, "groups"))
    if len(problems) > known:  # which parameters there should be is unknown, too
        raise InputError(problems)
    finisher = _groups(fabric, top, devices) if kind == "groups" else FABRICS[kind](fabric, top)
    fabric.finish(top)
    top.finish()
    if problems or device is None:
        raise InputError(problems)
    try:
        return finisher(name, device, source)
    except InputError as error:
        raise InputError(
            Problem(message=problem.message, path="fabric", file=where) for problem in error.problems
        ) from None


def _merged(
    document: Mapping[str, object],
    overrides: Mapping[str, object],
    problems: list[Problem],
    where: str | None,
) -> tuple[Reader, Reader]:
    """Return readers of the document and of its fabric, both with the overrides laid over them."""
    top_overrides = {key: overrides[key] for key in TOP_KEYS if key in overrides}
    inner = {key: value for key, value in overrides.items() if key not in ("name", *TOP_KEYS)}
    top = Reader({**document, **top_overrides}, problems, file=where, overridden=tuple(top_overrides))
    fabric = top.raw("fabric")
    merged = {**fabric, **inner} if isinstance(fabric, Mapping) else {} if fabric is None else fabric
    return top, Reader(merged, problems, path="fabric", file=where, overridden=tuple(inner))


def _device(document: Mapping[str, object], problems: list[Problem], where: str) -> Device | None:
    try:
        return device_from(document, where=where)
    except InputError as error:
        problems.extend(error.problems)
        return None


def _nodes(node_kind: Callable[..., Node], fabric: Reader, top: Reader, *, rack: bool = False) -> Finisher:
    """Read a fabric of equal nodes: several of them need NICs and a network between them."""
    nodes = top.count("nodes", 1)
    devices_per_node = fabric.count("devices_per_node")
    if nodes * devices_per_node > MAX_DEVICES:
        top.problem("nodes", f"{nodes} nodes have more than {MAX_DEVICES} devices")
        nodes = 1
    network = None
    has_network = fabric.mentions(*NETWORK_KEYS)
    if nodes > 1 and not has_network:
        keys = "nic_bandwidth, nic_latency, fabric_latency, pcie_bandwidth and pcie_latency"
        top.problem("nodes", f"devices of different nodes are unreachable: the fabric has no NICs; give it {keys}")
        nodes = 1
    if has_network:
        network = leaf_spine(
            fabric,
            nodes=nodes,
            nics_per_node=fabric.count("nics_per_node", devices_per_node),
            rails=1 if rack else None,
            unit="nodes_per_leaf" if rack else "nodes_per_unit",
        )
    if nodes == 1:
        network = None  # nothing could use it
    node = node_kind(fabric, num_nics=0 if network is None else network.nics_per_node)
    in_switch_reduction = node_kind is nvswitch_node and fabric.flag("in_switch_reduction", False)
    return lambda name, device, source: assemble(
        name=name,
        device=device,
        node=node,
        nodes=nodes,
        network=network,
        in_switch_reduction=in_switch_reduction,
        source=source,
    )


def _nvswitch_rail(fabric: Reader, top: Reader) -> Finisher:
    return _nodes(nvswitch_node, fabric, top)


def _mesh(fabric: Reader, top: Reader) -> Finisher:
    return _nodes(mesh_node, fabric, top)


def _pcie(fabric: Reader, top: Reader) -> Finisher:
    return _nodes(pcie_node, fabric, top)


def _two_tier(fabric: Reader, top: Reader) -> Finisher:
    """Nodes with a scale-up switch when ``scaleup_bandwidth`` is given, else with PCIe only."""
    if fabric.has("scaleup_bandwidth"):
        return _nodes(nvswitch_node, fabric, top, rack=True)
    for key in ("scaleup_latency", "in_switch_reduction"):
        if fabric.has(key):
            fabric.problem(key, "needs a scaleup_bandwidth, which is absent")
    return _nodes(pcie_node, fabric, top, rack=True)


def _torus(fabric: Reader, top: Reader) -> Finisher:
    torus = read_torus(fabric)
    _no_nodes(top, "dims")
    if math.prod(torus.dims) > MAX_DEVICES:
        fabric.problem("dims", f"a torus of {math.prod(torus.dims)} devices has more than {MAX_DEVICES}")
    return lambda name, device, source: torus_topology(torus, name=name, device=device, source=source)


def _graph(fabric: Reader, top: Reader) -> Finisher:
    edge_list = read_edge_list(fabric)
    _no_nodes(top, "the 'node' of each vertex")
    return lambda name, device, source: edge_list_topology(edge_list, name=name, device=device, source=source)


def _groups(fabric: Reader, top: Reader, devices: Mapping[str, Device | None]) -> Finisher:
    groups = read_groups(fabric)
    _no_nodes(top, "'nodes' of each group")
    known = {name: found for name, found in devices.items() if found is not None}
    return lambda name, _, source: groups_topology(groups, name=name, devices=known, source=source)


def _no_nodes(top: Reader, instead: str) -> None:
    if top.has("nodes"):
        top.problem("nodes", f"this kind of fabric has no 'nodes'; use {instead}")


FABRICS: Final[Mapping[str, Callable[[Reader, Reader], Finisher]]] = {
    "nvswitch_rail": _nvswitch_rail,
    "mesh": _mesh,
    "pcie": _pcie,
    "torus": _torus,
    "two_tier": _two_tier,
    "graph": _graph,
}
"""Kind of fabric → the function that reads its parameters."""
