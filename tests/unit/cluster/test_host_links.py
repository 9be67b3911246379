"""Links to host memory: where a topology has them, that nothing else changes with them, and who shares one."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.cluster import Topology, build_topology
from clustersim.errors import InputError
from tests.shipped import read, topology_of

NONE = {"host_bandwidth": None, "host_latency": None, "devices_per_host_link": None}


def path(topology: Topology, device: int, *, out: bool) -> list[str]:
    """Names of the vertices between a device and the memory of its host."""
    assert topology.hosts is not None
    links = topology.hosts.host_path(device, out=out)
    return [topology.link_ends[links[0]][0], *(topology.link_ends[link][1] for link in links)]


@pytest.mark.parametrize(
    ("name", "device", "there"),
    [
        ("dgx-h100", 9, ["n1.g1", "n1.host0"]),
        ("mi300x-node", 7, ["n0.g7", "n0.host0"]),
        ("dgx-a100", 13, ["n1.g5", "n1.port2", "n1.host0"]),
        ("gb200-nvl72", 71, ["n0.g71", "n0.port35", "n0.host0"]),
        ("l40s-node", 5, ["n0.g5", "n0.pcie2", "n0.host1"]),
        ("rtx-4090-node", 3, ["n0.g3", "n0.host0"]),
    ],
)
def test_a_device_reaches_the_memory_of_its_own_host_and_back(name, device, there):
    topology = topology_of(name)
    assert path(topology, device, out=True) == there
    assert path(topology, device, out=False) == there[::-1]


@pytest.mark.parametrize(("name", "bytes_per_s"), [("dgx-a100", 32e9), ("dgx-h100", 64e9), ("gb200-nvl72", 450e9)])
def test_a_host_link_has_the_bandwidth_of_its_data_sheet(name, bytes_per_s):
    topology = topology_of(name)
    links = [link for link, tier in enumerate(topology.link_tier) if tier == "host"]
    assert set(topology.link_capacity[links].tolist()) == {bytes_per_s}


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100", "mi300x-node"])
def test_host_links_leave_every_other_link_and_route_as_it_was(name):
    with_hosts, without = topology_of(name, nodes=2), topology_of(name, nodes=2, **NONE)
    assert without.hosts is None
    count = len(without.link_ends)
    assert with_hosts.link_ends[:count] == without.link_ends
    assert with_hosts.vertices[: len(without.vertices)] == without.vertices
    assert np.array_equal(with_hosts.link_capacity[:count], without.link_capacity)
    assert set(with_hosts.link_tier[count:]) == {"host"}
    pairs = [(a, b) for a in range(16) for b in range(16)]
    assert [with_hosts.route(*pair) for pair in pairs] == [without.route(*pair) for pair in pairs]


@pytest.mark.parametrize("name", ["fat-tree", "tpu-v6e"])
def test_a_topology_that_gives_no_host_links_has_none(name):
    assert topology_of(name).hosts is None


def test_devices_that_share_a_link_to_the_host_share_what_is_above_their_port():
    topology = topology_of("dgx-a100")
    assert topology.hosts is not None
    above = [topology.hosts.host_path(device, out=True)[1] for device in range(16)]
    assert [above.count(link) for link in above] == [2] * 16


def test_a_graph_has_the_hosts_that_it_names():
    vertices = [{"name": name, "kind": "device"} for name in ("a", "b")]
    vertices += [{"name": name, "kind": "host"} for name in ("left", "right")]
    ends = (("a", "left"), ("b", "right"), ("left", "right"))
    links = [{"between": list(pair), "capacity": "1 GB/s", "latency": "0 s"} for pair in ends]
    device = read("topologies/devices", "l40s")
    fabric = {"kind": "graph", "vertices": vertices, "links": links}
    topology = build_topology({"name": "graph", "device": "l40s", "fabric": fabric}, {}, device)
    assert path(topology, 1, out=True) == ["b", "right"]
    assert path(topology, 0, out=False) == ["left", "a"]


def test_a_host_link_needs_its_bandwidth_and_its_latency():
    with pytest.raises(InputError) as found:
        topology_of("fat-tree", host_bandwidth="64 GB/s")
    assert [problem.path for problem in found.value.problems] == ["fabric.host_latency"]
