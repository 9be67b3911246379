"""Every file in ``topologies/`` can be used, and names where its figures come from."""

import pytest

from clustersim import catalog
from clustersim.cluster import build_topology, device_from
from tests.shipped import read

PROMISED = {
    "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72", "h800-node", "mi300x-node", "l40s-node",
    "rtx-pro-6000-node", "rtx-4090-node", "tpu-v5p", "tpu-v6e", "fat-tree",
}  # fmt: skip


def test_promised_topologies_are_there() -> None:
    assert set(catalog.names("topologies")) >= PROMISED


@pytest.mark.parametrize("name", catalog.names("topologies"))
def test_topology_file_is_usable_and_sourced(name: str) -> None:
    document = read("topologies", name)
    groups = document["fabric"].get("groups", ())
    others = {group["device"]: read("topologies/devices", group["device"]) for group in groups}
    document.setdefault("device", next(iter(others), None))
    device = read("topologies/devices", str(document["device"]))
    topology = build_topology(document, {}, device, where=name, others=others)
    assert topology.name == name
    assert topology.source
    assert topology.route(0, len(topology.devices) - 1)


@pytest.mark.parametrize("name", catalog.names("topologies/devices"))
def test_device_file_is_usable_and_sourced(name: str) -> None:
    device = device_from(read("topologies/devices", name), where=name)
    assert device.name == name
    assert device.source
    assert device.flops["bf16"] > 1e14
    # A driver may report GiB where the sheet says GB (7 % more), and keep some to itself.
    assert device.sheet_memory_bytes is not None
    assert 0.95 < device.memory_bytes / device.sheet_memory_bytes < 1.1


@pytest.mark.parametrize("folder", ["topologies", "topologies/devices"])
def test_files_end_in_a_newline(folder: str) -> None:
    # Fitted sections are appended to device files.
    for name in catalog.names(folder):
        assert catalog.path_of(folder, name).read_text(encoding="utf-8").endswith("\n")
