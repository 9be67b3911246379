"""Topology documents that cannot be used: every problem, with the path of its value."""

from typing import Any

import pytest

from clustersim.cluster import build_topology, device_name
from clustersim.errors import InputError

DEVICE = {
    "name": "toy",
    "vendor": "nobody",
    "source": "made up",
    "memory": {"capacity": "80 GB", "bandwidth": "2 TB/s"},
    "compute": {"bf16": "100 TFLOP/s"},
}
MESH = {"kind": "mesh", "devices_per_node": 2, "link_bandwidth": "1 GB/s", "link_latency": "1 us"}
LINK = {"capacity": "1 GB/s", "latency": "1 us"}


def document(fabric: Any, **more: Any) -> dict[str, Any]:
    return {"name": "t", "device": "toy", "fabric": fabric} | more


def graph(vertices: list[Any], links: list[Any], **more: Any) -> dict[str, Any]:
    return document({"kind": "graph", "vertices": vertices, "links": links} | more)


def devices(*names: str) -> list[Any]:
    return [{"name": name, "kind": "device"} for name in names]


def problems_of(
    wanted: dict[str, Any], overrides: dict[str, Any] | None = None, device: dict[str, Any] | None = None
) -> list[tuple[str | None, str, str]]:
    with pytest.raises(InputError) as caught:
        build_topology(wanted, overrides or {}, device or DEVICE, where="t.yaml")
    return [(problem.file, problem.path, problem.message) for problem in caught.value.problems]


def paths_of(wanted: dict[str, Any], overrides: dict[str, Any] | None = None) -> list[str]:
    return [path for _, path, _ in problems_of(wanted, overrides)]


def test_good_document_is_accepted() -> None:
    assert build_topology(document(MESH), {}, DEVICE).devices == ("n0.g0", "n0.g1")


def test_unknown_kind_names_the_nearest() -> None:
    ((file, path, message),) = problems_of(document({"kind": "mesch"}))
    assert (file, path) == ("t.yaml", "fabric.kind")
    assert message == "unknown 'mesch'; did you mean 'mesh'?"


@pytest.mark.parametrize("fabric", [None, 3, {}])
def test_fabric_that_says_nothing_is_refused(fabric: Any) -> None:
    assert "expected one of nvswitch_rail, mesh" in problems_of(document(fabric))[-1][2]


def test_problems_of_document_and_overrides_and_device_come_together() -> None:
    found = problems_of(
        document(MESH | {"link_latency": "1 GB"}),
        {"name": "t", "link_bandwidth": "0 GB/s", "devices_per_nod": 2},
        DEVICE | {"vendor": None},
    )
    assert [(file, path) for file, path, _ in found] == [
        ("device toy", "vendor"),
        (None, "topology.link_bandwidth"),
        ("t.yaml", "fabric.link_latency"),
        (None, "topology.devices_per_nod"),
    ]
    assert found[1][2] == "expected a positive bandwidth, but found '0 GB/s'"
    assert found[3][2] == "unknown key 'devices_per_nod'; did you mean 'devices_per_node'?"


@pytest.mark.parametrize("count", [0, -1, 2.0, True, "2", "two"])
def test_count_must_be_a_positive_integer(count: Any) -> None:
    assert paths_of(document(MESH | {"devices_per_node": count})) == ["fabric.devices_per_node"]


def test_several_nodes_without_nics_are_unreachable() -> None:
    ((_, path, message),) = problems_of(document(MESH), {"nodes": 2})
    assert path == "topology.nodes"
    assert message.startswith("devices of different nodes are unreachable")


def test_rails_must_divide_the_nics() -> None:
    network = dict.fromkeys(("nic_latency", "fabric_latency", "pcie_latency"), "1 us")
    network |= dict.fromkeys(("nic_bandwidth", "pcie_bandwidth"), "1 GB/s")
    ((_, path, message),) = problems_of(document(MESH | network | {"rails": 3}, nodes=2))
    assert (path, message) == ("fabric.rails", "3 rails don't divide 2 NICs per node")


