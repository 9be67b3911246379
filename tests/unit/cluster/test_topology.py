"""Topologies from a list of links: arrays, graph, routes, and what is refused."""

import numpy as np
import pytest

from clustersim.cluster import Device, Topology, topology_from_edges
from clustersim.errors import InputError

DEVICE = Device(name="toy", vendor="nobody", memory_bytes=1, memory_bytes_per_s=1.0, flops={"bf16": 1.0})
STAR = [(name, "sw", 100.0, 1.0, "scaleup") for name in ("a", "b", "c")]


def star(**options: object) -> Topology:
    return topology_from_edges("star", DEVICE, ["a", "b", "c"], STAR, **options)  # type: ignore[arg-type]


def problems_of(devices: list[str], edges: list[tuple[str, str, float, float, str]]) -> list[str]:
    with pytest.raises(InputError) as caught:
        topology_from_edges("t", DEVICE, devices, edges, duplex=False)
    return [problem.message for problem in caught.value.problems]


def test_links_are_numbered_forth_and_back_in_the_order_given() -> None:
    topology = star()
    assert topology.link_ends[:3] == (("a", "sw"), ("sw", "a"), ("b", "sw"))
    assert topology.link_capacity.tolist() == [100.0] * 6
    assert topology.vertex_kinds == ("device", "device", "device", "switch")


def test_route_goes_through_the_switch() -> None:
    topology = star()
    assert [topology.link_ends[link] for link in topology.route(0, 2)] == [("a", "sw"), ("sw", "c")]


def test_transit_is_summed_latency_and_least_capacity() -> None:
    edges = [("a", "sw", 100.0, 1.0, "scaleup"), ("sw", "b", 40.0, 0.5, "scaleup")]
    topology = topology_from_edges("t", DEVICE, ["a", "b"], edges)
    assert topology.transit(0, 1) == (1.5, 40.0)


def test_transit_to_itself_takes_nothing() -> None:
    assert star().route(1, 1) == ()
    assert star().transit(1, 1) == (0.0, float("inf"))


def test_graph_has_the_attributes_of_vertices_and_links() -> None:
    graph = star().graph
    assert graph.nodes["sw"] == {"kind": "switch"}
    assert graph.edges["sw", "b"] == {"capacity": 100.0, "latency_s": 1.0, "link": 3, "tier": "scaleup"}
    assert star().graph.number_of_edges() == 6


def test_nodes_are_zero_unless_given() -> None:
    assert star().node_of.tolist() == [0, 0, 0]
    assert star(node_of=[0, 1, 1]).node_of.dtype == np.int64


def test_fewest_links_win_over_bandwidth() -> None:
    wide = [("a", "x", 9e9, 0.0, "fabric"), ("x", "y", 9e9, 0.0, "fabric"), ("y", "b", 9e9, 0.0, "fabric")]
    topology = topology_from_edges("t", DEVICE, ["a", "b"], [*wide, ("a", "b", 1.0, 1.0, "pcie")])
    assert topology.transit(0, 1) == (1.0, 1.0)


def test_wider_of_two_routes_of_equal_length_is_taken() -> None:
    edges = [
        (end, switch, capacity, 0.0, "fabric")
        for switch, capacity in (("slow", 10e9), ("fast", 20e9))
        for end in ("a", "b")
    ]
    topology = topology_from_edges("t", DEVICE, ["a", "b"], edges)
    assert topology.transit(0, 1) == (0.0, 20e9)


def test_equal_routes_are_spread_over_targets() -> None:
    devices = ["a", "b", "c", "d"]
    edges = [(device, switch, 1e9, 0.0, "fabric") for device in devices for switch in ("s0", "s1")]
    topology = topology_from_edges("t", DEVICE, devices, edges)
    via = [topology.link_ends[topology.route(0, target)[0]][1] for target in (1, 2, 3)]
    assert via == ["s1", "s0", "s1"]


def test_devices_forward_only_where_there_is_nothing_else() -> None:
    line = [("a", "b", 1e9, 1.0, "ici"), ("b", "c", 1e9, 1.0, "ici")]
    assert len(topology_from_edges("line", DEVICE, ["a", "b", "c"], line).route(0, 2)) == 2
    with pytest.raises(InputError, match="'c' is unreachable from 'a' without passing through another"):
        topology_from_edges("line", DEVICE, ["a", "b", "c"], line, device_transit=False)


def test_device_that_cannot_be_reached_is_named() -> None:
    edges = [
        ("a", "sw", 1.0, 0.0, "scaleup"),
        ("sw", "a", 1.0, 0.0, "scaleup"),
        ("b", "sw", 1.0, 0.0, "scaleup"),
    ]
    (message,) = problems_of(["a", "b"], edges)
    assert message.startswith("device 'b' is unreachable from 'a'")


def test_all_wrong_links_are_reported_at_once() -> None:
    edges = [
        ("a", "b", 0.0, 1.0, "ici"),
        ("b", "a", 1.0, -1.0, "ici"),
        ("b", "a", 1.0, 0.0, "ici"),
        ("b", "b", 1.0, 0.0, "ici"),
    ]
    assert problems_of(["a", "b", "b"], edges) == [
        "2 devices have the name 'b'",
        "the link a → b has the capacity 0 bytes/s; expected a positive one",
        "the link b → a has the latency -1 s; expected 0 s or more",
        "the link b → b joins a vertex with itself",
        "2 links b → a; write one with the sum of their capacities",
    ]


def test_topology_without_devices_is_refused() -> None:
    assert problems_of([], []) == ["there is no device"]


def test_index_of_unknown_device_suggests_the_nearest() -> None:
    topology = topology_from_edges("t", DEVICE, ["n0.g0"], [])
    assert topology.index_of("n0.g0") == 0
    with pytest.raises(InputError, match=r"no device 'n0\.g'; did you mean 'n0\.g0'"):
        topology.index_of("n0.g")


def test_route_refuses_an_index_outside() -> None:
    with pytest.raises(IndexError, match="device index 3 is outside 0 … 2"):
        star().route(0, 3)
