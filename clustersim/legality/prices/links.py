"""Seconds of collectives over the links of a topology: start-up, and bytes over the link that is busy longest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cluster.topology import Topology
from clustersim.collective.constants import ASSUMED
from clustersim.legality.prices.experts import to_experts
from clustersim.legality.prices.sent import Members, Sent, members_of
from clustersim.legality.prices.ways import WAYS
from clustersim.plan.exchange import Exchange
from clustersim.values import dataclass

NO_MORE: Final[Mapping[str, float]] = {"efficiency": 1.0, "network_efficiency": 1.0, "ramp_half_s": 1e-5}
"""Constants of a family that are not 0 where nothing says anything of them."""
FILLED_IN: Final = ("network_step_s", "network_efficiency", "max_payload_bytes")
"""Constants that are assumed even where a device's file has the family."""
FAMILIES_OF_DEEPEP: Final = {
    ("deepep_normal", "experts"): "normal_dispatch",
    ("deepep_normal", "tokens"): "normal_combine",
    ("deepep_low_latency", "experts"): "low_latency_dispatch",
    ("deepep_low_latency", "tokens"): "low_latency_combine",
}
TREE_TO_RING: Final = 0.92
"""Efficiency of a tree over that of a ring, where no tree was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Seconds of one algorithm by payload: start-up, per byte, and what is lost until its pipeline is full.

    ``loads`` is what a byte of the payload takes of the capacity of each link, in bytes.
    """

    start_s: float = 0.0
    link_s: float = 0.0
    own_s: float = 0.0
    ramp_s: float = 0.0
    ramp_half_s: float = 1.0
    most_bytes: float = math.inf
    loads: Mapping[int, float] = field(default_factory=dict, compare=False)

    def seconds(self, payload: FloatArray) -> FloatArray:
        """Return what payloads take."""
        busy = payload * self.link_s
        found: FloatArray = self.start_s + payload * self.own_s + busy + self.ramp_s * busy / (busy + self.ramp_half_s)
        return found


Rates = tuple[Rate, ...]
Loads = Mapping[int, float]


class Links:
    """Collectives on a topology.

    Parameters
    ----------
    topology : Topology
    named : mapping
        Kind of collective → the algorithm that is to be used.
    """

    def __init__(self, topology: Topology, named: Mapping[str, str]) -> None:
        self.topology = topology
        self.named = named
        self._known: dict[tuple[str | Exchange, tuple[int, ...]], Rates] = {}

    def rates(self, kind: str | Exchange, devices: tuple[int, ...]) -> Rates:
        """Return the algorithms from which the fastest is chosen."""
        devices, _ = self.topology.in_first_copy(devices)
        if (kind, devices) not in self._known:
            self._known[kind, devices] = self._rates(kind, devices)
        return self._known[kind, devices]

    def loads(self, kind: str | Exchange, devices: tuple[int, ...]) -> tuple[Loads, ...]:
        """Return, of each of these algorithms, what a byte of the payload takes of the capacity of which links."""
        _, higher = self.topology.in_first_copy(devices)
        return tuple({link + higher: load for link, load in rate.loads.items()} for rate in self.rates(kind, devices))

    def _rates(self, kind: str | Exchange, devices: tuple[int, ...]) -> Rates:
        if len(devices) == 1:
            return (Rate(),)
        topology = self.topology.seen_from(devices[0])
        group = members_of(topology, devices)
        if not isinstance(kind, str):
            found = constants(topology, FAMILIES_OF_DEEPEP[kind.way, kind.towards])
            return (laid(group, to_experts(group, kind), found),)
        if kind in self.named and self.named[kind] != "auto":
            family, build, _ = WAYS[kind][self.named[kind]]
            return (laid(group, build(group), constants(topology, family)),)
        chosen = [
            (limited(constants(topology, family), topology.device.custom_limits.get(family), len(devices)), build)
            for family, build, fits in WAYS[kind].values()
            if fits(group)
        ]
        return tuple(laid(group, build(group), found) for found, build in chosen if found["max_payload_bytes"] > 0.0)


def fastest(rates: Rates, payload: FloatArray) -> FloatArray:
    """Return the seconds of the fastest algorithm whose buffers hold each payload; of the fastest if none do."""
    found: FloatArray = by_algorithm(rates, payload).min(axis=0)
    return found


def by_algorithm(rates: Rates, payload: FloatArray) -> FloatArray:
    """Return the seconds of each algorithm, of shape (algorithms, payloads); ∞ where others have larger buffers."""
    each = np.array([rate.seconds(payload) for rate in rates])
    holds = np.array([payload <= rate.most_bytes for rate in rates])
    found: FloatArray = np.where(holds | ~holds.any(axis=0), each, np.inf)
    return found


def constants(topology: Topology, family: str) -> dict[str, float]:
    """Return the constants of a family of algorithms on a device."""
    given = topology.device.collectives.get(family)
    empty = dict.fromkeys(
        ("base_s", "step_s", "peer_s", "own_s_per_byte", "ramp_s", "network_step_s"), 0.0
    ) | {**NO_MORE, "max_payload_bytes": math.inf}  # fmt: skip
    if given is None and family == "tree":
        found = constants(topology, "ring")
        return found | {name: found[name] * TREE_TO_RING for name in ("efficiency", "network_efficiency")}
    assumed = dict(ASSUMED["ring" if family == "tree" else family])
    if family == "two_shot" and "max_payload_bytes" in topology.device.collectives.get("one_shot", {}):
        assumed["max_payload_bytes"] = topology.device.collectives["one_shot"]["max_payload_bytes"]
    if given is None:
        return {**empty, **assumed}
    return {**empty, **{name: value for name, value in assumed.items() if name in FILLED_IN}, **given}


def limited(found: dict[str, float], limits: tuple[tuple[int, float], ...] | None, ranks: int) -> dict[str, float]:
    """Return constants with the largest payload that an engine allows over so many ranks, if it says any."""
    if limits is None or found["max_payload_bytes"] == 0.0:
        return found
    allowed = [most for upto, most in limits if upto >= ranks]
    return found | {"max_payload_bytes": allowed[0] if allowed else 0.0}


def laid(group: Members, sent: Sent, c: Mapping[str, float]) -> Rate:
    """Return what an algorithm takes: sends laid over their routes, the busiest link counts."""
    topology, node_of = group.topology, group.topology.node_of
    loads: dict[int, float] = {}
    for (source, target), share in sent.bytes.items():
        near = node_of[source] == node_of[target]
        taken = share / c["efficiency" if near else "network_efficiency"]
        for link in topology.route(source, target):
            loads[link] = loads.get(link, 0.0) + taken
    for link, share in sent.at_switch:
        loads[link] = loads.get(link, 0.0) + share / c["efficiency"]
    start = c["base_s"] + sent.peers * c["peer_s"]
    waits: dict[tuple[int, int], float] = {}
    for times, pairs in sent.steps:
        for source, target in pairs:
            if (source, target) not in waits:
                step = c["step_s" if node_of[source] == node_of[target] else "network_step_s"]
                route = topology.route(source, target)
                waits[source, target] = step + math.fsum(float(topology.link_latency_s[link]) for link in route)
        start += times * max(waits[pair] for pair in pairs)
    return Rate(
        start_s=start,
        link_s=max((load / float(topology.link_capacity[link]) for link, load in loads.items()), default=0.0),
        own_s=sent.own * c["own_s_per_byte"],
        ramp_s=c["ramp_s"],
        ramp_half_s=c["ramp_half_s"],
        most_bytes=c["max_payload_bytes"],
        loads=loads,
    )
