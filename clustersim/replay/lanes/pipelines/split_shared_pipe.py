"""Stages and boundaries of one replica whose SP ranks send on links of its own collectives: what happens when.

Each rank sends its own output as soon as it leaves, and what follows a collective that took longer is walked anew
(:mod:`clustersim.replay.lanes.pipelines.split_pass`). Until it ends, outputs that wait for it are due too early at
most: when one is, it is looked at again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedSend
from clustersim.replay.lanes.pipelines.link_traffic import ON, QUIET, WHOLE, LinkTraffic
from clustersim.replay.lanes.pipelines.split_micro_batch import SplitMicro
from clustersim.replay.lanes.pipelines.split_pass import SplitPass
from clustersim.replay.lanes.pipelines.split_stage import SplitStage
from clustersim.replay.links.sharing_by_lanes import SharedFlows


class SplitSharedPipe(LinkTraffic[SplitMicro, SplitPass]):
    """What is under way on every stage, and of every rank over every boundary.

    Parameters
    ----------
    stages : sequence of SplitStage
    ranks : int
        Of a stage.
    meets : tuple of tuple of int
        Per boundary the stages whose collectives its sends may meet.
    flows : SharedFlows

    Attributes
    ----------
    changes : list of int
        When each pass changes next, each stage's next output leaves, and the send of each rank over each boundary
        changes; ``NEVER`` where nothing is under way.
    """

    def __init__(
        self, stages: Sequence[SplitStage], ranks: int, meets: tuple[tuple[int, ...], ...], flows: SharedFlows
    ) -> None:
        count = len(stages)
        super().__init__(count, ranks, [meet for meet in meets for _ in range(ranks)], 2 * count - 1, flows)
        self.shared = stages
        self.coming: list[deque[SplitMicro]] = [deque() for _ in stages]
        """Micro-batches that have yet to arrive at each stage, or that came before another one of these."""

    def launch(self, micro: SplitMicro, now: int) -> None:
        """Start a micro-batch on the first stage, which is free."""
        for coming in self.coming[1:]:
            coming.append(micro)
        self._start(0, micro, now)

    def _start(self, stage: int, micro: SplitMicro, now: int) -> None:
        price = micro.priced[stage]
        run = SplitPass(self.shared[stage], micro, price, now)
        micro.passes += (now, price[1])
        self.passes[stage], self.phases[stage], self.changes[stage] = run, WHOLE, run.end
        if stage < self.last:
            self.changes[self.stages + stage] = run.next_output()
        if self.near[stage]:
            self._step(run, stage, now)
            return
        for place, send in enumerate(self.sends):
            if send is None or self.states[place] != QUIET or stage not in self.meets[place]:
                continue
            if send.use is not None and send.end > now:
                at = self.first_send + place
                self.changes[at] = run.meets(send.use.links, max(send.enters, now), self.changes[at])

    def _change_stage(self, stage: int, now: int) -> None:
        """Let a pass end or go on with its collectives, or the output of some of its ranks leave."""
        if stage >= self.stages:
            self._leave(stage - self.stages, now)
        else:
            super()._change_stage(stage, now)

    def _prolong(self, run: SplitPass, stage: int, end: int) -> None:
        """Let the collective that is on links end at an instant."""
        run.prolong(end)
        if stage < self.last:
            self.changes[self.stages + stage] = run.next_output()

    def _end(self, stage: int, now: int) -> None:
        """End a pass: it has landed, or all of its output has left, and the stage takes the next one."""
        run = self.passes[stage]
        assert run is not None
        late = run.late()
        if late is not None:
            run.micro.irregular.append((stage, late))
        if stage == self.last:
            self.landed.append(run.micro)
        else:
            self._leave(stage, now)
        self.passes[stage], self.changes[stage] = None, NEVER
        if self.queues[stage]:
            self._start(stage, self.queues[stage].popleft(), now)

    def _leave(self, stage: int, now: int) -> None:
        """Send the output of the ranks that leaves now."""
        run = self.passes[stage]
        assert run is not None
        if self.phases[stage] == ON:
            self._prolong(run, stage, self.changes[stage])
        for rank, at in enumerate(run.outputs):
            if at == now and rank not in run.left:
                run.left.add(rank)
                place = stage * self.ranks + rank
                self.outputs[place].append(run.micro)
                if self.sends[place] is None:
                    self._send(place, now)
        self.changes[self.stages + stage] = run.next_output()

    def _send(self, place: int, now: int) -> None:
        """Begin to send what waits longest."""
        micro, (boundary, rank) = self.outputs[place][0], divmod(place, self.ranks)
        duration = micro.priced[boundary][3][rank]
        micro.starts[boundary][rank] = now
        self._begin_to_send(place, now, duration, self.shared[boundary].send(micro, rank, duration))

    def foresee(self, place: int, send: SharedSend, now: int) -> None:
        """Take a send for one that meets nothing until it meets a collective, if it does."""
        meeting = send.end
        for stage in self.meets[place] if send.use is not None else ():
            run = self.passes[stage]
            if run is not None and send.use is not None:
                meeting = self._meeting(run, stage, send.use.links, max(send.enters, now), meeting)
        self.states[place], self.changes[self.first_send + place] = QUIET, meeting

    def _meeting(self, run: SplitPass, stage: int, links: frozenset[int], enters: int, leaves: int) -> int:
        """Return what :meth:`SplitPass.meets` does, also of a pass with a collective on links that has met another."""
        if self.phases[stage] == ON:
            use = run.use(run.at)
            if enters < min(leaves, self.changes[stage]) and use is not None and not use.links.isdisjoint(links):
                return enters
            self._prolong(run, stage, self.changes[stage])
        return run.meets(links, enters, leaves)

    def _sent(self, place: int, now: int) -> None:
        """Hand on what a rank has sent, and begin with what waits."""
        micro, (boundary, rank) = self.outputs[place].popleft(), divmod(place, self.ranks)
        micro.ends[boundary][rank] = now
        micro.unsent[boundary] -= 1
        self.sends[place], self.changes[self.first_send + place] = None, NEVER
        if self.outputs[place]:
            self._send(place, now)
        if not micro.unsent[boundary]:
            self._receive(boundary + 1, micro, now)

    def _receive(self, stage: int, micro: SplitMicro, now: int) -> None:
        """Take what has arrived on every rank, in the order in which it was launched."""
        micro.came, coming = stage, self.coming[stage]
        while coming and coming[0].came == stage:
            one = coming.popleft()
            if self.passes[stage] is None and not self.queues[stage]:
                self._start(stage, one, now)
            else:
                self.queues[stage].append(one)
