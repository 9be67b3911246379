"""What is under way on the stages and boundaries of one replica whose sends share links with its own collectives.

**Why it equals ``full``.** Nothing outside can stretch anything here, and passes and sends that meet nothing take
what they cost. So there are few instants at which anything changes: a pass ends, a send ends, or a send meets a
collective, which is when both are on links that they share (``replay.links.within_replica``). Each pass and each
send says when it changes next. As in ``replay.events.chain``, it does not matter when exactly a send or a collective
that is alone is put into the network, so

- a send that will meet nothing is one change: its end. Where the collectives of the passes under way are is known, and
  a pass that starts later is looked at when it starts;
- where a send will meet a collective, all sends in flight become flows (``replay.links.sharing_by_lanes``) at that
  instant, and passes that they may meet go on from collective to collective until they have left.

Whether ranks send together or each on its own is told apart in :mod:`clustersim.replay.lanes.pipelines.link_pipeline`
and :mod:`clustersim.replay.lanes.pipelines.split_shared_pipe`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, Protocol, TypeVar

from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedSend
from clustersim.replay.links.sharing_by_lanes import SharedFlows, Use

WHOLE, NEXT, ON = range(3)
"""What changes next of a pass: it ends; a collective enters its links; one that is a flow leaves them."""
QUIET, READY, SHARING = range(3)
"""What changes next of a send: it ends or meets something; it enters its links; it leaves them, being a flow."""


class PassLike(Protocol):
    """A pass under way; ``at`` is the collective that is under way or comes next."""

    at: int

    @property
    def end(self) -> int: ...

    @property
    def count(self) -> int: ...

    def after(self, instant: int) -> int: ...

    def use(self, at: int) -> Use | None: ...

    def leaves(self, at: int) -> int: ...


Micro = TypeVar("Micro")
Pass = TypeVar("Pass", bound=PassLike)


class LinkTraffic(ABC, Generic[Micro, Pass]):
    """What is under way on every stage and boundary.

    Parameters
    ----------
    stages, ranks : int
        Of a replica, and of a stage.
    meets : sequence of tuple of int
        Of each place at which something can be sent, the stages whose collectives its sends may meet.
    first_send : int
        Which of ``changes`` is the one of the first place.
    flows : SharedFlows

    Attributes
    ----------
    changes : list of int
        When each pass changes next, and what is sent at each place; ``NEVER`` where nothing is under way.
    passes, phases, queues : list
        Per stage what runs, what changes next of it, and what waits for it.
    sends, states, outputs : list
        Per place what is sent, what changes next of it, and what is sent with what waits for that.
    near : list of int
        Per stage how many sends that it may meet are flows.
    landed : list
        Micro-batches that left the last stage, until somebody takes them.
    """

    def __init__(
        self, stages: int, ranks: int, meets: list[tuple[int, ...]], first_send: int, flows: SharedFlows
    ) -> None:
        self.stages, self.last, self.ranks = stages, stages - 1, ranks
        self.meets, self.first_send, self.flows = meets, first_send, flows
        self.changes = [NEVER] * (first_send + len(meets))
        self.landed: list[Micro] = []
        self.passes: list[Pass | None] = [None] * stages
        self.phases = [WHOLE] * stages
        self.queues: list[deque[Micro]] = [deque() for _ in range(stages)]
        self.sends: list[SharedSend | None] = [None] * len(meets)
        self.states = [QUIET] * len(meets)
        self.outputs: list[deque[Micro]] = [deque() for _ in meets]
        self.near = [0] * stages

    def ends_at(self, stage: int, instant: int) -> bool:
        """Whether the pass of a stage ends at this instant."""
        return self.changes[stage] == instant and self.phases[stage] == WHOLE

    def change(self, now: int) -> None:
        """Handle what changes now, the earliest of ``changes``, and share out links anew; more may change now."""
        changes, first_send = self.changes, self.first_send
        for place, at in enumerate(changes):
            if at == now and place >= first_send:
                self._change_send(place - first_send, now)
            elif at == now:
                self._change_stage(place, now)
        if self.flows.touched:
            for number, end in self.flows.solve(now):
                changes[number] = end

    def _change_stage(self, stage: int, now: int) -> None:
        """Let a pass end, or go on with its collectives."""
        if self.phases[stage] == WHOLE:
            self._end(stage, now)
        else:
            self._change_pass(stage, now)

    def _step(self, run: Pass, stage: int, now: int) -> None:
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
        self.flows.enter(stage, use, since)
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

    def _begin_to_send(self, place: int, now: int, duration: int, use: Use | None) -> None:
        """Put a send on its way that takes so long if it is alone."""
        end = now + duration
        self.sends[place] = send = SharedSend(end if use is None else end - use.transfer_ns, end, use)
        if use is not None and (any(self.near) or self.flows.touched):
            self.states[place], self.changes[self.first_send + place] = READY, send.enters
        else:
            self.foresee(place, send, now)

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
                self.foresee(place, send, now)
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
        self.flows.enter(number, send.use, send.enters)
        for stage in self.meets[place]:
            self.near[stage] += 1
            run = self.passes[stage]
            if run is not None and self.phases[stage] == WHOLE:
                self._step(run, stage, now)

    def _part(self, place: int) -> None:
        """Take a send off its links; passes that no send may meet any more go on as a whole."""
        self.flows.leave(self.first_send + place)
        for stage in self.meets[place]:
            self.near[stage] -= 1
            run = self.passes[stage]
            if run is not None and not self.near[stage] and self.phases[stage] == NEXT:
                self.phases[stage], self.changes[stage] = WHOLE, run.end

    @abstractmethod
    def _end(self, stage: int, now: int) -> None:
        """End a pass: its output is sent or has landed, and the stage takes the next one."""

    @abstractmethod
    def foresee(self, place: int, send: SharedSend, now: int) -> None:
        """Take a send for one that meets nothing until it meets a collective, if it does."""

    @abstractmethod
    def _prolong(self, run: Pass, stage: int, end: int) -> None:
        """Let the collective of a pass that is on its links end at an instant."""

    @abstractmethod
    def _sent(self, place: int, now: int) -> None:
        """Hand on what has been sent, and begin with what waits."""
