"""What an algorithm sends, apart from any device: who sends how much to whom, and which sends wait.

Algorithms build :class:`Traffic` from the group alone; :func:`price` lays it over the routes of a topology.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from clustersim.collective.constants import Family
from clustersim.collective.group import Group
from clustersim.collective.plan import CommPlan

Send = tuple[int, int, float]
"""Source device, target device, bytes sent per payload byte over the whole collective."""
Step = tuple[int, Sequence[tuple[int, int]]]
"""How many times the step happens one after the other, and its (source, target) pairs: the slowest counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The sends of an algorithm on a group.

    Parameters
    ----------
    sends : sequence of (source, target, bytes per payload byte)
        Everything that is sent; the sends of one pair may be in several entries.
    steps : sequence of (times, pairs)
        The longest chain of steps that wait for each other; it sets α.
    peers : int
        Peers that one rank talks to at the same time (0 or 1: no extra cost).
    own : float
        Bytes per payload byte that a rank keeps and copies.
    switch_loads : sequence of (link, bytes per payload byte)
        Loads of the scale-up switch's own multicasts and reductions, which are no sends between two devices.
    """

    sends: Sequence[Send] = ()
    steps: Sequence[Step] = ()
    peers: int = 0
    own: float = 0.0
    switch_loads: Sequence[tuple[int, float]] = ()


def merged(parts: Iterable[Traffic]) -> Traffic:
    """Return the traffic of stages whose chunks are pipelined: loads add up, and so do the steps."""
    stages = list(parts)
    return Traffic(
        sends=[send for stage in stages for send in stage.sends],
        steps=[step for stage in stages for step in stage.steps],
        peers=max((stage.peers for stage in stages), default=0),
        switch_loads=[load for stage in stages for load in stage.switch_loads],
    )


def scaled(traffic: Traffic, factor: float) -> Traffic:
    """Return the traffic of a part of the payload: the same steps with ``factor`` times the bytes."""
    return Traffic(
        sends=[(source, target, share * factor) for source, target, share in traffic.sends],
        steps=traffic.steps,
        peers=traffic.peers,
        switch_loads=[(link, share * factor) for link, share in traffic.switch_loads],
    )


def price(group: Group, kind: str, algorithm: str, traffic: Traffic, constants: Family) -> CommPlan:
    """Lay traffic over the routes of a topology and add the device's constants.

    α is ``base + peers × peer + Σ steps × (step overhead + latency of the route)``; a send between two
    scale-up domains (``node_of`` differs) has the ``network_`` constants.

    Returns
    -------
    CommPlan
        With one entry per link that is used at all.
    """
    load: dict[int, float] = {}
    topology = group.topology
    nodes = {device: number for number, domain in enumerate(group.domains) for device in domain}
    for source, target, share in traffic.sends:
        is_near = nodes[source] == nodes[target]
        taken = share / (constants.efficiency if is_near else constants.network_efficiency)
        for link in topology.route(source, target):
            load[link] = load.get(link, 0.0) + taken
    for link, share in traffic.switch_loads:
        load[link] = load.get(link, 0.0) + share / constants.efficiency
    links = np.array(sorted(load), np.int64)
    load_per_byte = np.array([load[link] for link in sorted(load)], np.float64)
    alpha_s = constants.base_s + traffic.peers * constants.peer_s
    latency_s = topology.link_latency_s
    for times, pairs in traffic.steps:
        slowest = 0.0
        for source, target in pairs:
            overhead = constants.step_s if nodes[source] == nodes[target] else constants.network_step_s
            route = topology.route(source, target)
            slowest = max(slowest, overhead + math.fsum(latency_s.item(link) for link in route))
        alpha_s += times * slowest
    return CommPlan(
        kind=kind,
        algorithm=algorithm,
        group=group.given,
        alpha_s=alpha_s,
        own_seconds_per_byte=traffic.own * constants.own_s_per_byte,
        ramp_s=constants.ramp_s,
        ramp_half_s=constants.ramp_half_s,
        links=links,
        load_per_byte=load_per_byte,
        seconds_per_byte=float((load_per_byte / topology.link_capacity[links]).max(initial=0.0)),
        max_payload_bytes=constants.max_payload_bytes,
    )
