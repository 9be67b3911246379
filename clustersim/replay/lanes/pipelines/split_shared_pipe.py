"""Stages and boundaries of one replica whose SP ranks send on links of its own collectives: what happens when.

As in :mod:`clustersim.replay.lanes.pipelines.link_pipeline`, and for the same reasons it equals ``full``; but here each
rank sends its own output as soon as it leaves, and what follows a collective that took longer is walked anew
(:mod:`clustersim.replay.lanes.pipelines.split_pass`). Until it ends, outputs that wait for it are due too early at
most: when one is, it is looked at again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedSend
from clustersim.replay.lanes.pipelines.link_pipeline import NEXT, ON, QUIET, READY, SHARING, WHOLE
from clustersim.replay.lanes.pipelines.split_pass import SplitMicro, SplitPass, SplitStage
from clustersim.replay.links.sharing_by_lanes import SharedFlows, Use


class SplitSharedPipe:
    """What is under way on every stage and boundary.

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
    landed : list of SplitMicro
        What left the last stage, until somebody takes it.
    """

    def __init__(
        self, stages: Sequence[SplitStage], ranks: int, meets: tuple[tuple[int, ...], ...], flows: SharedFlows
    ) -> None:
        count = len(stages)
        self.shared, self.stages, self.last, self.ranks = stages, count, count - 1, ranks
        self.meets, self.flows = meets, flows
        self.first_send = count + self.last
        self.changes = [NEVER] * (self.first_send + self.last * ranks)
        self.landed: list[SplitMicro] = []
        self.passes: list[SplitPass | None] = [None] * count
        self.phases = [WHOLE] * count
        self.queues: list[deque[SplitMicro]] = [deque() for _ in stages]
        self.coming: list[deque[SplitMicro]] = [deque() for _ in stages]
        """Micro-batches that have yet to arrive at each stage, or that came before another one of these."""
        self.sends: list[SharedSend | None] = [None] * (self.last * ranks)
        self.states = [QUIET] * (self.last * ranks)
        self.outputs: list[deque[SplitMicro]] = [deque() for _ in self.sends]
        """Per boundary and rank what is sent and what waits for that."""
        self.near = [0] * count
        """Per stage how many sends that it may meet are flows."""

    def ends_at(self, stage: int, instant: int) -> bool:
        """Whether the pass of a stage ends at this instant."""
        return self.changes[stage] == instant and self.phases[stage] == WHOLE

    def change(self, now: int) -> None:
        """Handle what changes now, the earliest of ``changes``, and share out links anew; more may change now."""
        changes, stages = self.changes, self.stages
        for place, at in enumerate(changes):
            if at != now:
                continue
            if place >= self.first_send:
                self._change_send(place - self.first_send, now)
            elif place >= stages:
                self._leave(place - stages, now)
            elif self.phases[place] == WHOLE:
                self._end(place, now)
            else:
                self._change_pass(place, now)
        if self.flows.touched:
            for flow in self.flows.solve(now):
                changes[flow.number] = flow.end

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
            if send is None or self.states[place] != QUIET or stage not in self.meets[place // self.ranks]:
                continue
            if send.use is not None and send.end > now:
                at = self.first_send + place
                self.changes[at] = run.meets(send.use.links, max(send.enters, now), self.changes[at])

    def _step(self, run: SplitPass, stage: int, now: int) -> None:
        """Let a pass go on from collective to collective, from now on."""
        at = run.at = run.after(now)
        if at == len(run.instances):
            return
        use, leaves = run.use(at), run.ends[at]
        enters = leaves - (0 if use is None else use.transfer_ns)
        if use is not None and enters <= now:
            self._enter(stage, use, enters, leaves)
        else:
            self.phases[stage], self.changes[stage] = NEXT, enters

    def _enter(self, stage: int, use: Use, since: int, end: int) -> None:
        self.flows.enter(stage, use, since, end)
        self.phases[stage], self.changes[stage] = ON, end

    def _change_pass(self, stage: int, now: int) -> None:
        """Let a collective enter its links, or leave them."""
        run = self.passes[stage]
        assert run is not None
        use = run.use(run.at)
        if self.phases[stage] == NEXT and use is not None:
            self._enter(stage, use, now, now + use.transfer_ns)
            return
        if use is not None:
            self.flows.leave(stage)
            self._prolong(run, stage, now)
        self.phases[stage], self.changes[stage] = WHOLE, run.end
        if self.near[stage]:
            run.at += 1
            self._step(run, stage, now)

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
        use = self.shared[boundary].send(micro, rank, duration)
        end = now + duration
        self.sends[place] = send = SharedSend(end if use is None else end - use.transfer_ns, end, use)
        micro.starts[boundary][rank] = now
        if use is not None and (any(self.near) or self.flows.touched):
            self.states[place], self.changes[self.first_send + place] = READY, send.enters
        else:
            self._foresee(place, send, now)

    def _foresee(self, place: int, send: SharedSend, now: int) -> None:
        """Take a send for one that meets nothing until it meets a collective, if it does."""
        meeting = send.end
        for stage in self.meets[place // self.ranks] if send.use is not None else ():
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

    def _change_send(self, place: int, now: int) -> None:
        """Let a send enter its links, meet something, or end."""
        send, state = self.sends[place], self.states[place]
        assert send is not None
        if state == SHARING:
            self._part(place)
            self._sent(place, now)
        elif state == READY:
            if any(self.near) or self.flows.touched:
                self._share(place, send, now)
            else:
                self._foresee(place, send, now)
        elif now == send.end:
            self._sent(place, now)
        else:
            self._meet(now)

    def _meet(self, now: int) -> None:
        """Make every send that is on its links a flow; others will enter theirs as flows."""
        for place, send in enumerate(self.sends):
            if send is None or send.use is None or self.states[place] != QUIET or send.end <= now:
                continue
            if send.enters <= now:
                self._share(place, send, now)
            else:
                self.states[place], self.changes[self.first_send + place] = READY, send.enters

    def _share(self, place: int, send: SharedSend, now: int) -> None:
        """Make a send a flow, and let the passes that it may meet go on in steps."""
        assert send.use is not None
        number = self.first_send + place
        self.states[place], self.changes[number] = SHARING, send.end
        self.flows.enter(number, send.use, send.enters, send.end)
        for stage in self.meets[place // self.ranks]:
            self.near[stage] += 1
            run = self.passes[stage]
            if run is not None and self.phases[stage] == WHOLE:
                self._step(run, stage, now)

    def _part(self, place: int) -> None:
        """Take a send off its links; passes that no send may meet any more go on as a whole."""
        self.flows.leave(self.first_send + place)
        for stage in self.meets[place // self.ranks]:
            self.near[stage] -= 1
            run = self.passes[stage]
            if run is not None and not self.near[stage] and self.phases[stage] == NEXT:
                self.phases[stage], self.changes[stage] = WHOLE, run.end

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
