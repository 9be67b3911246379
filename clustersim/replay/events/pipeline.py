"""The stages of one replica: passes in order, each in closed form or as events.

A pass starts on all ranks of its stage at one instant, when the stage is free and its input has arrived on every
rank; stages take micro-batches in the order in which they were launched, though one in which some SP ranks have no part
may arrive before another one. A stage is free again when its own work is done, while its sends go on. In ``folded`` a
pass that nothing can disturb is one event; every other one, and every pass in ``full``, runs operator by operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import STREAMS
from clustersim.replay.events.chain import ChainPass, ChainShape
from clustersim.replay.events.closed_pass import ClosedPass
from clustersim.replay.events.collectives import Collectives
from clustersim.replay.events.layer_marks import chain_marks, event_marks
from clustersim.replay.events.slow_chain import SlowChain
from clustersim.replay.events.stage_pass import EventPass
from clustersim.replay.events.stage_sends import StageSends
from clustersim.replay.events.wiring import MicroBatch, StageWiring
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.slowdown import Slowdown, Slowdowns
from clustersim.units import plural

if TYPE_CHECKING:
    from simpy import Environment

COMPUTE: Final = STREAMS.index("compute")


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
    slowdowns : Slowdowns, optional
        What makes passes slower when.
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
        slowdowns: Slowdowns | None = None,
    ) -> None:
        self.env = env
        self.network = network
        self.replica = replica
        self.stages = stages
        self.on_free = on_free
        self.on_step = on_step
        self.dead = False
        self.slowdowns = slowdowns
        self.busy: list[MicroBatch | None] = [None] * len(stages)
        self.queues: list[deque[MicroBatch]] = [deque() for _ in stages]
        self.coming: list[deque[MicroBatch]] = [deque() for _ in stages]
        """Micro-batches that have yet to arrive at each stage, or that came before another one of these."""
        self.collectives = Collectives(network, comm, replica, stages, self)
        self.sends = StageSends(env, network, comm, replica, stages, self, self._receive)

    def abandon(self) -> None:
        """Forget every micro-batch and every send: what they are on has failed."""
        self.dead = True
        for micro in dict.fromkeys([*self.busy, *(micro for queue in self.queues for micro in queue)]):
            for run in () if micro is None else micro.passes:
                if isinstance(run, ChainPass | ClosedPass):
                    run.abandon()
        self.network.drop(self)

    def is_slowed(self, stage: int) -> bool:
        """Return whether a pass that starts now on a stage is slower than it should be."""
        return self.slowdowns is not None and self.slowdowns.of(stage, now_ns(self.env)) is not None

    def launch(self, micro: MicroBatch) -> None:
        """Start a micro-batch on the first stage, which must be free."""
        ranks = len(self.stages[0].devices)
        for wiring in self.stages[:-1]:
            micro.send_starts.append(np.zeros(ranks, np.int64))
            micro.send_ends.append(np.zeros(ranks, np.int64))
            micro.unsent.append(len(wiring.programs[micro.program].template.send_classes))
        for coming in self.coming[1:]:
            coming.append(micro)
        self._start(0, micro)

    def _start(self, stage: int, micro: MicroBatch) -> None:
        env, wiring = self.env, self.stages[stage]
        self.busy[stage] = micro
        micro.starts.append(now_ns(env))
        durations = micro.durations[stage]
        slowdown = None if self.slowdowns is None else self.slowdowns.of(stage, now_ns(env))
        if slowdown is not None:
            micro.slowdowns[stage] = slowdown
            chain = wiring.chain(micro.program)
            if chain is None or (slowdown.slow and wiring.as_events):
                self._start_by_operators(stage, micro, slowdown)
            else:
                self._start_chain(stage, micro, chain, slowdown)
            return
        if not wiring.as_events:
            micro.passes.append(None)
            template = wiring.programs[micro.program].template
            total, exits = template.pass_times(durations)
            at(env, total, COMPLETION, self._pass_ended, (stage, micro))
            if micro.on_layer is not None:
                ends = template.ends(durations[template.instance_class])[template.node_instance]
                for layer, nodes in template.prompt_layers:
                    at(env, int(ends[nodes].max()), COMPLETION, micro.on_layer, layer)
            if stage + 1 < len(self.stages):
                tp = len(wiring.devices) // len(exits)
                self.sends.left_at(stage, micro, [now_ns(env) + exits[r // tp] for r in range(micro.unsent[stage])])
            return
        shape = wiring.shape(micro.program)
        if isinstance(shape, ChainShape):
            self._start_chain(stage, micro, shape)
            return
        template = wiring.programs[micro.program].template
        run = EventPass(
            env,
            shape,
            durations.tolist(),
            self.collectives.of(stage, micro),
            lambda ranks: self.sends.left(stage, micro, ranks),
            lambda: self._free(stage, micro),
            event_marks(template, shape, micro.on_layer),
        )
        if wiring.watched is not None and not wiring.full and self.network.weak is None:
            ends = template.ends(durations[template.instance_class])
            run = ClosedPass(run, self.network, wiring.watched, template, ends, self.collectives.uses(stage, micro))
        micro.passes.append(run)
        run.begin()

    def _start_chain(self, stage: int, micro: MicroBatch, shape: ChainShape, slowdown: Slowdown | None = None) -> None:
        """Run a pass as a chain: closed where it meets nothing; what it suffers is worked out before."""
        wiring, durations = self.stages[stage], micro.durations[stage]
        program, slowed = wiring.programs[micro.program], None
        if slowdown is not None:
            slowed = SlowChain(shape, program, slowdown, durations)
        longer = None if slowed is None else slowed.longer(self.collectives.comm, wiring.devices, micro.features)
        run = ChainPass(
            self.env,
            self.network,
            shape,
            durations,
            wiring.watched if wiring.as_events else (),
            self.collectives.of(stage, micro),
            lambda: self._chain_ended(stage, micro) if wiring.as_events else self._free(stage, micro),
            chain_marks(program.template, micro.on_layer),
            longer,
        )
        micro.passes.append(run)
        run.begin()
        if slowed is None:
            return
        if slowed.slowdown.slow:
            micro.slowed[stage] = slowed
        if not wiring.as_events and stage + 1 < len(self.stages):
            self.sends.left_at(stage, micro, slowed.left(run)[: micro.unsent[stage]])

    def _start_by_operators(self, stage: int, micro: MicroBatch, slowdown: Slowdown) -> None:
        """Run a pass operator by operator, on ranks of which each takes its own time."""
        wiring = self.stages[stage]
        template, program = wiring.programs[micro.program].template, wiring.expanded(micro.program)
        run = EventPass(
            self.env,
            program,
            micro.durations[stage].tolist(),
            self.collectives.of(stage, micro),
            lambda ranks: self.sends.left(stage, micro, ranks),
            lambda: self._free(stage, micro),
            event_marks(template, program, micro.on_layer),
        )
        streams = template.instance_stream[template.node_instance].tolist()
        for node, (stream, members) in enumerate(zip(streams, template.members, strict=True)):
            if stream == COMPUTE and run.program.members[node] is None:
                run.durations[node] = slowdown.kernel_ns(members[0], run.durations[node])
        micro.passes.append(run)
        run.begin()

    def _chain_ended(self, stage: int, micro: MicroBatch) -> None:
        if stage + 1 < len(self.stages):
            self.sends.left(stage, micro, tuple(range(micro.unsent[stage])))
        self._free(stage, micro)

    def _pass_ended(self, ended: tuple[int, MicroBatch]) -> None:
        self._free(*ended)

    def _free(self, stage: int, micro: MicroBatch) -> None:
        if self.dead:
            return
        self.busy[stage] = None
        if stage + 1 == len(self.stages):
            self.on_step(micro)
        if stage == 0:
            self.on_free()
        elif self.queues[stage]:
            self._start(stage, self.queues[stage].popleft())

    def _receive(self, stage: int, micro: MicroBatch) -> None:
        if self.dead:
            return
        micro.came, coming = stage, self.coming[stage]
        while coming and coming[0].came == stage:
            self._take(stage, coming.popleft())

    def _take(self, stage: int, micro: MicroBatch) -> None:
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
            waiting = run.waiting() if isinstance(run, EventPass) else ()
            detail = f"; {plural(len(waiting), 'operator waits', 'operators wait')} for others" if waiting else ""
            found.append(f"replica {self.replica} stage {stage} is inside step {micro.step}{detail}")
        for stage, queue in enumerate(self.queues):
            if queue:
                steps = ", ".join(str(m.step) for m in queue)
                found.append(f"replica {self.replica} stage {stage} has steps {steps} queued")
        return found
