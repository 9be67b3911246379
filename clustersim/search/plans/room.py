"""What plans may use: devices, their kinds, and money; and what has to start them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field

from clustersim.errors import InputError, Problem
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.deployments import Candidate
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedLaunch:
    """What has to start a plan: an engine, or a manifest's.

    Parameters
    ----------
    name : str
    refusal : callable
        Returns why a scenario can't be started, None where it can; told whether it is a pool beside another one.
    """

    name: str
    refusal: Callable[[Scenario, bool], str | None] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What plans may use.

    Parameters
    ----------
    devices : int
        Most devices.
    exactly : bool
        Whether all of them are used.
    of_kind : dict
        Kind → devices of it; one entry of None where there is one kind.
    usd : float or None
        Most USD per hour, and …
    price : dict
        … what a device of each kind costs, as far as that is told.
    launch : AskedLaunch or None
        What has to start them; None: every legal plan is wanted.
    """

    devices: int
    exactly: bool
    of_kind: dict[str | None, int]
    usd: float | None
    price: dict[str | None, float]
    launch: AskedLaunch | None = None

    def cost(self, candidate: Candidate) -> float | None:
        """Return USD per hour of a candidate; None where a kind has no price."""
        each = zip(candidate.replicas, candidate.counts, strict=True)
        if any(one.kind not in self.price for one in candidate.replicas):
            return None
        return math.fsum(self.price[one.kind] * one.devices * count for one, count in each)

    def holds(self, candidate: Candidate) -> bool:
        """Whether a candidate fits, in every respect."""
        by_kind: dict[str | None, int] = {}
        for one, count in zip(candidate.replicas, candidate.counts, strict=True):
            by_kind[one.kind] = by_kind.get(one.kind, 0) + one.devices * count
        if any(number > self.of_kind[kind] for kind, number in by_kind.items()) or candidate.devices > self.devices:
            return False
        if self.exactly and candidate.devices != self.devices:
            return False
        return self.usd is None or (self.cost(candidate) or math.inf) <= self.usd

    def refuse_unpriced(self, objective: str) -> None:
        """Refuse to count money where a device has no price.

        Raises
        ------
        InputError
            With where one is written.
        """
        if (self.usd is not None or objective == "capacity_per_usd") and set(self.of_kind) - set(self.price):
            option = "--objective" if self.usd is None else "--budget"
            message = "counts money, and devices have no price; add one with --set 'topology.price=2.5 USD/h'"
            raise InputError(Problem(path=option, message=message))


def room_of(
    scenario: Scenario, *, devices: int | None, exactly: bool, usd: float | None
) -> tuple[Room, tuple[str, ...]]:
    """Return what plans may use, and what of the scenario is changed for it: its nodes, where they can be added.

    Raises
    ------
    InputError
        When the budget pays for no device, or the topology has fewer devices.
    """
    topology = scenario.topology
    names = topology.device_names()
    several = len(names) > 1
    kinds: dict[str | None, int] = {name if several else None: len(topology.of_kind(name)) for name in names}
    price: dict[str | None, float] = {}
    for name in names:
        found = topology.seen_from(topology.of_kind(name)[0]).device.price_per_hour
        if found is not None:
            price[name if several else None] = found
    if usd is not None and price and usd < min(price.values()):
        message = (
            f"{usd:g} USD/h pays for no device: the cheapest of {topology.name} costs {min(price.values()):g} USD/h"
        )
        raise InputError(Problem(path="--budget", message=message))
    if devices is None and usd is None:
        devices = len(topology.devices)
    if devices is None:
        assert usd is not None
        devices = int(usd // min(price.values())) if price else len(topology.devices)
    if not several and "nodes" in scenario.document["topology"]:
        per_node = int((topology.node_of == topology.node_of[0]).sum())
        changes: tuple[str, ...] = (f"topology.nodes={-(-devices // per_node)}",)
        kinds = {None: devices}
    else:
        changes = ()
        if devices > len(topology.devices):
            has = f"{topology.name} has {len(topology.devices)} devices"
            raise InputError(
                Problem(path="--devices", message=f"asks for {devices}, but {has}; name another --topology")
            )
    return Room(devices=devices, exactly=exactly, of_kind=kinds, usd=usd, price=price), changes
