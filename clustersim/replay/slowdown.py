"""Passes that are slower than they should be: a device whose kernels take longer, or a link that carries less.

What a pass suffers is settled when it starts on its stage, so that both replays agree on it: kernels on a slow device
take so many times as long, and the others of its group wait for it at their next collective; a communication that may
use a weak link takes it as it is then, by the algorithm that was chosen for links as they should be. Such a pass is a
chain with other durations where it is a chain (``replay.events.slow_chain``), and runs operator by operator else.
Where flows share a weak link, its capacity of the moment counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clustersim.clock import FloatArray, to_ns, whole_ns
from clustersim.cluster.fault import Fault
from clustersim.collective.price import CommPlan
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slowdown:
    """What a pass suffers.

    Parameters
    ----------
    slow : dict
        Local rank → how many times as long its kernels take.
    shares : dict
        Link → what is left of its capacity.
    capacity : float array of shape (links,)
        Of links as they should be, bytes per second.
    """

    slow: dict[int, float]
    shares: dict[int, float]
    capacity: FloatArray

    def kernel_ns(self, rank: int, duration_ns: int) -> int:
        """Return how long a kernel takes on a local rank."""
        return whole_ns(duration_ns * self.slow[rank]) if rank in self.slow else duration_ns

    def communication(
        self, plan: CommPlan | None, payload_bytes: float, duration_ns: int
    ) -> tuple[CommPlan | None, int]:
        """Return a plan over links as they are, and how long it takes alone."""
        if plan is None or not self.shares:
            return plan, duration_ns
        slowest = plan.seconds_per_byte
        for link, load in zip(plan.links.tolist(), plan.load_per_byte.tolist(), strict=True):
            if link in self.shares:
                slowest = max(slowest, load / (float(self.capacity[link]) * self.shares[link]))
        if slowest == plan.seconds_per_byte:
            return plan, duration_ns
        weak = replace(plan, seconds_per_byte=slowest)
        longer = float(weak.seconds(payload_bytes)) - float(plan.seconds(payload_bytes))
        return weak, duration_ns + to_ns(max(0.0, longer))  # the duration has the engine's launch in it


class Slowdowns:
    """What the passes of one replica suffer, by stage and instant.

    Parameters
    ----------
    faults : sequence of Fault
        Those that slow something down.
    devices : sequence of tuple of int
        Device of each local rank, by stage.
    links : sequence of frozenset
        Links that the communications of each stage may use.
    capacity : float array of shape (links,)
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        devices: Sequence[tuple[int, ...]],
        links: Sequence[frozenset[int]],
        capacity: FloatArray,
    ) -> None:
        self.devices = devices
        self.capacity = capacity
        self.by_stage = [
            [fault for fault in faults if not set(fault.devices).isdisjoint(mine) or not uses.isdisjoint(fault.links)]
            for mine, uses in zip(devices, links, strict=True)
        ]
        found = {fault for faults in self.by_stage for fault in faults}
        instants = {instant for fault in found for instant in (fault.at_ns, fault.until_ns) if instant is not None}
        self.changes = np.array(sorted(instants), np.int64)

    def of(self, stage: int, now: int) -> Slowdown | None:
        """Return what a pass suffers that starts on a stage now; None when nothing."""
        slow: dict[int, float] = {}
        shares: dict[int, float] = {}
        for fault in self.by_stage[stage]:
            if not fault.covers(now):
                continue
            for rank, device in enumerate(self.devices[stage]):
                if device in fault.devices:
                    slow[rank] = slow.get(rank, 1.0) * (fault.slowdown or 1.0)
            for link in fault.links:
                shares[link] = shares.get(link, 1.0) * fault.share
        return Slowdown(slow=slow, shares=shares, capacity=self.capacity) if slow or shares else None

    def next_change(self, now: int) -> int | None:
        """Return the next instant after ``now`` at which something gets slower, or is again as it should be."""
        place = int(np.searchsorted(self.changes, now, side="right"))
        return int(self.changes[place]) if place < len(self.changes) else None


class WeakLinks:
    """The capacity of links over time.

    Parameters
    ----------
    faults : sequence of Fault
        Of links that carry less.
    capacity : float array of shape (links,)
    """

    def __init__(self, faults: Sequence[Fault], capacity: FloatArray) -> None:
        self.faults = faults
        self.capacity = capacity
        self.links = frozenset(link for fault in faults for link in fault.links)

    def slowdown(self, now: int) -> Slowdown:
        """Return what communications suffer that start at an instant."""
        shares: dict[int, float] = {}
        for fault in self.faults:
            for link in fault.links if fault.covers(now) else ():
                shares[link] = shares.get(link, 1.0) * fault.share
        return Slowdown(slow={}, shares=shares, capacity=self.capacity)

    def at(self, now: int) -> FloatArray:
        """Return the capacity of every link at an instant, bytes per second."""
        found = self.capacity.copy()
        for fault in self.faults:
            if fault.covers(now):
                found[list(fault.links)] *= fault.share
        return found
