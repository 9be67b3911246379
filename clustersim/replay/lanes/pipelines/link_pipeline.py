"""Stages and boundaries of one replica whose sends share links with its own collectives, all ranks sending together."""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedMicro, SharedSend
from clustersim.replay.lanes.pipelines.link_stage import SharedPass, SharedStage
from clustersim.replay.lanes.pipelines.link_traffic import ON, QUIET, WHOLE, LinkTraffic
from clustersim.replay.links.sharing_by_lanes import SharedFlows


class SharedPipe(LinkTraffic[SharedMicro, SharedPass]):
    """What is under way on every stage, and over every boundary.

    Parameters
    ----------
    stages : sequence of SharedStage
    ranks : int
        Of a stage.
    meets : tuple of tuple of int
        Per boundary the stages whose collectives its sends may meet.
    flows : SharedFlows
    first_send : int, optional
        By default the number of stages.
    """

    def __init__(
        self,
        stages: Sequence[SharedStage],
        ranks: int,
        meets: tuple[tuple[int, ...], ...],
        flows: SharedFlows,
        first_send: int | None = None,
    ) -> None:
        count = len(stages)
        super().__init__(count, ranks, list(meets), count if first_send is None else first_send, flows)
        self.shared = stages

    def clear(self) -> None:
        """Forget passes that somebody else goes on with."""
        self.passes[:] = [None] * self.stages
        self.changes[:] = [NEVER] * len(self.changes)

    def start(self, stage: int, micro: SharedMicro, now: int) -> None:
        """Start the pass of a micro-batch on a stage that is free."""
        length, number, varying, _ = micro.priced[stage]
        micro.passes += (now, number)
        self._go_on_with(stage, SharedPass(self.shared[stage], micro, number, varying, now, length), now)

    def _go_on_with(self, stage: int, run: SharedPass, now: int) -> None:
        """Take note of a pass on a stage that is under way, or starts now."""
        self.passes[stage], self.phases[stage], self.changes[stage] = run, WHOLE, run.end
        if self.near[stage]:
            self._step(run, stage, now)
            return
        for boundary, send in enumerate(self.sends):
            if send is None or self.states[boundary] != QUIET or stage not in self.meets[boundary]:
                continue
            if send.use is not None and send.end > now:
                at = self.first_send + boundary
                self.changes[at] = run.meets(max(send.enters, now), self.changes[at])

    def _prolong(self, run: SharedPass, stage: int, end: int) -> None:
        """Let the collective that is on links end at an instant."""
        del stage
        run.lose(run.at, end - run.leaves(run.at))

    def _end(self, stage: int, now: int) -> None:
        """End a pass: its output is sent or has landed, and the stage takes the next one."""
        run = self.passes[stage]
        assert run is not None
        if run.stretches:
            run.micro.stretched.append((stage, run.stretches))
        self.passes[stage], self.changes[stage] = None, NEVER
        if stage == self.last:
            self.landed.append(run.micro)
        else:
            self.outputs[stage].append(run.micro)
            if self.sends[stage] is None:
                self._send(stage, now)
        if self.queues[stage]:
            self.start(stage, self.queues[stage].popleft(), now)

    def _send(self, boundary: int, now: int) -> None:
        """Begin to send what waits longest."""
        micro = self.outputs[boundary][0]
        duration = micro.priced[boundary][3][0]
        micro.sent += [now] * self.ranks
        self._begin_to_send(boundary, now, duration, self.shared[boundary].send(micro, duration))

    def foresee(self, boundary: int, send: SharedSend, now: int) -> None:
        """Take a send for one that meets nothing until it meets a collective, if it does."""
        meeting = send.end
        if send.use is not None:
            enters = max(send.enters, now)
            for stage in self.meets[boundary]:
                run = self.passes[stage]
                if run is None:
                    continue
                lost = 0
                if self.phases[stage] == ON:
                    leaves = self.changes[stage]
                    if leaves > enters:
                        meeting = enters
                        break
                    lost = leaves - run.leaves(run.at)
                meeting = run.meets(enters, meeting, lost)
        self.states[boundary], self.changes[self.first_send + boundary] = QUIET, meeting

    def _sent(self, boundary: int, now: int) -> None:
        """Hand on what has been sent, and begin with what waits."""
        micro = self.outputs[boundary].popleft()
        micro.sent += [now] * self.ranks
        self.sends[boundary], self.changes[self.stages + boundary] = None, NEVER
        if self.outputs[boundary]:
            self._send(boundary, now)
        stage = boundary + 1
        if self.passes[stage] is None and not self.queues[stage]:
            self.start(stage, micro, now)
        else:
            self.queues[stage].append(micro)
