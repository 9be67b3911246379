"""Copies of K/V blocks between the ranks of a replica and the memory of their hosts, as flows on the links between.

Every rank of every stage that keeps entries of a sequence copies its own share, all blocks as a whole; a rank copies
one sequence at a time in each direction, beside its steps. What a weak link makes of a copy is settled when it begins,
and where it shares the link; what it costs otherwise: :mod:`clustersim.replay.links.host_copies`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from clustersim.clock import to_ns
from clustersim.cluster.topology import Topology
from clustersim.collective.price import CommPlan
from clustersim.replay.input import HostPool
from clustersim.replay.instant import COPY, at, now_ns
from clustersim.replay.links.host_copies import host_plan
from clustersim.replay.links.sharing_by_events import Network
from clustersim.serving.decision import Swap
from clustersim.timeline.record import Recorder
from clustersim.timeline.tables import ALL_HEADS, ALL_LAYERS, HOST

if TYPE_CHECKING:
    from simpy import Environment


class Swaps:
    """Carries out the copies of one replica, and records them.

    Parameters
    ----------
    env, network, recorder : Environment, Network, Recorder
    topology : Topology
    pool : HostPool
    replica : int
    stages : list of tuple of int
        Device of each rank of each stage.
    tp : int
    on_end : callable
        Called with the copies, in order of their requests, that have ended on all ranks at an instant, after all that
        ends then (``instant.COPY``).
    """

    def __init__(
        self,
        env: Environment,
        network: Network,
        recorder: Recorder,
        topology: Topology,
        pool: HostPool,
        replica: int,
        stages: list[tuple[int, ...]],
        tp: int,
        on_end: Callable[[list[Swap]], None],
    ) -> None:
        self.env = env
        self.network = network
        self.recorder = recorder
        self.pool = pool
        self.replica = replica
        self.tp = tp
        self.on_end = on_end
        self.plans = {
            (stage, rank, out): host_plan(topology, device, out=out)
            for stage, devices in enumerate(stages)
            for rank, device in enumerate(devices)
            for out in (True, False)
        }
        self.first_rank = [(replica * len(stages) + stage) * len(devices) for stage, devices in enumerate(stages)]
        self.queues: dict[tuple[int, int, bool], deque[Swap]] = {key: deque() for key in self.plans}
        self.left: dict[int, int] = {}
        self.ended: list[Swap] = []
        self.dead = False

    def abandon(self) -> None:
        """Cut all copies off: the replica has failed."""
        self.dead = True
        self.network.drop(self)

    def begin(self, swap: Swap) -> None:
        """Start a copy now, or when those before it on its streams have ended."""
        first = swap.sequence.owner * self.tp
        ranks = range(first, first + self.tp)
        self.left[swap.sequence.request] = len(ranks) * len(self.first_rank)
        for stage in range(len(self.first_rank)):
            for rank in ranks:
                queue = self.queues[stage, rank, swap.out]
                queue.append(swap)
                if len(queue) == 1:
                    self._copy(stage, rank, swap.out)

    def _copy(self, stage: int, rank: int, out: bool) -> None:
        swap = self.queues[stage, rank, out][0]
        plan, payload = self._plan(stage, rank, out), swap.blocks * self.pool.block_bytes[stage]
        self.network.begin(
            plan,
            payload,
            to_ns(float(plan.seconds(payload))),
            self._copied,
            (stage, rank, out, now_ns(self.env)),
            foreign=True,
            owner=self,
        )

    def _plan(self, stage: int, rank: int, out: bool) -> CommPlan:
        """Return what a copy that begins now costs: over links as they are now."""
        plan, weak = self.plans[stage, rank, out], self.network.weak
        if weak is None or weak.links.isdisjoint(plan.links.tolist()):
            return plan
        slowest = float((plan.load_per_byte / weak.at(now_ns(self.env))[plan.links]).max())
        return replace(plan, seconds_per_byte=slowest)

    def _copied(self, ended: tuple[int, int, bool, int]) -> None:
        if self.dead:
            return
        stage, rank, out, started = ended
        queue = self.queues[stage, rank, out]
        swap = queue.popleft()
        sequence, mine = swap.sequence, self.first_rank[stage] + rank
        source, target = (mine, HOST) if out else (HOST, mine)
        moved = swap.blocks * self.pool.block_bytes[stage]
        self.recorder.move(
            sequence.request, self.replica, source, self.replica, target, ALL_LAYERS, ALL_HEADS, ALL_HEADS, 0,
            sequence.computed, moved, started, now_ns(self.env),
        )  # fmt: skip
        if queue:
            self._copy(stage, rank, out)
        self.left[sequence.request] -= 1
        if not self.left[sequence.request]:
            del self.left[sequence.request]
            if not self.ended:
                at(self.env, 0, COPY, self._settle)
            self.ended.append(swap)

    def _settle(self, _: None) -> None:
        if self.dead:
            return
        ended, self.ended = self.ended, []
        self.on_end(sorted(ended, key=lambda swap: swap.sequence.request))
