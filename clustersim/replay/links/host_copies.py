"""What a copy of K/V blocks between a device and the memory of its host costs.

A copy costs what a send between devices does (base and efficiency of ``send``, ``collective.constants``) over the route
to the host; that blocks lie apart, and are copied one by one, is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clustersim.clock import LATEST_NS, NS_PER_S, Int64Array, to_ns_array
from clustersim.cluster.topology import Topology
from clustersim.collective.constants import family
from clustersim.collective.price import CommPlan


def host_plan(topology: Topology, device: int, *, out: bool) -> CommPlan:
    """Return what a copy between a device and its host costs."""
    assert topology.hosts is not None
    links = np.array(sorted(topology.hosts.host_path(device, out=out)), np.int64)
    constants = family(topology.device, "send")
    load = np.full(len(links), 1 / constants.efficiency)
    return CommPlan(
        kind="swap",
        algorithm="direct",
        group=(device,),
        alpha_s=constants.base_s + constants.step_s + float(topology.link_latency_s[links].sum()),
        own_seconds_per_byte=0.0,
        ramp_s=constants.ramp_s,
        ramp_half_s=constants.ramp_half_s,
        links=links,
        load_per_byte=load,
        seconds_per_byte=float((load / topology.link_capacity[links]).max()),
    )


def copies_ns(topology: Topology, devices: Iterable[int], payloads: Int64Array) -> Int64Array | None:
    """Return nanoseconds of copies that meet nothing, in and out; None where devices differ, or for too long ones.

    Parameters
    ----------
    topology : Topology
    devices : iterable of int
    payloads : int64 array of shape (n,)
        Bytes.

    Returns
    -------
    int64 array of shape (2, n) or None
    """
    found = {
        tuple((plan.alpha_s, plan.seconds_per_byte) for plan in plans): plans
        for plans in ([host_plan(topology, device, out=out) for out in (False, True)] for device in devices)
    }
    if len(found) > 1:
        return None
    (plans,) = found.values()
    seconds = np.stack([plan.seconds(payloads) for plan in plans])
    return to_ns_array(seconds) if seconds.max() * NS_PER_S < LATEST_NS else None
