"""The stages of one replica: passes in order, transfers between stages, each in closed form or as events.

A pass starts on all ranks of its stage at one instant, when the stage is free and its input has arrived on every
rank. Sends of a rank queue on its send stream; a stage is free again when its own work is done, while its sends go
on. In ``folded`` a pass that nothing can disturb is one event; every other one, and every pass in ``full``, runs
operator by operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from simpy import Environment

from clustersim.graph.pricing import payload_bytes
from clustersim.replay.chain import ChainPass, ChainShape
from clustersim.replay.comm import CommTable
from clustersim.replay.events import EventPass
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.network import Network
from clustersim.replay.wiring import MicroBatch, StageWiring


class Pipeline:
    """Moves micro-batches of one replica through its stages.

    Parameters
    ----------
    env, network, comm : Environment, Network, CommTable
    replica : int
    stages : list of StageWiring
    on_free : callable
        Called when the first stage can take another micro-batch.
    on_step : callable
        Called with a micro-batch that left the last stage.
    """

    def __init__(
        self,
        env: Environment,
        network: Network,
        comm: CommTable,
        replica: int,
        stages: list[StageWiring],
        on_free: Callable[[], None],
        on_step: Callable[[MicroBatch], None],
    ) -> None:
        self.env = env
        self.network = network
        self.comm = comm
        self.replica = replica
        self.stages = stages
        self.on_free = on_free
        self.on_step = on_step
        self.busy: list[MicroBatch | None] = [None] * len(stages)
        self.queues: list[deque[MicroBatch]] = [deque() for _ in stages]
        ranks = len(stages[0].devices)
        self.lane_free = [[0] * ranks for _ in stages]
        self.lane_queues: list[list[deque[MicroBatch]]] = [[deque() for _ in range(ranks)] for _ in stages]

    @property
    def free(self) -> bool:
        """Whether the first stage can start a micro-batch now."""
        return self.busy[0] is None and not self.queues[0]

    def launch(self, micro: MicroBatch) -> None:
        """Start a micro-batch on the first stage, which must be free."""
        ranks = len(self.stages[0].devices)
        for wiring in self.stages[:-1]:
            micro.send_starts.append(np.zeros(ranks, np.int64))
            micro.send_ends.append(np.zeros(ranks, np.int64))
            micro.unsent.append(len(wiring.programs[micro.kind].template.send_classes))
        self._start(0, micro)

    def _start(self, stage: int, micro: MicroBatch) -> None:
        env, wiring = self.env, self.stages[stage]
        self.busy[stage] = micro
        micro.starts.append(now_ns(env))
        durations = micro.durations[stage]
        if not wiring.as_events:
            micro.passes.append(None)
            total, exits = wiring.programs[micro.kind].template.pass_times(durations)
            at(env, total, COMPLETION, self._pass_ended, (stage, micro))
            if stage + 1 < len(self.stages):
                tp = len(wiring.devices) // len(exits)
                self._send_closed(stage, micro, [now_ns(env) + exits[r // tp] for r in range(micro.unsent[stage])])
            return
        shape = wiring.shape(micro.kind)
        communicate = self._communicator(stage, micro)
        run: EventPass | ChainPass
        if isinstance(shape, ChainShape):
            run = ChainPass(
                env,
                self.network,
                shape,
                durations,
                wiring.watched,
                communicate,
                lambda: self._chain_ended(stage, micro),
            )
        else:
            run = EventPass(
                env,
                shape,
                durations.tolist(),
                communicate,
                lambda ranks: self._left(stage, micro, ranks),
                lambda: self._free(stage, micro),
            )
        micro.passes.append(run)
        run.begin()

    def _chain_ended(self, stage: int, micro: MicroBatch) -> None:
        if stage + 1 < len(self.stages):
            self._left(stage, micro, tuple(range(micro.unsent[stage])))
        self._free(stage, micro)

    def _communicator(self, stage: int, micro: MicroBatch) -> Any:
        wiring = self.stages[stage]
        program = wiring.programs[micro.kind]

        def communicate(
            operator: int, cls: int, members: tuple[int, ...], ns: int, done: Any, started: int | None = None
        ) -> None:
            payload = payload_bytes(program, micro.features, cls)
            devices = tuple(wiring.devices[m] for m in members)
            plan = self.comm.chosen(program.classes[cls].node.op, devices, payload)
            key = (self.replica, stage, micro.step, 0, operator, members[0])
            self.network.begin(key, plan, payload, ns, done, operator, started)

        return communicate

    def _pass_ended(self, ended: tuple[int, MicroBatch]) -> None:
        self._free(*ended)

    def _free(self, stage: int, micro: MicroBatch) -> None:
        self.busy[stage] = None
        if stage + 1 == len(self.stages):
            self.on_step(micro)
        if stage == 0:
            self.on_free()
        elif self.queues[stage]:
            self._start(stage, self.queues[stage].popleft())

    def _send_closed(self, stage: int, micro: MicroBatch, ready: list[int]) -> None:
        """Queue the sends of the first ranks, whose outputs leave at the instants ``ready``; others idle."""
        wiring = self.stages[stage]
        if wiring.send_as_events:
            for rank, instant in enumerate(ready):
                at(self.env, instant - now_ns(self.env), COMPLETION, self._lane_joined, (stage, rank, micro))
            return
        for rank, instant in enumerate(ready):
            self._send_undisturbed(stage, micro, rank, instant)

    def _send_undisturbed(self, stage: int, micro: MicroBatch, rank: int, ready: int) -> None:
        lanes = self.lane_free[stage]
        program = self.stages[stage].programs[micro.kind]
        start = max(lanes[rank], ready)
        end = start + int(micro.durations[stage][program.template.send_classes[rank]])
        lanes[rank] = end
        micro.send_starts[stage][rank], micro.send_ends[stage][rank] = start, end
        micro.unsent[stage] -= 1
        if micro.unsent[stage] == 0:
            last = int(micro.send_ends[stage].max())
            at(self.env, last - now_ns(self.env), COMPLETION, self._arrived, (stage + 1, micro))

    def _left(self, stage: int, micro: MicroBatch, ranks: tuple[int, ...]) -> None:
        """Take the outputs of ``ranks`` that leave now."""
        if stage + 1 == len(self.stages):
            return
        for rank in ranks:
            if self.stages[stage].send_as_events:
                self._queue_send(stage, rank, micro)
            else:
                self._send_undisturbed(stage, micro, rank, now_ns(self.env))

    def _lane_joined(self, ready: tuple[int, int, MicroBatch]) -> None:
        self._queue_send(*ready)

    def _queue_send(self, stage: int, rank: int, micro: MicroBatch) -> None:
        lane = self.lane_queues[stage][rank]
        lane.append(micro)
        if len(lane) == 1:
            self._begin_send(stage, rank)

    def _begin_send(self, stage: int, rank: int) -> None:
        micro = self.lane_queues[stage][rank][0]
        wiring = self.stages[stage]
        program = wiring.programs[micro.kind]
        cls = program.template.send_classes[rank]
        payload = payload_bytes(program, micro.features, cls)
        pair = (wiring.devices[rank], self.stages[stage + 1].devices[rank])
        micro.send_starts[stage][rank] = now_ns(self.env)
        self.network.begin(
            (self.replica, stage, micro.step, 1, rank, 0),
            self.comm.chosen("send", pair, payload),
            payload,
            int(micro.durations[stage][cls]),
            self._sent,
            (stage, rank),
            foreign=True,
        )

    def _sent(self, lane_of: tuple[int, int]) -> None:
        stage, rank = lane_of
        lane = self.lane_queues[stage][rank]
        micro = lane.popleft()
        micro.send_ends[stage][rank] = now_ns(self.env)
        micro.unsent[stage] -= 1
        if lane:
            self._begin_send(stage, rank)
        if micro.unsent[stage] == 0:
            self._receive(stage + 1, micro)

    def _arrived(self, arrived: tuple[int, MicroBatch]) -> None:
        self._receive(*arrived)

    def _receive(self, stage: int, micro: MicroBatch) -> None:
        if self.busy[stage] is None and not self.queues[stage]:
            self._start(stage, micro)
        else:
            self.queues[stage].append(micro)

    def story(self) -> list[str]:
        """Return who waits for whom, a sentence each."""
        found = []
        for stage, micro in enumerate(self.busy):
            if micro is None:
                continue
            run = micro.passes[stage]
            waiting = run.waiting() if isinstance(run, EventPass) else []
            detail = f"; {len(waiting)} operators wait, the first for {waiting[0][1]} others" if waiting else ""
            found.append(f"replica {self.replica} stage {stage} is inside step {micro.step}{detail}")
        for stage, queue in enumerate(self.queues):
            if queue:
                steps = ", ".join(str(m.step) for m in queue)
                found.append(f"replica {self.replica} stage {stage} has steps {steps} queued")
        return found
