"""What ``describe`` says of a topology."""

import json
from typing import Any

import pytest
import yaml

from clustersim import catalog
from clustersim.cluster import Topology, build_topology, describe, device_name
from clustersim.errors import InputError


def load(name: str, **overrides: Any) -> Topology:
    document = yaml.safe_load(catalog.path_of("topologies", name).read_text(encoding="utf-8"))
    device = catalog.path_of("topologies/devices", device_name(document, overrides))
    return build_topology(document, overrides, yaml.safe_load(device.read_text(encoding="utf-8")), where=name)


def test_counts_and_tiers_of_a_node() -> None:
    described = describe(load("dgx-h100", nodes=1))
    assert described["vertices"] == {"device": 8, "switch": 1, "host": 1}
    assert described["tiers"] == [
        {"tier": "scaleup", "links": 16, "bytes_per_s": 450e9, "latency_s": 0.3e-6},
        {"tier": "host", "links": 16, "bytes_per_s": 64e9, "latency_s": 0.5e-6},
    ]
    assert (described["devices"], described["nodes"], described["devices_per_node"]) == (8, 1, [8])
    assert described["device"]["flops"]["bf16"] == 989e12


@pytest.mark.parametrize(
    ("name", "overrides", "bytes_per_s"),
    [
        ("dgx-h100", {"nodes": 2}, 8 * 50e9),
        ("tpu-v6e", {}, 3.2e12),  # docs.cloud.google.com/tpu/docs/v6e: bisection of a pod
        ("mi300x-node", {}, 16 * 64e9),
        ("l40s-node", {}, 33e9),
        ("fat-tree", {}, 8 * 8 * 50e9),
        ("fat-tree", {"oversubscription": 4}, 8 * 8 * 50e9 / 4),
    ],
)
def test_bisection_is_what_crosses_between_halves(name: str, overrides: Any, bytes_per_s: float) -> None:
    assert describe(load(name, **overrides))["bisection"]["bytes_per_s"] == bytes_per_s


def test_bisection_is_left_out_where_it_would_take_long_or_means_nothing() -> None:
    assert describe(load("dgx-h100", nodes=250))["bisection"]["bytes_per_s"] is None
    assert describe(load("tpu-v6e", dims=[1]))["bisection"] is None


def test_route_names_its_hops() -> None:
    route = describe(load("dgx-h100"), "n0.g0", 8)["route"]
    assert (route["source"], route["target"], route["bytes_per_s"]) == ("n0.g0", "n1.g0", 50e9)
    assert [hop["tier"] for hop in route["hops"]] == ["pcie", "nic", "nic", "pcie"]
    assert [hop["to"] for hop in route["hops"]] == ["n0.nic0", "leaf0", "n1.nic0", "n1.g0"]


def test_description_is_plain_json() -> None:
    described = describe(load("gb200-nvl72", nodes=2), 0, 0)
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    assert described["route"]["hops"] == []


@pytest.mark.parametrize("pair", [("n0.g0", None), ("n0.g0", "n0.g9"), (0, 16), (-1, 0)])
def test_unknown_device_is_refused(pair: tuple[Any, Any]) -> None:
    with pytest.raises(InputError):
        describe(load("dgx-h100"), *pair)
