"""The replay on one SimPy clock: arrivals, router and replicas, until every request is accounted for.

Each replica takes its steps as events.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import simpy

from clustersim.replay.input import UNREACHED, Progress, ReplayResult
from clustersim.replay.instant import at, now_ns
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.outages import ALL_FAILED
from clustersim.replay.prepared import Prepared
from clustersim.replay.slowdown import WeakLinks
from clustersim.serving.decision import ARRIVED, REJECTED
from clustersim.timeline.timeline import timeline_of
from tests.oracle.events.stall import stall_error
from tests.oracle.pools.hand_overs import HandOvers
from tests.oracle.replay.admission import Admission
from tests.oracle.replay.deadlines import why_given_up
from tests.oracle.replay.departures import FAULT, Departures, Due
from tests.oracle.replay.fleet import Fleet
from tests.oracle.replay.fleet_patience import FleetPatience
from tests.oracle.replay.instant import ARRIVAL, END, SCHEDULING, AskedClock
from tests.oracle.replay.replica import ClockReplica
from tests.oracle.replay.sessions import Sessions
from tests.oracle.serving.routers import make_router
from tests.oracle.serving.sequence import Sequence


class EventReplay:
    """One run.

    Parameters
    ----------
    prepared : Prepared
    progress : callable or None
    obstacle : str
        Why the core does not do it.
    """

    def __init__(self, prepared: Prepared, progress: Progress | None, obstacle: str) -> None:
        self.input = inputs = prepared.input
        self.prepared = prepared
        self.progress = progress
        self.obstacle = obstacle
        self.env = AskedClock(initial_time=0)
        count = len(inputs.requests.prompt_tokens)
        self.total = count
        self.ended = 0
        self.next_request = 0
        self.replica_of = np.full(count, UNREACHED, np.int64)
        self.arrived_ns = np.full(count, UNREACHED, np.int64)
        self.preemptions = np.zeros(count, np.int64)
        self.reasons: dict[int, str] = {}
        self.finished = simpy.Event(self.env)
        self.awake: dict[int, None] = {}
        self.router = make_router(inputs.entry.serving, inputs.seed)
        self.recorder = prepared.recorder
        weak = WeakLinks([fault for fault in prepared.slowing if fault.links], inputs.topology.link_capacity)
        self.network = Network(self.env, inputs.topology.link_capacity, weak if weak.faults else None)
        self.times: list[int] = inputs.requests.arrived_at_ns.tolist()
        self.sessions = Sessions(inputs.requests, self._next_turns)
        self.fleet = Fleet(self.env, self.network, prepared, self._done, self._wake)
        self.replicas = self.fleet.replicas
        self.entry = self.replicas[: inputs.entry.plan.dp]
        """Replicas at which requests arrive."""
        self.hand_overs = HandOvers(
            self.env, self.network, prepared, self.replicas, on_done=self._done, lose=self._lose
        )
        self.admission = Admission(
            self.replicas, len(self.entry), prepared.outages, self.recorder,
            restart=self._restart, retry=self._retry, on_done=self._done, replica_of=self.replica_of,
            reasons=self.reasons,
        )  # fmt: skip
        self.departures = Departures(self.env, self.replicas, self._depart)
        self.patience = FleetPatience(
            self.admission, self.hand_overs, expect=self.departures.expect,
            timeout_ns=inputs.entry.serving.queue_timeout_ns, cancel_after_ns=inputs.requests.cancel_after_ns,
            replica_of=lambda request: self.replicas[self.replica_of[request]],
            reject=self._reject, on_done=self._done,
        )  # fmt: skip

    def run(self) -> ReplayResult:
        """Simulate to the end.

        Raises
        ------
        StallError
            When nothing can happen any more although requests are unfinished.
        InputError
            When that is so because a user's own scheduler chooses nothing.
        """
        horizon = self.input.horizon_ns
        if self.total == 0:
            return self._result()
        if self.input.requests.concurrency is not None:
            at(self.env, 0, ARRIVAL, lambda _: self._release(self.input.requests.concurrency or 0))
        else:
            self._expect()
        if horizon is not None:
            at(self.env, horizon, END, lambda _: self._stop())
        for number, outage in enumerate(self.admission.outages):
            for instant in (outage.at_ns, outage.until_ns):
                if instant is not None:
                    self.departures.expect(instant, FAULT, number)
        try:
            self.env.run(until=self.finished)
        except RuntimeError as error:
            if self.env.peek() != simpy.core.Infinity:
                raise
            left = self.total - self.ended
            raise stall_error(now_ns(self.env), left, self.replicas, self.hand_overs.story()) from error
        return self._result()

    def _stop(self) -> None:
        for replica in self.replicas:
            replica.stop(now_ns(self.env))
        if not self.finished.triggered:
            self.finished.succeed()

    def _expect(self) -> None:
        """Wait for the next recorded or drawn request."""
        if self.next_request < self.total:
            at(self.env, self.times[self.next_request] - now_ns(self.env), ARRIVAL, self._arrivals)

    def _arrivals(self, _: None) -> None:
        """Let the requests of this instant arrive."""
        while self.next_request < self.total and self.times[self.next_request] == now_ns(self.env):
            self.next_request += 1
            if not self.sessions.holds(self.next_request - 1):
                self._arrive(self.next_request - 1)
        self._expect()

    def _release(self, count: int) -> None:
        """Let the next ``count`` requests of a closed loop arrive."""
        for _ in range(min(count, self.total - self.next_request)):
            if self.next_request < self.total:
                self.next_request += 1
                self._arrive(self.next_request - 1)

    def _next_turns(self) -> None:
        """Let the turns arrive whose sessions have come to them, after all that ends at this instant."""
        at(self.env, 0, ARRIVAL, self._arrive_in_turn)

    def _arrive_in_turn(self, _: None) -> None:
        for request in self.sessions.freed():
            self._arrive(request)

    def _arrive(self, request: int) -> None:
        now = now_ns(self.env)
        inputs = self.input.requests
        sequence = Sequence(
            request=request,
            prompt_tokens=int(inputs.prompt_tokens[request]),
            output_tokens=int(inputs.output_tokens[request]),
            arrived_ns=now,
            priority=0 if inputs.priorities is None else int(inputs.priorities[request]),
        )
        self.arrived_ns[request] = now
        if self.prepared.prefix_keys is not None:
            sequence.keys = self.prepared.prefix_keys.of(request)
        index = self._route(sequence)
        replica = self.replicas[index]
        elsewhere = self.hand_overs.refusal(now, sequence)
        sequence = self.hand_overs.at_prefill(sequence)
        reason = replica.scheduler.refusal(sequence) or elsewhere or self._crowded(replica)
        if reason is not None:
            self._reject(sequence, reason)
            return
        self.recorder.arrival(now, ARRIVED, request, index, sequence.prompt_tokens)
        if replica.alive:
            replica.add(sequence)
        else:
            self.admission.waiting[request] = sequence
        self.patience.begin(sequence)

    def _route(self, sequence: Sequence) -> int:
        """Let a router choose among the replicas that live; without any a request is put down to the first one."""
        living = self.admission.living
        index = self.router.route(now_ns(self.env), sequence, living) if living else 0
        self.replica_of[sequence.request] = index
        return index

    def _retry(self, sequence: Sequence) -> None:
        """Send a sequence to a replica that lives: its own has failed, or none lived when it came."""
        self.replicas[self._route(sequence)].add_again(sequence)

    def _restart(self, replica: ClockReplica) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Let a replica fail; see :meth:`Fleet.restart`."""
        hand_overs = self.hand_overs
        moved, gone = hand_overs.break_off(replica)
        sequences, cancelled = self.fleet.restart(replica)
        hand_overs.attach(replica)
        return (*moved, *(hand_overs.anew(sequence) for sequence in sequences)), (*gone, *cancelled)

    def _lose(self, replica: int, sequence: Sequence, reason: str) -> None:
        self.admission.lose(now_ns(self.env), replica, sequence, reason)

    def _crowded(self, replica: ClockReplica) -> str | None:
        """Return why a replica's queue takes no more, or None."""
        limit, now = self.input.entry.serving.queue_limit, now_ns(self.env)
        if not replica.alive and not self.admission.comes_back(now):
            return ALL_FAILED
        if limit is None or replica.waiting < limit:
            return None
        return f"the queue of replica {replica.index} is full: serving.queue_limit is {limit}"

    def _reject(self, sequence: Sequence, reason: str) -> None:
        request = sequence.request
        index = int(self.replica_of[request])
        self.recorder.arrival(now_ns(self.env), REJECTED, request, index, sequence.prompt_tokens)
        self.reasons[request] = reason
        self.patience.end(request)
        self.sessions.end(request)
        self._end(1)

    def _depart(self, due: Iterable[Due]) -> None:
        now = now_ns(self.env)
        if any(what == FAULT for what, _ in due):
            self.admission.change(now)
            self.hand_overs.rouse()
        for what, number in due:
            if what != FAULT:
                self.patience.expire(now, what, number)

    def _done(self, replica: int, sequences: tuple[Sequence, ...]) -> None:
        ended = 0
        for sequence in sequences:
            request = sequence.request
            self.preemptions[request] = sequence.preemptions
            if sequence.hands_over and self._goes_on(sequence):
                self.hand_overs.leave(replica, sequence)
                continue
            ended += 1
            self.patience.end(request)
            self.sessions.end(request)
            if self.patience.was_given_up(sequence):
                self.reasons[request] = why_given_up(sequence)
            self.hand_overs.ended(request)
        if ended:
            self._end(ended)

    def _goes_on(self, sequence: Sequence) -> bool:
        """Return whether a sequence goes on in the next pool: one that was given up only where it is on its way."""
        return not self.patience.was_given_up(sequence) or self.hand_overs.has(sequence.request)

    def _end(self, count: int) -> None:
        self.ended += count
        if self.progress is not None:
            self.progress(now_ns(self.env), self.ended, self.total)
        if self.input.requests.concurrency is not None and self.next_request < self.total:
            at(self.env, 0, ARRIVAL, lambda _: self._release(count))
        if self.ended == self.total and not self.finished.triggered:
            self.finished.succeed()

    def _wake(self, index: int) -> None:
        if not self.awake:
            at(self.env, 0, SCHEDULING, self._schedule)
        self.awake[index] = None

    def _schedule(self, _: None) -> None:
        self.env.asked_ns = now_ns(self.env)
        awake, self.awake = sorted(self.awake), {}
        for index in awake:
            self.replicas[index].schedule()

    def _result(self) -> ReplayResult:
        for replica in self.replicas:
            replica.flush()
            for sequence in (*replica.scheduler.running, *replica.scheduler.waiting, *replica.scheduler.swapped_out):
                self.preemptions[sequence.request] = sequence.preemptions
        for sequence in (*self.admission.waiting.values(), *self.hand_overs.on_the_way):
            self.preemptions[sequence.request] = sequence.preemptions
        return ReplayResult(
            timeline=timeline_of(self.recorder, layout=self.prepared.layout),
            replica=self.replica_of,
            reasons=self.reasons,
            arrived_ns=self.arrived_ns,
            preemptions=self.preemptions,
            contention=self.prepared.contention,
            obstacle=self.obstacle,
            calls=next(self.env._eid),
        )
