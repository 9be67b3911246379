"""What one collective costs on one group: a start-up part α, then bytes on links at one rate.

:mod:`clustersim.collective.algorithms` makes such plans, ``collective.communications`` chooses among them, and
``graph.prices.pricer`` asks that one for the operators of a step.
A plan does not model the spread of arrival times (ranks start together) nor compute that shares the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.collective.constants import Family
from clustersim.collective.group import Group
from clustersim.collective.traffic import Traffic
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommPlan:
    """One algorithm of one collective on one group of devices.

    Its duration alone is ``alpha(payload) + payload × seconds_per_byte``. In the fluid network it starts
    with ``alpha(payload)`` seconds that use no link and then carries its loads; without company both
    agree, since ``seconds_per_byte = max(load_per_byte / capacity)``.

    The payload in bytes means: ``all_reduce``, ``broadcast``: the tensor; ``all_gather``, ``gather``: the
    gathered result; ``reduce_scatter``: the input of one rank; ``all_to_all``: what one rank sends, with
    what it keeps (uniform: 1/n for each rank); ``send``, ``ring_shift``: what each sender sends.

    Parameters
    ----------
    kind, algorithm : str
        Such as ``all_reduce`` and ``ring``.
    group : tuple of int
        Device indices in the order given.
    alpha_s : float
        Seconds before the first byte counts: launch, and the serial steps with their latencies.
    own_seconds_per_byte : float
        What a rank takes per payload byte to copy the part that it keeps.
    ramp_s, ramp_half_s : float
        What a transfer of ``T`` seconds loses to filling its pipeline: ``ramp_s × T / (T + ramp_half_s)``.
    links : array of int
        Ids of the links used, ascending.
    load_per_byte : array of float, shape (links,)
        Bytes of link capacity that each payload byte takes, *with* the efficiency: bytes sent / efficiency.
    seconds_per_byte : float
        ``max(load_per_byte / capacity)``.
    max_payload_bytes : float
        What the algorithm's buffers hold in its library; :func:`choose` keeps to it.
    """

    kind: str
    algorithm: str
    group: tuple[int, ...]
    alpha_s: float
    own_seconds_per_byte: float
    ramp_s: float
    ramp_half_s: float
    links: Int64Array
    load_per_byte: FloatArray
    seconds_per_byte: float
    max_payload_bytes: float = math.inf

    def alpha(self, payload_bytes: npt.ArrayLike) -> FloatArray:
        """Return the seconds that a payload (any shape, bytes) spends without using links."""
        payload = np.asarray(payload_bytes, np.float64)
        transfer = payload * self.seconds_per_byte
        lost: FloatArray = self.ramp_s * (transfer / (transfer + self.ramp_half_s))
        return self.alpha_s + payload * self.own_seconds_per_byte + lost

    def seconds(self, payload_bytes: npt.ArrayLike) -> FloatArray:
        """Return the seconds that a payload (any shape, bytes) takes when nothing else uses its links."""
        payload = np.asarray(payload_bytes, np.float64)
        return self.alpha(payload) + payload * self.seconds_per_byte


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


def cheapest(plans: Sequence[CommPlan], payload_bytes: float) -> tuple[int, float]:
    """Return what :func:`choose` does of one payload, to the same bits, in a tenth of the time."""
    places = [at for at, plan in enumerate(plans) if payload_bytes <= plan.max_payload_bytes] or [*range(len(plans))]
    each = []
    for plan in map(plans.__getitem__, places):
        transfer = payload_bytes * plan.seconds_per_byte
        share = transfer + plan.ramp_half_s
        if not share:
            return int(choose(plans, payload_bytes)[0]), float(choose(plans, payload_bytes)[1])
        alpha = plan.alpha_s + payload_bytes * plan.own_seconds_per_byte + plan.ramp_s * (transfer / share)
        each.append(alpha + transfer)
    least = min(each)
    return places[each.index(least)], float(least)


def choose(plans: Sequence[CommPlan], payload_bytes: npt.ArrayLike) -> tuple[Int64Array, FloatArray]:
    """Choose the fastest plan per payload, as NCCL's tuning model does; the first one on a tie.

    A plan is passed over for payloads above its ``max_payload_bytes``, unless there is no other.

    Parameters
    ----------
    plans : sequence of CommPlan
        Candidates, at least one.
    payload_bytes : array_like
        Payloads of any shape.

    Returns
    -------
    (array of int, array of float)
        Position in ``plans`` and the seconds it takes, in the shape of ``payload_bytes``.
    """
    payload = np.asarray(payload_bytes, np.float64)
    seconds = np.stack([plan.seconds(payload) for plan in plans])
    fits = np.stack([payload <= plan.max_payload_bytes for plan in plans])
    ranked = np.where(fits | ~fits.any(axis=0), seconds, np.inf)
    chosen = ranked.argmin(axis=0)
    return chosen.astype(np.int64), np.take_along_axis(seconds, chosen[None], axis=0)[0]
