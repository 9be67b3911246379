"""Stages and boundaries of one replica whose sends share links with its own collectives: what happens when.

**Why it equals ``full``.** Nothing outside can stretch anything here, and passes and sends that meet nothing take
what they cost. So there are few instants at which anything changes: a pass ends, a send ends, or a send meets a
collective, which is when both are on links that they share (``replay.links.within_replica``). Each pass and each
boundary says when it changes next. As in ``replay.events.chain``, it does not matter when exactly a send or a
collective that is alone is put into the network, so

- a send that will meet nothing is one change: its end. Where the collectives of the passes under way are is known
  (``replay.lanes.pipelines.link_stage``), and a pass that starts later is looked at when it starts;
- where a send will meet a collective, all sends in flight become flows (``replay.links.sharing_by_lanes``) at that
  instant, and passes that they may meet go on from collective to collective until they have left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedMicro, SharedSend
from clustersim.replay.lanes.pipelines.link_stage import SharedPass, SharedStage
from clustersim.replay.links.sharing_by_lanes import SharedFlows, Use

WHOLE, NEXT, ON = range(3)
"""What changes next of a pass: it ends; a collective enters its links; one that is a flow leaves them."""
QUIET, READY, SHARING = range(3)
"""What changes next of a send: it ends or meets something; it enters its links; it leaves them, being a flow."""


class SharedPipe:
    """What is under way on every stage and boundary.

    Parameters
    ----------
    stages : sequence of SharedStage
    ranks : int
        Of a stage.
    meets : tuple of tuple of int
        Per boundary the stages whose collectives its sends may meet.
    flows : SharedFlows

    Attributes
    ----------
    changes : list of int
        When each pass, then each boundary, changes next; ``NEVER`` where nothing is under way.
    landed : list of SharedMicro
        What left the last stage, until somebody takes it.
    """

    def __init__(
        self, stages: Sequence[SharedStage], ranks: int, meets: tuple[tuple[int, ...], ...], flows: SharedFlows
    ) -> None:
        count = len(stages)
        self.shared, self.stages, self.last, self.ranks = stages, count, count - 1, ranks
        self.meets, self.flows = meets, flows
        self.changes = [NEVER] * (count + count - 1)
        self.landed: list[SharedMicro] = []
        self.passes: list[SharedPass | None] = [None] * count
        self.phases = [WHOLE] * count
        self.queues: list[deque[SharedMicro]] = [deque() for _ in range(count)]
        self.sends: list[SharedSend | None] = [None] * self.last
        self.states = [QUIET] * self.last
        self.outputs: list[deque[SharedMicro]] = [deque() for _ in range(self.last)]
        """Per boundary what is sent and what waits for that."""
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
            if place >= stages:
                self._change_send(place - stages, now)
            elif self.phases[place] == WHOLE:
                self._end(place, now)
            else:
                self._change_pass(place, now)
        if self.flows.touched:
            for flow in self.flows.solve(now):
                changes[flow.number] = flow.end

    def clear(self) -> None:
        """Forget passes that somebody else goes on with."""
        self.passes[:] = [None] * self.stages
        self.changes[:] = [NEVER] * len(self.changes)

    def start(self, stage: int, micro: SharedMicro, now: int) -> None:
        """Start the pass of a micro-batch on a stage that is free."""
        length, number, varying, _ = micro.priced[stage]
        run = SharedPass(self.shared[stage], micro, number, varying, now, length)
        micro.passes += (now, number)
        self.passes[stage], self.phases[stage], self.changes[stage] = run, WHOLE, now + length
        if self.near[stage]:
            self._step(run, stage, now)
            return
        for boundary, send in enumerate(self.sends):
            if send is None or self.states[boundary] != QUIET or stage not in self.meets[boundary]:
                continue
            if send.use is not None and send.end > now:
                at = self.stages + boundary
                self.changes[at] = run.meets(max(send.enters, now), self.changes[at])

    def _step(self, run: SharedPass, stage: int, now: int) -> None:
        """Let a pass go on from collective to collective, from now on."""
        at = run.at = run.after(now)
        if at == run.count:
            return
        use, leaves = run.use(at), run.leaves(at)
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
        at, use = run.at, run.use(run.at)
        if self.phases[stage] == NEXT and use is not None:
            self._enter(stage, use, now, now + use.transfer_ns)
            return
        if use is not None:
            self.flows.leave(stage)
            run.lose(at, now - run.leaves(at))
        self.phases[stage], self.changes[stage] = WHOLE, run.end
        if self.near[stage]:
            run.at = at + 1
            self._step(run, stage, now)

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
        use = self.shared[boundary].send(micro, duration)
        end = now + duration
        self.sends[boundary] = send = SharedSend(end if use is None else end - use.transfer_ns, end, use)
        micro.sent += [now] * self.ranks
        place = self.stages + boundary
        if use is not None and (any(self.near) or self.flows.touched):
            self.states[boundary], self.changes[place] = READY, send.enters
        else:
            self.foresee(boundary, send, now)

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
        self.states[boundary], self.changes[self.stages + boundary] = QUIET, meeting

    def _change_send(self, boundary: int, now: int) -> None:
        """Let a send enter its links, meet something, or end."""
        send, state = self.sends[boundary], self.states[boundary]
        assert send is not None
        if state == SHARING:
            self._part(boundary)
            self._sent(boundary, now)
        elif state == READY:
            if any(self.near) or self.flows.touched:
                self._share(boundary, send, now)
            else:
                self.foresee(boundary, send, now)
        elif now == send.end:
            self._sent(boundary, now)
        else:
            self._meet(now)

    def _meet(self, now: int) -> None:
        """Make every send that is on its links a flow; others will enter theirs as flows."""
        for boundary, send in enumerate(self.sends):
            if send is None or send.use is None or self.states[boundary] != QUIET or send.end <= now:
                continue
            if send.enters <= now:
                self._share(boundary, send, now)
            else:
                self.states[boundary], self.changes[self.stages + boundary] = READY, send.enters

    def _share(self, boundary: int, send: SharedSend, now: int) -> None:
        """Make a send a flow, and let the passes that it may meet go on in steps."""
        assert send.use is not None
        place = self.stages + boundary
        self.states[boundary], self.changes[place] = SHARING, send.end
        self.flows.enter(place, send.use, send.enters, send.end)
        for stage in self.meets[boundary]:
            self.near[stage] += 1
            run = self.passes[stage]
            if run is not None and self.phases[stage] == WHOLE:
                self._step(run, stage, now)

    def _part(self, boundary: int) -> None:
        """Take a send off its links; passes that no send may meet any more go on as a whole."""
        self.flows.leave(self.stages + boundary)
        for stage in self.meets[boundary]:
            self.near[stage] -= 1
            run = self.passes[stage]
            if run is not None and not self.near[stage] and self.phases[stage] == NEXT:
                self.phases[stage], self.changes[stage] = WHOLE, run.end

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
