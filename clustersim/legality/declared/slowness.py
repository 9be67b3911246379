"""Which ranks are slow when, and how much longer communications take over links that carry less.

Of overlapping faults all count: shares of a link multiply. What is chosen among algorithms is chosen for links as they
should be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from clustersim.clock import LATEST_NS, NS_PER_S, FloatArray
from clustersim.collective.price import CommPlan, choose
from clustersim.legality.declared.faults import SlowRank, WeakGroup
from clustersim.legality.declared.outages import ends_at
from clustersim.legality.declared.setting import Pool, Setting

Window = tuple[int, int, FloatArray]
"""Two instants between which links stay as they are, and what each carries then, bytes per second."""
Costs = tuple[tuple[float, float], ...]
"""For growing payloads: what a communication costs over links as they should be, and how much longer it takes, ns."""
PAYLOADS: Final = np.append(0.0, np.geomspace(1.0, 2.0**40, 1200))
"""Bytes; from one to the next is 2.3 %."""


def slow_ranks(setting: Setting, pool: Pool) -> tuple[SlowRank, ...]:
    """Return ``Declared.slow`` of a pool."""
    plan = pool.plan
    places = [(replica, stage) for replica in pool.replicas for stage in range(plan.pp)]
    devices = [device for place in places for device in pool.stage(*place)]
    return tuple(
        SlowRank(pool.first_rank + rank, fault.at_ns, ends_at(fault), fault.slowdown)
        for fault in setting.faults
        if fault.slowdown is not None
        for rank, device in enumerate(devices)
        if device in fault.devices
    )


def windows(setting: Setting) -> Iterator[Window]:
    """Yield the times between which links stay as they are, where some carry less than they should."""
    capacity = setting.topology.link_capacity
    faults = [fault for fault in setting.faults if fault.links and fault.share > 0.0]
    instants = {0, LATEST_NS} | {instant for fault in faults for instant in (fault.at_ns, ends_at(fault))}
    for since, until in pairwise(sorted(instants)):
        left = capacity.copy()
        for fault in faults:
            if fault.at_ns <= since < ends_at(fault):
                left[list(fault.links)] *= fault.share
        if (left < capacity).any():
            yield since, until, left


def weak_groups(setting: Setting, pool: Pool) -> tuple[WeakGroup, ...]:
    """Return ``Declared.weak_groups`` of a pool."""
    plan = pool.plan
    found = []
    for since, until, left in windows(setting):
        weak = frozenset(np.flatnonzero(left < setting.topology.link_capacity).tolist())
        for replica in pool.replicas[:1] if plan.is_lockstep else pool.replicas:
            for stage in range(plan.pp):
                base = pool.rank(replica, stage)
                for (kind, members), (_, devices) in zip(
                    setting.groups(pool)[stage], setting.collectives_of(pool, replica, stage), strict=True
                ):
                    if weak.isdisjoint(setting.links(kind, devices)):
                        continue
                    costs = _costs(setting.plans(kind, devices), left, pool.launch_s)
                    if costs:
                        ranks = base + min(members), base + max(members), len(members)
                        op, name = (kind, "") if isinstance(kind, str) else ("all_to_all", kind.name)
                        found.append(WeakGroup(op, *ranks, since, until, costs, name))
    return tuple(found)


def _costs(plans: Sequence[CommPlan], left: FloatArray, launch_s: float) -> Costs:
    """Return what a communication costs, and how much longer it takes; nothing where that is no longer."""
    if not plans:
        return ()
    chosen, seconds = choose(plans, PAYLOADS)
    weak = np.stack([_longer(plan, left).seconds(PAYLOADS) for plan in plans])
    longer = np.take_along_axis(weak, chosen[None], axis=0)[0] - seconds
    if not (longer > 0.0).any():
        return ()
    cost = (seconds + launch_s) * NS_PER_S
    return tuple(zip(cost.tolist(), (np.maximum(longer, 0.0) * NS_PER_S).tolist(), strict=True))


def _longer(plan: CommPlan, left: FloatArray) -> CommPlan:
    """Return a plan over links as they are."""
    byte = float((plan.load_per_byte / left[plan.links]).max(initial=0.0))
    return replace(plan, seconds_per_byte=max(byte, plan.seconds_per_byte))
