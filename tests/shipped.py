"""What ships, read by the parser in C where there is one: documents, devices, and topologies with what is changed."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import yaml

from clustersim.catalog import path_of
from clustersim.cluster import Topology, build_topology, device_from, device_name
from clustersim.cluster.device import Device

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(folder: str, name: str) -> dict[str, Any]:
    """Return what a file of the catalog says."""
    found: dict[str, Any] = yaml.load(path_of(folder, name).read_text(encoding="utf-8"), Loader=_LOADER)
    return found


@cache
def device(name: str) -> Device:
    """Return an accelerator of ``topologies/devices``, read once in a process."""
    return device_from(read("topologies/devices", name))


def topology_of(name: str, **overrides: Any) -> Topology:
    """Return a topology of ``topologies`` with other values of its keys, built anew."""
    base = read("topologies", name)
    return build_topology(base, overrides, read("topologies/devices", device_name(base, overrides)), where=name)
