"""The replay by events: arrivals, router and replicas on one SimPy clock, until every request is accounted for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from clustersim.errors import StallError
from clustersim.replay.given import UNREACHED, Prepared, PreparedPool, Progress, ReplayResult
from clustersim.replay.hand_overs import HandOvers
from clustersim.replay.instant import ARRIVAL, END, SCHEDULING, at, now_ns
from clustersim.replay.lockstep import Lockstep, Member
from clustersim.replay.network import Network
from clustersim.replay.pipeline import Pipeline
from clustersim.replay.replica import Replica
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
        self.finished = simpy.Event(self.env)
        self.awake: dict[int, None] = {}
        self.router = make_router(given.serving, given.seed)
        self.recorder = prepared.recorder
        self.network = Network(self.env, given.topology.link_capacity)
        self.replicas: list[Replica] = []
        for pool in prepared.pools:
            shapes: Shapes = {}
            if pool.given.plan.is_lockstep:
                self.replicas += self._lockstep(pool, shapes).members
            else:
                self.replicas += [self._replica(index, pool, shapes) for index in pool.replicas]
        self.entry = self.replicas[: given.plan.dp]
        """Replicas at which requests arrive."""
        self.hand_overs: HandOvers | None = None
        if given.hand_over is not None:
            self.hand_overs = HandOvers(self.env, self.network, prepared, self.replicas)

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

    def _replica(self, index: int, pool: PreparedPool, shapes: Shapes) -> Replica:
        prepared, given = self.prepared, self.given
        wirings = self._wirings(index, pool, shapes)
        replica = Replica(
            self.env,
            index,
            prepared.schedulers[index],
            pool.given.pricer,
            self.recorder,
            pool.numbers,
            jumps=pool.given.plan.pp == 1 and not wirings[0].as_events,
            on_done=self._done,
            wake=self._wake,
        )
        replica.attach(
            Pipeline(
                self.env, self.network, given.comm, index, wirings,
                on_free=lambda: self._wake(index), on_step=replica.step_ended,
            )
        )  # fmt: skip
        return replica

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
        if self.prepared.prefix_keys is not None:
            sequence.keys = self.prepared.prefix_keys.of(request)
        index = self.router.route(now, sequence, self.entry)
        replica = self.replicas[index]
        self.replica_of[request], self.arrived_ns[request] = index, now
        reason = None if self.hand_overs is None else self.hand_overs.refusal(sequence)
        if self.hand_overs is not None:
            sequence = self.hand_overs.at_prefill(sequence)
        reason = replica.scheduler.refusal(sequence) or reason
        kind = ARRIVED if reason is None else REJECTED
        self.recorder.arrival(now, kind, request, index, sequence.prompt_tokens)
        if reason is None:
            replica.add(sequence)
            return
        self.reasons[request] = reason
        self._end(1)

    def _done(self, replica: int, sequences: tuple[Sequence, ...]) -> None:
        ended = 0
        for sequence in sequences:
            self.preemptions[sequence.request] = sequence.preemptions
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
        return ReplayResult(
            timeline=timeline_of(self.recorder, layout=self.prepared.layout),
            replica=self.replica_of,
            reasons=self.reasons,
            arrived_ns=self.arrived_ns,
            preemptions=self.preemptions,
            contention=self.prepared.contention,
            obstacle=self.obstacle,
        )
