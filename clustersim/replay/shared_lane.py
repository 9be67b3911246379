"""The folded replay of one replica with pipeline stages whose sends share links with its own collectives.

**Why it equals ``full``.** Nothing outside can stretch anything here, and passes and sends that meet nothing take
what they cost. So there are few instants at which anything changes: a pass ends, a send ends, or a send meets a
collective, which is when both are on links that they share (``replay.shared_links``). Each pass and each boundary
says when it changes next; the earliest is handled, in order of time. As in ``replay.chain``, it does not matter when
exactly a send or a collective that is alone is put into the network, so

- a send that will meet nothing is one change: its end. Where the collectives of the passes under way are, is known
  (``replay.shared_stage``), and a pass that starts later is looked at when it starts;
- where a send will meet a collective, all sends in flight become flows (``replay.shared_flows``) at that instant,
  and passes that they may meet go on from collective to collective until they have left.

A launch needs the first stage free and fewer micro-batches in flight than stages. While that cannot be, arrivals
change nothing, and changes are handled up to the next pass that ends on the first or last stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequence_

from clustersim.graph.step_prices import StepPrices
from clustersim.replay.lane import DECODE, MIXED, NEVER, PREFILL, price_decodes, price_prompts
from clustersim.replay.lane_log import LaneLog
from clustersim.replay.shared_flows import SharedFlows, Use
from clustersim.replay.shared_stage import Counts, SharedPass, SharedStage
from clustersim.serving.grouped import Batch, GroupedScheduler
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

__all__ = ["SharedLane"]

WHOLE, NEXT, ON = range(3)
"""What is next of a pass: its end; a collective enters its links; it leaves them."""
QUIET, READY, SHARING = range(3)
"""What is next of a send: its end, or when it meets something; it enters its links; it leaves them, as a flow."""


class _Micro:
    """A micro-batch on its way."""

    __slots__ = ("batch", "counts", "kind", "passes", "priced", "row", "sends", "sent", "stretched")

    def __init__(self, batch: Batch, row: tuple[int, ...], kind: int, counts: Counts) -> None:
        self.batch = batch
        self.row = row
        self.kind = kind
        self.counts = counts
        self.priced: list[tuple[int, int, tuple[int, ...]]] = []
        """Per stage: nanoseconds, row, and what varies."""
        self.sends: list[int] = []
        self.passes: list[int] = []
        self.sent: list[int] = []
        self.stretched: list[tuple[int, list[int]]] = []


class _Send:
    """The sends of a micro-batch over one boundary, under way."""

    __slots__ = ("end", "enters", "micro", "use")

    def __init__(self, micro: _Micro, enters: int, end: int, use: Use | None) -> None:
        self.micro = micro
        self.enters = enters
        self.end = end
        self.use = use


class SharedLane:
    """One replica: its scheduler, what is in flight, and when something changes next.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog
    stages : sequence of SharedStage
    meets : tuple of tuple of int
        Per boundary the stages whose collectives its sends may meet.
    flows : SharedFlows

    Attributes
    ----------
    end : int
        When a decision may be taken or something changes next, in ns; ``NEVER`` when nothing does.
    outstanding : int
        Prompt and output tokens of unfinished requests.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        prices: Sequence_[StepPrices],
        log: LaneLog,
        stages: Sequence_[SharedStage],
        meets: tuple[tuple[int, ...], ...],
        flows: SharedFlows,
    ) -> None:
        self.scheduler = GroupedScheduler(scheduler, log, prices[0].pricer.windows)
        self.prices = prices
        self.log = log
        self.shared = stages
        self.meets = meets
        self.flows = flows
        self.outstanding = 0
        self.end = NEVER
        self.stages = count = len(prices)
        self.last = count - 1
        self.in_flight = 0
        self.asked = False
        """Whether the scheduler has said what can be launched as things are."""
        self.changes = [NEVER] * (count + count - 1)
        """When each pass, then each boundary, changes next."""
        self.passes: list[SharedPass | None] = [None] * count
        self.micros: list[_Micro | None] = [None] * count
        self.phases = [WHOLE] * count
        self.queues: list[deque[_Micro]] = [deque() for _ in range(count)]
        self.sends: list[_Send | None] = [None] * self.last
        self.states = [QUIET] * self.last
        self.outputs: list[deque[_Micro]] = [deque() for _ in range(self.last)]
        """Per boundary what waits to be sent."""
        self.near = [0] * count
        """Per stage how many sends that it may meet are flows."""
        self.finished = 0

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; a decision is due where the first stage could take it."""
        del now
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        self.scheduler.waiting.append(sequence)
        self.asked = False
        if self._open:
            self.end = NEVER

    @property
    def _open(self) -> bool:
        """Whether a micro-batch could be launched."""
        return self.passes[0] is None and self.in_flight < self.stages

    def begin(self, now: int, until: int) -> None:
        """Launch a micro-batch if the first stage is free and there is something to run."""
        del until
        if self._open and not self.asked:
            batch = self.scheduler.next(now)
            self.asked = True
            if batch is not None:
                self._launch(now, batch)
        changes, last = self.changes, self.last
        while True:
            self.end = end = min(changes)
            if end == NEVER or self._open:
                return
            if changes[last] == end and self.phases[last] == WHOLE:
                return
            if changes[0] == end and self.phases[0] == WHOLE and self.in_flight < self.stages:
                return
            self._change(end)

    def land(self) -> int:
        """Account for all that changes now; return how many requests finished."""
        now, self.end, self.finished = self.end, NEVER, 0
        while min(self.changes) == now:
            self._change(now)
        return self.finished

    def stop(self, now: int) -> None:
        """Record the episodes that are open at the horizon; what is in flight has not happened."""
        del now
        self.scheduler.stop()

    def _launch(self, now: int, batch: Batch) -> None:
        scheduler, group, decodes, chunks = self.scheduler, batch.group, batch.decodes, batch.chunks
        context, new, kind = 0 if group is None else group.computed + decodes, 0, DECODE
        priced: list[tuple[int, int, tuple[int, ...]]] = []
        durations: list[int] = []
        for prices in self.prices:
            if chunks:
                total, number, ns, new, context, sends = price_prompts(prices, chunks, group)
                kind = MIXED if decodes else PREFILL
            else:
                assert group is not None
                total, number, ns, sends = price_decodes(prices, group)
            priced.append((total, number, ns))
            if sends:
                durations.append(sends[0])
        row = (
            now, kind, batch.slot, len(chunks) + decodes, new, decodes, context, len(scheduler.waiting),
            len(scheduler.running), scheduler.total - scheduler.free[0],
        )  # fmt: skip
        micro = _Micro(batch, row, kind, (new + decodes, len(chunks) + decodes, new, decodes))
        micro.priced, micro.sends = priced, durations
        self.in_flight += 1
        self._start(0, micro, now)

    def _change(self, now: int) -> None:
        """Handle one round of what changes now; then share out links anew."""
        changes, stages = self.changes, self.stages
        for place, at in enumerate(changes):
            if at != now:
                continue
            if place >= stages:
                self._change_send(place - stages, now)
            elif self.phases[place] == WHOLE:
                self._end_pass(place, now)
            else:
                self._change_pass(place, now)
        if self.flows.touched:
            for flow in self.flows.solve(now):
                changes[flow.number] = flow.end

    # Passes

    def _start(self, stage: int, micro: _Micro, now: int) -> None:
        total, number, ns = micro.priced[stage]
        run = SharedPass(self.shared[stage], micro.kind, number, ns, micro.counts, now, total)
        micro.passes += (now, number)
        self.passes[stage], self.micros[stage], self.phases[stage] = run, micro, WHOLE
        self.changes[stage] = now + total
        if self.near[stage]:
            self._step(stage, now)
            return
        for boundary, send in enumerate(self.sends):
            if send is None or self.states[boundary] != QUIET or stage not in self.meets[boundary]:
                continue
            place = self.stages + boundary
            if send.use is not None and send.end > now:
                self.changes[place] = run.meets(max(send.enters, now), self.changes[place])

    def _step(self, stage: int, now: int) -> None:
        """Let a pass go on from collective to collective, from now on."""
        run = self.passes[stage]
        assert run is not None
        at = run.at = run.after(now)
        if at == run.count:
            return
        use, leaves = run.use(at), run.leaves(at)
        enters = leaves - use.transfer_ns if use is not None else leaves
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
        at = run.at
        use = run.use(at)
        if self.phases[stage] == NEXT and use is not None:
            self._enter(stage, use, now, now + use.transfer_ns)
            return
        if use is not None:
            self.flows.leave(stage)
            lost = now - run.leaves(at)
            if lost:
                run.late += lost
                run.stretches += (run.instance(at), lost)
        self.phases[stage], self.changes[stage] = WHOLE, run.end
        if self.near[stage]:
            run.at = at + 1
            self._step(stage, now)

    def _end_pass(self, stage: int, now: int) -> None:
        run, micro = self.passes[stage], self.micros[stage]
        assert run is not None
        assert micro is not None
        if run.stretches:
            micro.stretched.append((stage, run.stretches))
        self.passes[stage] = self.micros[stage] = None
        self.changes[stage] = NEVER
        if stage == self.last:
            self._land(micro, now)
        else:
            self.outputs[stage].append(micro)
            if self.sends[stage] is None:
                self._send(stage, now)
        if stage == 0:
            self.asked = False
        elif self.queues[stage]:
            self._start(stage, self.queues[stage].popleft(), now)

    def _land(self, micro: _Micro, now: int) -> None:
        log = self.log
        for stage, stretches in micro.stretched:
            log.stretch(stage, stretches)
        varying = [ns for _, _, found in micro.priced for ns in found]
        log.step(micro.row, micro.passes, now, varying, micro.sent)
        finished = self.scheduler.complete(now, micro.batch)
        for sequence in finished:
            self.outstanding -= sequence.prompt_tokens + sequence.output_tokens
        self.finished += len(finished)
        self.in_flight -= 1
        self.asked = False

    # Sends

    def _send(self, boundary: int, now: int) -> None:
        """Begin to send what waits longest."""
        micro = self.outputs[boundary][0]
        duration = micro.sends[boundary]
        use = self.shared[boundary].send(micro.kind, micro.counts, duration)
        end = now + duration
        send = _Send(micro, end if use is None else end - use.transfer_ns, end, use)
        self.sends[boundary] = send
        micro.sent += [now] * self.log.ranks
        place = self.stages + boundary
        if use is not None and (any(self.near) or self.flows.touched):
            self.states[boundary], self.changes[place] = READY, send.enters
        else:
            self.states[boundary], self.changes[place] = QUIET, end
            self._foresee(boundary, now)

    def _foresee(self, boundary: int, now: int) -> None:
        """Tell when a send that is alone meets a collective, if it does."""
        send = self.sends[boundary]
        assert send is not None
        if send.use is None or send.end <= now:
            return
        enters, meeting = max(send.enters, now), send.end
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
        self.changes[self.stages + boundary] = meeting

    def _change_send(self, boundary: int, now: int) -> None:
        send, state = self.sends[boundary], self.states[boundary]
        assert send is not None
        if state == SHARING:
            self.flows.leave(self.stages + boundary)
            self._part(boundary)
            self._sent(boundary, now)
        elif state == READY:
            if any(self.near) or self.flows.touched:
                self._share(boundary, now)
            else:
                self.states[boundary], self.changes[self.stages + boundary] = QUIET, send.end
                self._foresee(boundary, now)
        elif now == send.end:
            self._sent(boundary, now)
        else:
            for other, found in enumerate(self.sends):
                if found is None or found.use is None or self.states[other] != QUIET or found.end <= now:
                    continue
                if found.enters <= now:
                    self._share(other, now)
                else:
                    self.states[other], self.changes[self.stages + other] = READY, found.enters

    def _share(self, boundary: int, now: int) -> None:
        """Make a send that is on its links a flow, and let the passes that it may meet go on in steps."""
        send = self.sends[boundary]
        assert send is not None
        assert send.use is not None
        self.states[boundary], self.changes[self.stages + boundary] = SHARING, send.end
        self.flows.enter(self.stages + boundary, send.use, send.enters, send.end)
        for stage in self.meets[boundary]:
            self.near[stage] += 1
            if self.passes[stage] is not None and self.phases[stage] == WHOLE:
                self._step(stage, now)

    def _part(self, boundary: int) -> None:
        """Let passes that no send may meet any more go on as a whole."""
        for stage in self.meets[boundary]:
            self.near[stage] -= 1
            run = self.passes[stage]
            if run is not None and not self.near[stage] and self.phases[stage] == NEXT:
                self.phases[stage], self.changes[stage] = WHOLE, run.end

    def _sent(self, boundary: int, now: int) -> None:
        """Hand on what has been sent, and begin with what waits."""
        micro = self.outputs[boundary].popleft()
        micro.sent += [now] * self.log.ranks
        self.sends[boundary] = None
        self.changes[self.stages + boundary] = NEVER
        if self.outputs[boundary]:
            self._send(boundary, now)
        stage = boundary + 1
        if self.passes[stage] is None and not self.queues[stage]:
            self._start(stage, micro, now)
        else:
            self.queues[stage].append(micro)
