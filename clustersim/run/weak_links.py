"""How much longer communications take over weak links, as a scenario declares it: what an audit holds them to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray
from clustersim.collective.algorithms import plan_collective
from clustersim.collective.plan import CommPlan, choose
from clustersim.plan.mesh import Mesh
from clustersim.replay.comm import CommTable
from clustersim.replay.given import Prepared
from clustersim.run.simulate import replay_input
from clustersim.scenario.scenario import Scenario
from clustersim.workload.limits import MAX_NS

Costs = tuple[tuple[float, float], ...]
"""For growing payloads: what a communication costs over links as they should be, and how much longer it takes, ns."""
PAYLOADS: Final = np.append(0.0, np.geomspace(1.0, 2.0**40, 1200))
"""Bytes; from one to the next is 2.3 %."""


class _Weakness:
    """What is left of the links of a scenario over time."""

    def __init__(self, scenario: Scenario) -> None:
        self.faults = [fault for fault in scenario.faults if fault.links and fault.share > 0.0]
        self.capacity = scenario.topology.link_capacity
        self.launch_s = scenario.engine.collective_launch_s
        self.comm = CommTable(scenario.topology, scenario.collectives, plan_collective)

    def windows(self) -> Iterator[tuple[int, int, FloatArray]]:
        """Yield the times between which links stay as they are, and what they carry, where some carry less."""
        told = [one for fault in self.faults for one in (fault.at_ns, fault.until_ns) if one is not None]
        for since, until in pairwise(sorted({0, MAX_NS, *told})):
            left = self.capacity.copy()
            for fault in self.faults:
                if fault.covers(since):
                    left[list(fault.links)] *= fault.share
            if (left < self.capacity).any():
                yield since, until, left

    def longer(self, plan: CommPlan, left: FloatArray) -> CommPlan:
        """Return a plan over links as they are."""
        byte = float((plan.load_per_byte / left[plan.links]).max(initial=0.0))
        return replace(plan, seconds_per_byte=max(byte, plan.seconds_per_byte))

    def costs(self, plans: Sequence[CommPlan], left: FloatArray) -> Costs:
        """Return what a communication costs, and how much longer it takes; nothing where that is no longer."""
        if not plans:
            return ()
        chosen, seconds = choose(plans, PAYLOADS)
        weak = np.stack([self.longer(plan, left).seconds(PAYLOADS) for plan in plans])
        longer = np.take_along_axis(weak, chosen[None], axis=0)[0] - seconds
        if not (longer > 0.0).any():
            return ()
        cost = (seconds + self.launch_s) * NS_PER_S
        return tuple(zip(cost.tolist(), (np.maximum(longer, 0.0) * NS_PER_S).tolist(), strict=True))


def weak_sends(scenario: Scenario) -> tuple[tuple[int, int, int, float, float], ...]:
    """Return ``Given.weak``."""
    weakness, plan, mesh = _Weakness(scenario), scenario.plan, Mesh(plan=scenario.plan)
    if not weakness.faults or plan.pp == 1:
        return ()
    found = []
    for since, until, left in weakness.windows():
        for replica in range(plan.dp):
            for stage in range(plan.pp - 1):
                devices, after = mesh.stage_devices(replica, stage), mesh.stage_devices(replica, stage + 1)
                base = (replica * plan.pp + stage) * len(devices)
                for local, pair in enumerate(zip(devices, after, strict=True)):
                    (send,) = weakness.comm.plans("send", pair)
                    byte = weakness.longer(send, left).seconds_per_byte
                    more = (byte - send.seconds_per_byte) / (send.seconds_per_byte + send.own_seconds_per_byte)
                    fixed_s = send.alpha_s + send.ramp_s + weakness.launch_s
                    if more > 0.0:
                        found.append((base + local, since, until, fixed_s * NS_PER_S, more))
    return tuple(found)


def weak_hosts(scenario: Scenario, first_rank: int) -> tuple[tuple[int, bool, int, int, float], ...]:
    """Return ``Given.weak_hosts``."""
    weakness, plan, mesh = _Weakness(scenario), scenario.plan, Mesh(plan=scenario.plan)
    hosts = scenario.topology.hosts
    assert hosts is not None
    found = []
    for since, until, left in weakness.windows():
        for rank in range(plan.world):
            for out in (True, False):
                links = list(hosts.host_path(mesh.device(rank), out=out))
                if (left[links] < weakness.capacity[links]).any():
                    found.append((first_rank + rank, out, since, until, float(left[links].min())))
    return tuple(found)


def weak_groups(scenario: Scenario) -> tuple[tuple[str, int, int, int, int, int, Costs], ...]:
    """Return ``Given.weak_groups``."""
    weakness = _Weakness(scenario)
    if not weakness.faults:
        return ()
    prepared = Prepared(replay_input(scenario, scenario.requests()))
    groups = set()
    for (replica, stage), kinds in prepared.programs.items():
        devices = prepared.mesh.stage_devices(replica, stage)
        base = int(prepared.layout.stage_base(np.array([replica]), np.array([stage]))[0])
        for program in kinds.values():
            for op, members in program.template.collectives:
                groups.add((op, base + min(members), base + max(members), tuple(devices[member] for member in members)))
    found = []
    for since, until, left in weakness.windows():
        for op, lowest, highest, group in sorted(groups):
            costs = weakness.costs(weakness.comm.plans(op, group), left)
            if costs:
                found.append((op, lowest, highest, len(group), since, until, costs))
    return tuple(found)