def test_cluster_of_a_million_nodes_is_taken_for_a_typing_error() -> None:
    assert paths_of(document(MESH, nodes=1_000_000)) == ["nodes"]
    torus = {"kind": "torus", "dims": [999, 999], "link_bandwidth": "1 GB/s", "link_latency": "1 us"}
    assert paths_of(document(torus)) == ["fabric.dims"]


def test_torus_has_no_nodes() -> None:
    torus = {"kind": "torus", "dims": [4, 4], "link_bandwidth": "1 GB/s", "link_latency": "1 us"}
    assert paths_of(document(torus), {"nodes": 2}) == ["topology.nodes"]


def test_bad_dims_are_refused() -> None:
    torus = {"kind": "torus", "dims": [4, 0], "link_bandwidth": "1 GB/s", "link_latency": "1 us"}
    assert paths_of(document(torus)) == ["fabric.dims"]


def test_more_switches_than_devices_are_refused() -> None:
    pcie = {"kind": "pcie", "devices_per_node": 2, "sockets": 2, "switches_per_socket": 2}
    figures = {"pcie_bandwidth": "1 GB/s", "pcie_latency": "1 us"}
    sockets = {"socket_bandwidth": "1 GB/s", "socket_latency": "1 us"}
    assert paths_of(document(pcie | figures | sockets)) == ["fabric.devices_per_node"]


def test_written_graph_is_built() -> None:
    wanted = graph(
        [*devices("a", "b"), {"name": "s", "kind": "switch"}],
        [{"between": ["a", "s"], **LINK}, {"from": "b", "to": "s", **LINK}, {"from": "s", "to": "b", **LINK}],
    )
    topology = build_topology(wanted, {}, DEVICE)
    assert topology.link_ends == (("a", "s"), ("s", "a"), ("b", "s"), ("s", "b"))
    assert topology.transit(0, 1) == (2e-6, 1e9)


def test_written_graph_reports_names_and_figures_that_are_wrong() -> None:
    wanted = graph(
        [*devices("gpu0", "gpu1", "gpu1"), {"name": "s", "kind": "swich"}],
        [
            {"between": ["gpu0", "gpu2"], **LINK},
            {"from": "gpu0", "to": "gpu1", "capacity": "0 GB/s", "latency": "1 us"},
            {"between": ["gpu0", "gpu1"], "from": "gpu0", **LINK},
            {"between": "gpu0", **LINK, "teir": "ici"},
        ],
    )
    assert paths_of(wanted) == [
        "fabric.vertices[2].name",
        "fabric.vertices[3].kind",
        "fabric.links[0].between",
        "fabric.links[1].capacity",
        "fabric.links[2].between",
        "fabric.links[3].between",
        "fabric.links[3].teir",
    ]


def test_written_graph_with_a_device_apart_is_refused() -> None:
    wanted = graph(devices("a", "b", "c"), [{"between": ["a", "b"], **LINK}])
    assert problems_of(wanted)[0][2] == "device 'a' is unreachable from 'c'"


def test_written_graph_numbers_its_nodes_without_gaps() -> None:
    vertices = [{"name": "a", "kind": "device", "node": 0}, {"name": "b", "kind": "device", "node": 2}]
    assert paths_of(graph(vertices, [{"between": ["a", "b"], **LINK}])) == ["fabric.vertices"]


def test_written_graph_without_devices_is_refused() -> None:
    assert paths_of(graph([{"name": "s", "kind": "switch"}], [])) == ["fabric.vertices"]


def test_device_name_comes_from_the_override_first() -> None:
    assert device_name(document(MESH), {}) == "toy"
    assert device_name(document(MESH), {"device": "other"}) == "other"
    with pytest.raises(InputError, match="device: missing"):
        device_name({"name": "t", "fabric": MESH}, {})
