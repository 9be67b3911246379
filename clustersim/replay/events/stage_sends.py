"""Sends from one stage of a replica to the next: those of a rank queue on its send stream, one after the other.

Where nothing can disturb a send, it ends when it costs what the pricer says; else the network says when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from clustersim.clock import in_time
from clustersim.collective.communications import CommTable
from clustersim.collective.price import CommPlan
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.replay.events.wiring import MicroBatch, StageWiring
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.links.sharing_by_events import Network, Owner

if TYPE_CHECKING:
    from simpy import Environment


class StageSends:
    """Sends the outputs of the stages of one replica.

    Parameters
    ----------
    env, network, comm : Environment, Network, CommTable
    replica : int
    stages : list of StageWiring
    owner : Owner
        What fails when the replica does.
    on_arrived : callable
        Called with a stage and the micro-batch that has arrived there on every rank.
    """

    def __init__(
        self, env: Environment, network: Network, comm: CommTable, replica: int, stages: list[StageWiring],
        owner: Owner, on_arrived: Callable[[int, MicroBatch], None],
    ) -> None:  # fmt: skip
        self.env = env
        self.network = network
        self.comm = comm
        self.replica = replica
        self.stages = stages
        self.owner = owner
        self.on_arrived = on_arrived
        ranks = len(stages[0].devices)
        self.free_at = [[0] * ranks for _ in stages]
        self.queues: list[list[deque[MicroBatch]]] = [[deque() for _ in range(ranks)] for _ in stages]

    def left_at(self, stage: int, micro: MicroBatch, ready: list[int]) -> None:
        """Take the outputs of the first ranks, which leave at the instants ``ready``; other ranks send nothing."""
        if self.stages[stage].send_as_events:
            for rank, instant in enumerate(ready):
                at(self.env, instant - now_ns(self.env), COMPLETION, self._joined, (stage, rank, micro))
            return
        for rank, instant in enumerate(ready):
            self._undisturbed(stage, micro, rank, instant)

    def left(self, stage: int, micro: MicroBatch, ranks: tuple[int, ...]) -> None:
        """Take the outputs of ``ranks`` that leave now."""
        if stage + 1 == len(self.stages) or self.owner.dead:
            return
        for rank in ranks:
            if self.stages[stage].send_as_events:
                self._queue(stage, rank, micro)
            else:
                self._undisturbed(stage, micro, rank, now_ns(self.env))

    def cost(self, stage: int, rank: int, micro: MicroBatch) -> tuple[CommPlan | None, float, int]:
        """Return the plan, the bytes and the duration of a send, over links as they were when its pass started."""
        wiring = self.stages[stage]
        program = wiring.programs[micro.program]
        cls = program.template.send_classes[rank]
        took = int(micro.durations[stage][cls])
        slowdown = micro.slowdowns.get(stage)
        if slowdown is None and not wiring.send_as_events:
            return None, 0.0, took
        payload = payload_bytes(program, micro.features, cls)
        pair = (wiring.devices[rank], self.stages[stage + 1].devices[rank])
        plan = self.comm.chosen("send", pair, payload)
        if slowdown is not None:
            plan, took = slowdown.communication(plan, payload, took)
        return plan, payload, took

    def _undisturbed(self, stage: int, micro: MicroBatch, rank: int, ready: int) -> None:
        free_at = self.free_at[stage]
        start = max(free_at[rank], ready)
        _, _, took = self.cost(stage, rank, micro)
        end = in_time(start + took)
        free_at[rank] = end
        micro.send_starts[stage][rank], micro.send_ends[stage][rank] = start, end
        micro.unsent[stage] -= 1
        if micro.unsent[stage] == 0:
            last = int(micro.send_ends[stage].max())
            at(self.env, last - now_ns(self.env), COMPLETION, self._arrived, (stage + 1, micro))

    def _joined(self, ready: tuple[int, int, MicroBatch]) -> None:
        self._queue(*ready)

    def _queue(self, stage: int, rank: int, micro: MicroBatch) -> None:
        if self.owner.dead:
            return
        queue = self.queues[stage][rank]
        queue.append(micro)
        if len(queue) == 1:
            self.begin(stage, rank)

    def begin(self, stage: int, rank: int) -> None:
        """Start the send that is first in the queue of a rank."""
        micro = self.queues[stage][rank][0]
        plan, payload, took = self.cost(stage, rank, micro)
        micro.send_starts[stage][rank] = in_time(now_ns(self.env))
        self.network.begin(plan, payload, took, self._sent, (stage, rank), foreign=True, owner=self.owner)

    def _sent(self, ended: tuple[int, int]) -> None:
        stage, rank = ended
        if self.owner.dead:
            return
        queue = self.queues[stage][rank]
        micro = queue.popleft()
        micro.send_ends[stage][rank] = in_time(now_ns(self.env))
        micro.unsent[stage] -= 1
        if queue:
            self.begin(stage, rank)
        if micro.unsent[stage] == 0:
            self.on_arrived(stage + 1, micro)

    def _arrived(self, arrived: tuple[int, MicroBatch]) -> None:
        self.on_arrived(*arrived)
