"""The replay by events: arrivals, router and replicas on one SimPy clock, until every request is accounted for."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
import simpy

from clustersim.errors import StallError
from clustersim.replay.departures import CANCELLATION, FAULT, TIMEOUT, Departures, Due
from clustersim.replay.front import Front
from clustersim.replay.given import UNREACHED, Prepared, PreparedPool, Progress, ReplayResult
from clustersim.replay.hand_overs import HandOvers
from clustersim.replay.instant import ARRIVAL, END, SCHEDULING, at, now_ns
from clustersim.replay.lockstep import Lockstep, Member
from clustersim.replay.network import Network
from clustersim.replay.pipeline import Pipeline
from clustersim.replay.replica import Replica
from clustersim.replay.strain import WeakLinks
from clustersim.replay.wiring import Shapes, StageWiring
from clustersim.serving.decision import ARRIVED, REJECTED
from clustersim.serving.router import make_router
from clustersim.serving.sequence import Sequence
from clustersim.timeline.timeline import timeline_of


class EventReplay:
    """One run.

    Parameters
    ----------
    prepared : Prepared
    progress : callable or None
    obstacle : str
        Why lanes were not used.
    """

    def __init__(self, prepared: Prepared, progress: Progress | None, obstacle: str) -> None:
        self.given = given = prepared.given
        self.prepared = prepared
        self.progress = progress
        self.obstacle = obstacle
        self.env = simpy.Environment(initial_time=0)
        count = len(given.requests.prompt_tokens)
        self.total = count
        self.ended = 0
        self.next_request = 0
        self.replica_of = np.full(count, UNREACHED, np.int64)
        self.arrived_ns = np.full(count, UNREACHED, np.int64)
        self.preemptions = np.zeros(count, np.int64)
        self.reasons: dict[int, str] = {}
        self.pending: dict[int, Sequence] = {}
        """Requests that have not ended, of those that something may happen to at an instant of their own."""
        self.finished = simpy.Event(self.env)
        self.awake: dict[int, None] = {}
        self.router = make_router(given.serving, given.seed)
        self.recorder = prepared.recorder
        weak = WeakLinks([fault for fault in prepared.slowing if fault.links], given.topology.link_capacity)
        self.network = Network(self.env, given.topology.link_capacity, weak if weak.faults else None)
        self.replicas: list[Replica] = []
        self.wirings: dict[int, list[StageWiring]] = {}
        for pool in prepared.pools:
            shapes: Shapes = {}
            if pool.given.plan.is_lockstep:
                self.replicas += self._lockstep(pool, shapes).members
                continue
            for index in pool.replicas:
                self.wirings[index] = self._wirings(index, pool, shapes)
                self.replicas.append(self._replica(index, pool))
        self.entry = self.replicas[: given.plan.dp]
        """Replicas at which requests arrive."""
        self.hand_overs: HandOvers | None = None
        if given.hand_over is not None:
            self.hand_overs = HandOvers(self.env, self.network, prepared, self.replicas)
        self.front = Front(
            self.entry, prepared.outages, self.recorder,
            restart=self._restart, retry=self._retry, on_done=self._done, replica_of=self.replica_of,
        )  # fmt: skip
        self.cancel_after = given.requests.cancel_after_ns
        self.departures = Departures(self.env, self.replicas, self._depart)

    def _replica(self, index: int, pool: PreparedPool) -> Replica:
        replica = Replica(
            self.env,
            index,
            self.prepared.schedulers[index],
            pool.given.pricer,
            self.recorder,
            pool.numbers,
            jumps=pool.given.plan.pp == 1 and not self.wirings[index][0].as_events,
            on_done=self._done,
            wake=self._wake,
        )
        replica.attach(self._pipeline(replica))
        return replica

    def _wirings(self, index: int, pool: PreparedPool, shapes: Shapes) -> list[StageWiring]:
        """Return what the stages of a replica (or of all of them in lockstep) need to know."""
        contention = self.prepared.contention
        full = self.given.mode == "full"
        wirings = []
        for stage in range(pool.given.plan.pp):
            here = pool.programs[index, stage]
            uneven = not all(program.even for program in here.values())
            wirings.append(
                StageWiring(
                    programs=here,
                    devices=pool.stage_devices(index, stage),
                    as_events=full or uneven or (index, stage) in contention.stages,
                    send_as_events=full or (index, stage) in contention.boundaries,
                    full=full,
                    watched=None if uneven else contention.watched.get((index, stage)),
                    shapes=shapes,
                )
            )
        return wirings

    def _lockstep(self, pool: PreparedPool, shapes: Shapes) -> Lockstep:
        """Return all replicas of a pool as one: those that share their experts."""
        prepared = self.prepared
        (wiring,) = self._wirings(pool.first_replica, pool, shapes)

        def member(index: int) -> Member:
            return Member(
                self.env, index, prepared.schedulers[index], pool.given.pricer, self.recorder, pool.numbers,
                jumps=False, on_done=self._done, wake=self._wake,
            )  # fmt: skip

        together = Lockstep([member(index) for index in pool.replicas], jumps=not wiring.as_events)
        together.attach(
            Pipeline(
                self.env, self.network, self.given.comm, pool.first_replica, [wiring],
                on_free=lambda: self._wake(pool.first_replica), on_step=together.step_ended,
            )
        )  # fmt: skip
        return together

    def _pipeline(self, replica: Replica) -> Pipeline:
        return Pipeline(
            self.env, self.network, self.given.comm, replica.index, self.wirings[replica.index],
            on_free=lambda: self._wake(replica.index), on_step=replica.step_ended,
            strains=self.prepared.strains(replica.index),
        )  # fmt: skip

    def run(self) -> ReplayResult:
        """Simulate to the end.

        Raises
        ------
        StallError
            When nothing can happen any more although requests are unfinished.
        """
        horizon = self.given.horizon_ns
        if self.total == 0:
            return self._result()
        if self.given.requests.concurrency is not None:
            at(self.env, 0, ARRIVAL, lambda _: self._release(self.given.requests.concurrency or 0))
        else:
            self.env.process(self._arrivals())
        if horizon is not None:
            at(self.env, horizon, END, lambda _: self._stop())
        for number, outage in enumerate(self.front.outages):
            for instant in (outage.at_ns, outage.until_ns):
                if instant is not None:
                    self.departures.expect(instant, FAULT, number)
        try:
            self.env.run(until=self.finished)
        except RuntimeError as error:
            if self.env.peek() != simpy.core.Infinity:
                raise
            raise StallError(self._story()) from error
        return self._result()

    def _stop(self) -> None:
        for replica in self.replicas:
            replica.stop(now_ns(self.env))
        if not self.finished.triggered:
            self.finished.succeed()

    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        """The process that lets recorded or drawn requests arrive."""
        times = self.given.requests.arrived_at_ns.tolist()
        index = 0
        while index < self.total:
            event = simpy.Event(self.env)
            event._ok, event._value = True, None
            self.env.schedule(event, ARRIVAL, times[index] - now_ns(self.env))  # type: ignore[arg-type]
            yield event
            while index < self.total and times[index] == now_ns(self.env):
                self._arrive(index)
                index += 1

    def _release(self, count: int) -> None:
        """Let the next ``count`` requests of a closed loop arrive."""
        for _ in range(count):
            if self.next_request < self.total:
                self.next_request += 1
                self._arrive(self.next_request - 1)

    def _arrive(self, request: int) -> None:
        now = now_ns(self.env)
        given = self.given.requests
        sequence = Sequence(
            request=request,
            prompt_tokens=int(given.prompt_tokens[request]),
            output_tokens=int(given.output_tokens[request]),
            arrived_ns=now,
            priority=0 if given.priorities is None else int(given.priorities[request]),
        )
        self.arrived_ns[request] = now
        if self.prepared.prefix_keys is not None:
            sequence.keys = self.prepared.prefix_keys.of(request)
        index = self._route(sequence)
        replica = self.replicas[index]
        elsewhere = None if self.hand_overs is None else self.hand_overs.refusal(sequence)
        if self.hand_overs is not None:
            sequence = self.hand_overs.at_prefill(sequence)
        reason = replica.scheduler.refusal(sequence) or elsewhere or self._crowded(replica)
        if reason is not None:
            self._reject(sequence, reason)
            return
        self.recorder.arrival(now, ARRIVED, request, index, sequence.prompt_tokens)
        if replica.alive:
            replica.add(sequence)
        else:
            self.front.waiting[request] = sequence
        self._set_deadlines(sequence)

    def _route(self, sequence: Sequence) -> int:
        """Let a router choose among the replicas that live; without any a request is put down to the first one."""
        living = self.front.living
        index = self.router.route(now_ns(self.env), sequence, living) if living else 0
        self.replica_of[sequence.request] = index
        return index

    def _retry(self, sequence: Sequence) -> None:
        """Send a sequence to a replica that lives: its own has failed, or none lived when it came."""
        self.replicas[self._route(sequence)].add(sequence)

    def _restart(self, replica: Replica) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Let a replica fail, and give it a scheduler and a pipeline for when it is back."""
        evicted = replica.fail(self.prepared.new_scheduler())
        replica.attach(self._pipeline(replica))
        return evicted

    def _crowded(self, replica: Replica) -> str | None:
        """Return why a replica's queue takes no more, or None."""
        limit, now = self.given.serving.queue_limit, now_ns(self.env)
        if not replica.alive and not self.front.comes_back(now):
            return "every replica has failed, and none comes back"
        if limit is None or replica.waiting < limit:
            return None
        return f"the queue of replica {replica.index} is full: serving.queue_limit is {limit}"

    def _reject(self, sequence: Sequence, reason: str) -> None:
        request = sequence.request
        index = int(self.replica_of[request])
        self.recorder.arrival(now_ns(self.env), REJECTED, request, index, sequence.prompt_tokens)
        self.reasons[request] = reason
        self.pending.pop(request, None)
        self._end(1)

    def _set_deadlines(self, sequence: Sequence) -> None:
        """Let a request that has arrived be rejected when it has waited too long, and given up when its client does."""
        timeout, cancels, request = self.given.serving.queue_timeout_ns, self.cancel_after, sequence.request
        if timeout is not None:
            self.departures.expect(timeout, TIMEOUT, request)
        if cancels is not None and cancels[request] >= 0:
            self.departures.expect(int(cancels[request]), CANCELLATION, request)
        if timeout is not None or cancels is not None:
            self.pending[request] = sequence

    def _depart(self, due: Iterable[Due]) -> None:
        now = now_ns(self.env)
        if any(what == FAULT for what, _ in due):
            self.front.change(now)
        for what, number in due:
            sequence = self.pending.get(number) if what != FAULT else None
            if sequence is None:
                continue
            replica, at_front = self.replicas[self.replica_of[number]], number in self.front.waiting
            if what == TIMEOUT and sequence.admitted:
                continue
            if what == TIMEOUT:
                if at_front:
                    del self.front.waiting[number]
                else:
                    replica.withdraw(sequence)
                waited = (now - sequence.arrived_ns) / 1e9
                self._reject(sequence, f"not admitted for {waited:g} s, which is serving.queue_timeout")
            elif at_front:
                self.front.cancel(now, replica.index, sequence)
                self._done(replica.index, (sequence,))
            elif replica.cancel(sequence):
                self._done(replica.index, (sequence,))

    def _done(self, replica: int, sequences: tuple[Sequence, ...]) -> None:
        ended = 0
        for sequence in sequences:
            self.preemptions[sequence.request] = sequence.preemptions
            self.pending.pop(sequence.request, None)
            if sequence.hands_over and self.hand_overs is not None:
                self.hand_overs.leave(replica, sequence)
            else:
                ended += 1
        if ended:
            self._end(ended)

    def _end(self, count: int) -> None:
        self.ended += count
        if self.progress is not None:
            self.progress(now_ns(self.env), self.ended, self.total)
        if self.given.requests.concurrency is not None and self.next_request < self.total:
            at(self.env, 0, ARRIVAL, lambda _: self._release(count))
        if self.ended == self.total and not self.finished.triggered:
            self.finished.succeed()

    def _wake(self, index: int) -> None:
        if not self.awake:
            at(self.env, 0, SCHEDULING, self._schedule)
        self.awake[index] = None

    def _schedule(self, _: None) -> None:
        awake, self.awake = sorted(self.awake), {}
        for index in awake:
            self.replicas[index].schedule()

    def _story(self) -> str:
        lines = [f"nothing can happen after {self.env.now} ns, but {self.total - self.ended} requests are unfinished"]
        for replica in self.replicas:
            scheduler = replica.scheduler
            if scheduler.waiting or scheduler.running:
                lines.append(
                    f"replica {replica.index}: {len(scheduler.waiting)} waiting, {len(scheduler.running)} running, "
                    f"{sum(scheduler.pool.free)} of {scheduler.pool.total} K/V blocks free"
                )
                if scheduler.waiting:
                    head = scheduler.waiting[0]
                    lines.append(
                        f"request {head.request} waits for {scheduler.pool.needed(head.to_compute)} K/V blocks "
                        f"and a place in the batch"
                    )
            if replica.pipeline is not None:
                lines.extend(replica.pipeline.story())
        if self.hand_overs is not None:
            lines.extend(self.hand_overs.story())
        return "\n  ".join(lines)

    def _result(self) -> ReplayResult:
        for replica in self.replicas:
            replica.flush()
            for sequence in (*replica.scheduler.running, *replica.scheduler.waiting):
                self.preemptions[sequence.request] = sequence.preemptions
        for sequence in self.front.waiting.values():
            self.preemptions[sequence.request] = sequence.preemptions
        return ReplayResult(
            timeline=timeline_of(self.recorder, layout=self.prepared.layout),
            replica=self.replica_of,
            reasons=self.reasons,
            arrived_ns=self.arrived_ns,
            preemptions=self.preemptions,
            contention=self.prepared.contention,
            obstacle=self.obstacle,
        )
