"""Small networks of round numbers for tests of collectives: 1 GB/s links without latency, constants of zero."""

from __future__ import annotations

from clustersim.cluster.device import Device
from clustersim.cluster.topology import Topology, topology_from_edges
from clustersim.collective.constants import FAMILIES

GB_S = 1e9
PLAIN = {
    "base_s": 0.0,
    "efficiency": 1.0,
    "network_step_s": 0.0,
    "network_efficiency": 1.0,
    "max_payload_bytes": 1e18,
}


def device(**families: dict[str, float]) -> Device:
    """A device whose families cost nothing but bytes, except for what is given."""
    collectives = {name: PLAIN | families.get(name, {}) for name in FAMILIES}
    return Device(
        name="toy",
        vendor="none",
        memory_bytes=1,
        memory_bytes_per_s=1.0,
        flops={"bf16": 1.0},
        collectives=collectives,
    )


def crossbar(
    count: int,
    *,
    reduces: bool = False,
    latency_s: float = 0.0,
    tier: str = "scaleup",
    **families: dict[str, float],
) -> Topology:
    """``count`` devices on one switch; device i has link 2 i up and 2 i + 1 down."""
    names = [f"g{i}" for i in range(count)]
    edges = [(name, "switch", GB_S, latency_s, tier) for name in names]
    return topology_from_edges("crossbar", device(**families), names, edges, in_switch_reduction=reduces)


def pairs_on_rails(nodes: int, *, size: int = 2, **families: dict[str, float]) -> Topology:
    """``nodes`` nodes of ``size`` devices: 1 GB/s to the node's switch, 0.1 GB/s to the leaf of the rail."""
    names = [f"n{n}.g{i}" for n in range(nodes) for i in range(size)]
    edges = [(f"n{n}.g{i}", f"n{n}.switch", GB_S, 0.0, "scaleup") for n in range(nodes) for i in range(size)]
    edges += [(f"n{n}.g{i}", f"leaf{i}", GB_S / 10, 0.0, "nic") for n in range(nodes) for i in range(size)]
    edges += [(f"leaf{i}", "spine", GB_S * 100, 0.0, "fabric") for i in range(size)]
    node_of = [n for n in range(nodes) for _ in range(size)]
    return topology_from_edges("rails", device(**families), names, edges, node_of=node_of)


def mesh(count: int) -> Topology:
    """Every device has a link to every other."""
    names = [f"g{i}" for i in range(count)]
    edges = [(names[a], names[b], GB_S, 0.0, "scaleup") for a in range(count) for b in range(a + 1, count)]
    return topology_from_edges("mesh", device(), names, edges)


def torus(x: int, y: int) -> Topology:
    """An x × y torus of devices that forward traffic, x fastest; axes longer than 2 are closed."""
    names = [f"g{i}" for i in range(x * y)]
    at = {(i % x, i // x): name for i, name in enumerate(names)}
    edges = []
    for (column, row), name in at.items():
        for there, length in ((((column + 1) % x, row), x), ((column, (row + 1) % y), y)):
            if length > 2 or there > (column, row):
                edges.append((name, at[there], GB_S, 0.0, "ici"))
    return topology_from_edges("torus", device(), names, edges, device_transit=True)
