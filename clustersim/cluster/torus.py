"""A torus of devices, such as a TPU slice: every device forwards traffic of others, dimension by dimension.

Device i has the coordinates (x, y, …) with x fastest: i = x + X × (y + Y × z). Dimension-order routing:
first all of x, then y, then z; the shorter way round, and where both are equal the rising one from even
coordinates, the falling one from odd. Not modelled: twisted tori, several slices joined over the data
centre's network.
"""

from __future__ import annotations

import math

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cluster.device import Device
from clustersim.cluster.reading import Reader
from clustersim.cluster.topology import Topology
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusRouter:
    """Dimension-order routing.

    Parameters
    ----------
    dims : tuple of int
        Length of each axis.
    wraps : tuple of bool
        Whether the axis is a ring (else a line).
    link_ids : Int64Array
        Shape ``[devices, axes, 2]``: link to the next (0) and to the previous (1) device; −1 for none.
    """

    dims: tuple[int, ...]
    wraps: tuple[bool, ...]
    link_ids: Int64Array

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Return the link ids in order."""
        links: list[int] = []
        device = source
        stride = 1
        for axis, (length, ring) in enumerate(zip(self.dims, self.wraps, strict=True)):
            here, there = device // stride % length, target // stride % length
            step = _step(here, there, length, ring)
            while here != there:
                links.append(int(self.link_ids[device, axis, 0 if step > 0 else 1]))
                after = (here + step) % length
                device += (after - here) * stride
                here = after
            stride *= length
        return tuple(links)


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """What a torus is made of: lengths of its axes, which of them are rings, and the figures of its links."""

    dims: tuple[int, ...]
    wraps: tuple[bool, ...]
    bandwidth: float
    latency_s: float


def read_torus(fabric: Reader) -> Torus:
    """Read the keys ``dims``, ``link_bandwidth``, ``link_latency`` and ``wrap_multiple``.

    An axis is a ring when its length is a multiple of ``wrap_multiple`` and more than 2; else a line.
    """
    dims = fabric.counts("dims")
    multiple = fabric.count("wrap_multiple", 1)
    return Torus(
        dims=dims,
        wraps=tuple(length > 2 and length % multiple == 0 for length in dims),
        bandwidth=fabric.quantity("link_bandwidth", "bandwidth"),
        latency_s=fabric.quantity("link_latency", "time", zero=True),
    )


def torus_topology(torus: Torus, *, name: str, device: Device, source: str) -> Topology:
    """Build the topology of a torus; all its devices are one node."""
    count = math.prod(torus.dims)
    link_ids, ends = _links(torus.dims, torus.wraps)
    devices = tuple(f"n0.g{index}" for index in range(count))
    return Topology(
        name=name,
        device=device,
        devices=devices,
        node_of=np.zeros(count, dtype=np.int64),
        vertices=devices,
        vertex_kinds=("device",) * count,
        link_ends=tuple((devices[tail], devices[head]) for tail, head in ends),
        link_capacity=np.full(len(ends), torus.bandwidth),
        link_latency_s=np.full(len(ends), torus.latency_s),
        link_tier=("ici",) * len(ends),
        in_switch_reduction=False,
        source=source,
        router=TorusRouter(dims=torus.dims, wraps=torus.wraps, link_ids=link_ids),
    )


def _step(here: int, there: int, length: int, ring: bool) -> int:
    if not ring:
        return 1 if there > here else -1
    rising = (there - here) % length
    if 2 * rising == length:
        return 1 if here % 2 == 0 else -1
    return 1 if 2 * rising < length else -1


def _links(dims: tuple[int, ...], wraps: tuple[bool, ...]) -> tuple[Int64Array, list[tuple[int, int]]]:
    """Number the links device by device, axis by axis, next before previous."""
    count = math.prod(dims)
    link_ids: Int64Array = np.full((count, len(dims), 2), -1, dtype=np.int64)
    ends: list[tuple[int, int]] = []
    for index in range(count):
        stride = 1
        for axis, (length, ring) in enumerate(zip(dims, wraps, strict=True)):
            here = index // stride % length
            for way, step in enumerate((1, -1)):
                after = (here + step) % length
                if ring or 0 <= here + step < length:
                    link_ids[index, axis, way] = len(ends)
                    ends.append((index, index + (after - here) * stride))
            stride *= length
    return link_ids, ends
