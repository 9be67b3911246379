"""Devices that ship, parsed once in a process, by the parser in C where there is one."""

from __future__ import annotations

from functools import cache

import yaml

from clustersim.catalog import path_of
from clustersim.cluster import device_from
from clustersim.cluster.device import Device


@cache
def device(name: str) -> Device:
    """Return an accelerator of ``topologies/devices``."""
    text = path_of("topologies/devices", name).read_text(encoding="utf-8")
    return device_from(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
