"""One replica: its scheduler decides, its pipeline executes, and what happened is recorded when a step ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from simpy import Environment

from clustersim.clock import Int64Array
from clustersim.graph.batch import StepBatch
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.pricing import Pricer, decode_keys
from clustersim.graph.program import StageProgram
from clustersim.replay.chain import ChainPass
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.pipeline import Pipeline
from clustersim.replay.swaps import Swaps
from clustersim.replay.wiring import MicroBatch
from clustersim.serving.decision import Decision, batch_of
from clustersim.serving.disaggregated import DecodeScheduler
from clustersim.serving.scheduler import Outcome, Scheduler
from clustersim.serving.sequence import Sequence
from clustersim.serving.swapping import SwappingScheduler
from clustersim.serving.view import ReplicaView
from clustersim.timeline.record import Durations, Recorder

MAX_RUN = 4096
"""Most steps of one jump, so that progress shows and arrays stay small."""


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """A jump over steps of one unchanging decode batch, not yet accounted for."""

    decision: Decision
    batch: StepBatch
    row: Int64Array
    columns: tuple[int, ...]
    varying: Int64Array
    starts: Int64Array
    ends: Int64Array
    version: int = 0


class Replica:
    """Scheduler, pipeline and record of one replica.

    Parameters
    ----------
    env : simpy.Environment
    index : int
    scheduler : Scheduler
    pricer : Pricer
    recorder : Recorder
    template_numbers : dict
        ``StageProgram.key`` → number of its template.
    jumps : bool
        Whether runs of decode steps may be one event.
    on_done : callable
        Called with (replica, sequences that finished).
    wake : callable
        Asks for a scheduling decision at this instant.
    """

    def __init__(
        self,
        env: Environment,
        index: int,
        scheduler: Scheduler,
        pricer: Pricer,
        recorder: Recorder,
        template_numbers: dict[tuple[int, int, str], int],
        jumps: bool,
        on_done: Callable[[int, tuple[Sequence, ...]], None],
        wake: Callable[[int], None],
    ) -> None:
        self.env = env
        self.index = index
        self.scheduler = scheduler
        self.pricer = pricer
        self.recorder = recorder
        self.template_numbers = template_numbers
        self.jumps = jumps
        self.on_done = on_done
        self.wake = wake
        self.pipeline: Pipeline | None = None
        self.swaps: Swaps | None = None
        self.in_flight = 0
        self.steps = 0
        self.outstanding = 0
        self.alive = True
        self.run: Run | None = None
        self.rows: deque[tuple[int, ...]] = deque()
        self.on_launch: Callable[[int, MicroBatch], None] | None = None
        """Called with (replica, micro-batch) before it starts."""

    @property
    def waiting(self) -> int:
        """Sequences that wait: to be admitted, to be received, or to come back from the host."""
        scheduler = self.scheduler
        arriving = len(scheduler.arriving) if isinstance(scheduler, DecodeScheduler) else 0
        return len(scheduler.waiting) + len(scheduler.aside) + arriving

    @property
    def running(self) -> int:
        """Sequences that run, or whose K/V is on its way here."""
        scheduler = self.scheduler
        receiving = scheduler.receiving if isinstance(scheduler, DecodeScheduler) else 0
        return len(scheduler.running) + receiving

    def view(self, request: Sequence) -> ReplicaView:
        """Return what a user's router is shown."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        cached = self.cached_tokens(request)
        return ReplicaView(
            replica=self.index,
            waiting=self.waiting,
            running=self.running,
            outstanding_tokens=self.outstanding,
            waiting_tokens=sum(s.to_compute for s in (*scheduler.waiting, *scheduler.running) if not s.decodes),
            free_blocks=sum(pool.free) - self._taken(now_ns(self.env)),
            pool_blocks=pool.total,
            cached_tokens=cached,
        )

    def cached_tokens(self, request: Sequence) -> int:
        """Return how many leading tokens of a prompt one of the pools has cached."""
        pool, run = self.scheduler.caching, self.run
        if pool is None:
            return 0
        if run is not None:  # its decodes have taken blocks that may have been cached ones
            self.scheduler.take_for(run.decision, self._begun(run, now_ns(self.env)))
        return pool.block_tokens * max(pool.cached_blocks(owner, request) for owner in range(len(pool.free)))

    @staticmethod
    def _begun(run: Run, now: int) -> int:
        """Return how many steps of a run began before this instant."""
        return int(np.searchsorted(run.starts, now, side="left"))

    def _taken(self, now: int) -> int:
        """Return the blocks that the run under way has taken since it began; its first step's are the scheduler's."""
        run = self.run
        if run is None:
            return 0
        begun = self._begun(run, now)
        needed = self.scheduler.pool.needed
        return sum(max(0, needed(s.computed + begun) - s.blocks) for s in run.decision.decodes)

    def attach(self, pipeline: Pipeline, swaps: Swaps | None = None) -> None:
        """Give the replica its pipeline, and what carries out its swaps."""
        self.pipeline = pipeline
        self.swaps = swaps

    @property
    def _pipeline(self) -> Pipeline:
        assert self.pipeline is not None
        return self.pipeline

    def add(self, sequence: Sequence) -> None:
        """Queue an arrived request."""
        self.scheduler.add(sequence)
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        if self.run is not None and self.scheduler.waiting[0] is sequence:  # those before it are kept out as ever
            self._cut(now_ns(self.env))
        self.wake(self.index)

    def take_over(self, sequence: Sequence) -> None:
        """Queue a sequence whose prompt was computed elsewhere until there are blocks for it."""
        scheduler = self.scheduler
        assert isinstance(scheduler, DecodeScheduler)
        scheduler.arriving.append(sequence)
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        if self.run is not None and scheduler.arriving[0] is sequence:
            self._cut(now_ns(self.env))
        self.wake(self.index)

    def receive(self, sequence: Sequence) -> None:
        """Let a sequence decode whose K/V has arrived."""
        now = now_ns(self.env)
        assert isinstance(self.scheduler, DecodeScheduler)
        self.scheduler.received(now, sequence, self._taken(now))
        if self.run is not None:
            self._cut(now)
        self.wake(self.index)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue."""
        self.scheduler.withdraw(sequence)
        self._left((sequence,))
        self._decide_anew()

    def cancel(self, sequence: Sequence) -> bool:
        """Let a sequence go whose client gives it up; return whether it is gone already, no step carries it."""
        gone = self.scheduler.cancel(now_ns(self.env), sequence)
        if gone:
            self._left((sequence,))
            self.recorder.finished(self.index, (sequence.request,))
            self.flush()
        self._decide_anew()
        return gone

    def ends_step(self, now: int) -> bool:
        """Return whether a run is under way of which a step ends now; then it ends with that step."""
        run = self.run
        if run is None or now not in run.ends[np.searchsorted(run.ends, now) :][:1]:
            return False
        self._cut(now)
        return True

    def fail(self, successor: Scheduler) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Go down: steps in flight are as if they had never begun, and all K/V is lost.

        Parameters
        ----------
        successor : Scheduler
            With nothing in it: the one that decides when the replica is back.

        Returns
        -------
        (sequences, sequences)
            See :meth:`Scheduler.evict`.
        """
        now = now_ns(self.env)
        self._cut_off(now)
        evicted, cancelled = self.scheduler.evict(now)
        self.recorder.finished(self.index, _requests((*evicted, *cancelled)))
        self.flush()
        self.alive, self.in_flight, self.outstanding = False, 0, 0
        self.rows.clear()
        self.scheduler = successor
        return evicted, cancelled

    def _cut_off(self, now: int) -> None:
        """Account for the steps that have ended, and forget the others."""
        if self.run is None:
            self.steps -= self.in_flight
        else:
            self.run.version += 1
            self.stop(now)
            self.run = None
        self._pipeline.abandon()

    def _decide_anew(self) -> None:
        """Decide anew when the step that is under way has ended."""
        if self.run is not None:
            self._cut(now_ns(self.env))
        self.wake(self.index)

    def _left(self, sequences: tuple[Sequence, ...]) -> None:
        for sequence in sequences:
            self.outstanding -= sequence.prompt_tokens + sequence.output_tokens

    def schedule(self) -> None:
        """Start steps while the first stage is free and there is something to run."""
        pipeline = self._pipeline
        while self.run is None and pipeline.free and self.in_flight < len(pipeline.stages):
            decision = self.scheduler.schedule(now_ns(self.env))
            self._begin_swaps()
            if decision is None:
                return
            batch = batch_of(decision, len(self.scheduler.pool.free), self.pricer.windows)
            if self.jumps and decision.steady and not pipeline.is_strained(0):
                self._jump(decision, batch)
            else:
                self._step(decision, batch)

    def end_swaps(self, ended: list[Sequence]) -> None:
        """Account for copies that have ended, after all steps that end at this instant."""
        scheduler = self.scheduler
        assert isinstance(scheduler, SwappingScheduler)
        gone = tuple(sequence for sequence in ended if scheduler.copied(now_ns(self.env), sequence))
        if gone:
            self._left(gone)
            self.flush()
            self.on_done(self.index, gone)
        self.wake(self.index)

    def _begin_swaps(self) -> None:
        if self.swaps is not None and isinstance(self.scheduler, SwappingScheduler):
            swaps, self.scheduler.swaps = self.scheduler.swaps, []
            for swap in swaps:
                if swap.out:
                    self.recorder.finished(self.index, (swap.sequence.request,))
                self.swaps.begin(swap)

    def _programs(self, kind: str) -> list[StageProgram]:
        return [wiring.programs[kind] for wiring in self._pipeline.stages]  # type: ignore[index]

    def _step(self, decision: Decision, batch: StepBatch) -> None:
        programs = self._programs(batch.kind)
        features = self.pricer.features(batch)
        micro = MicroBatch(
            step=self.steps,
            kind=batch.kind,
            decision=decision,
            features=features,
            durations=[self.pricer.durations(program, batch, features) for program in programs],
            started_at=now_ns(self.env),
        )
        self.account(decision, batch)
        self.steps += 1
        self.in_flight += 1
        if self.on_launch is not None:
            self.on_launch(self.index, micro)
        self._pipeline.launch(micro)

    def account(self, decision: Decision, batch: StepBatch) -> None:
        """Remember what the step row needs and what will have changed when the step ends."""
        pool = self.scheduler.pool
        context = sum(chunk.start for chunk in batch.chunks) + sum(batch.decode_keys)
        self.rows.append(
            (
                len(decision.decodes) + len(decision.prefills), batch.prefill_tokens, batch.num_decodes, context,
                len(self.scheduler.waiting) + len(self.scheduler.aside), len(self.scheduler.running),
                pool.used, pool.total,
            )
        )  # fmt: skip

    def _jump(self, decision: Decision, batch: StepBatch) -> None:
        steps = min(self.scheduler.horizon(decision), MAX_RUN)
        (program,) = self._programs("decode")
        grown = np.arange(steps, dtype=np.int64)
        keys: dict[tuple[int, int | None], Int64Array] = {}
        for (s, window), count in decode_keys(batch).items():
            if window is None:
                keys[s, None] = count + batch.decode_sequences[s] * grown
            else:
                owned = np.array([q.computed + 1 for q in decision.decodes if q.owner == s], np.int64)
                keys[s, window] = np.minimum(owned[:, None] + grown[None, :], window).sum(axis=0)
        row, columns, varying = self.pricer.decode_run(program, batch.decode_sequences, keys)
        template = program.template
        if template.is_chain:
            totals = int(template.counts @ row) + varying @ template.counts[list(columns)]
        else:
            totals = template.total_times(Durations(row=row, columns=columns, varying=varying).table())
        ends = now_ns(self.env) + np.cumsum(totals)
        starts = np.concatenate(([now_ns(self.env)], ends[:-1]))
        most = self._pipeline.steps_before_change(starts)
        if most < steps:
            starts, ends, varying = starts[:most], ends[:most], varying[:most]
        self.account(decision, batch)
        self.run = Run(
            decision=decision,
            batch=batch,
            row=row,
            columns=columns,
            varying=varying,
            starts=starts,
            ends=ends,
        )
        self.in_flight += 1
        self._arm()

    def _arm(self) -> None:
        run = self.run
        assert run is not None
        run.version += 1
        at(self.env, int(run.ends[-1]) - now_ns(self.env), COMPLETION, self._landed, (run, run.version))

    def _cut(self, now: int) -> None:
        """End the run with the first step that ends at ``now`` or later."""
        run = self.run
        assert run is not None
        steps = int(np.searchsorted(run.ends, now, side="left")) + 1
        if steps < len(run.ends):
            run.starts, run.ends, run.varying = run.starts[:steps], run.ends[:steps], run.varying[:steps]
            self._arm()

    def _landed(self, landing: tuple[Run, int]) -> None:
        run, version = landing
        if version != run.version:
            return
        self.run = None
        self.in_flight -= 1
        self.scheduler.advance(run.decision, len(run.starts))
        outcome = self.scheduler.complete(now_ns(self.env), run.decision)
        self._record_run(run, len(run.ends), self.rows.popleft())
        self.settle(outcome)

    def _record_run(self, run: Run, steps: int, row: tuple[int, ...]) -> None:
        (program,) = self._programs("decode")
        durations = Durations(row=run.row, columns=run.columns, varying=run.varying[:steps])
        template = self.template_numbers[program.key]
        self.recorder.run(self.index, 0, template, self.steps, run.starts[:steps], durations)
        self.record_steps(run, self.steps, steps, row)
        self.steps += steps

    def record_steps(self, run: Run, first: int, steps: int, row: tuple[int, ...]) -> None:
        """Record what this replica brought to ``steps`` steps of a run, from step ``first`` on."""
        slot = self.recorder.decoded(self.index, first, steps, _requests(run.decision.decodes))
        self.recorder.step(
            self.index,
            first,
            steps,
            slot,
            STEP_KINDS.index("decode"),
            int(run.starts[0]),
            int(run.ends[steps - 1]),
            *row,
        )

    def stop(self, now: int) -> None:
        """At the horizon: account for the steps of a run that have ended, and for the start of the next one."""
        run = self.run
        if run is None:
            return
        ended = int(np.searchsorted(run.ends, now, side="right"))
        self.scheduler.advance(run.decision, min(ended + 1, len(run.starts)))
        if ended:
            self._record_run(run, ended, self.rows.popleft())
        self.flush()

    def step_ended(self, micro: MicroBatch) -> None:
        """Account for and record a step that left the last stage."""
        self.in_flight -= 1
        self.record_passes(micro)
        self.complete(micro, micro.decision)

    def record_passes(self, micro: MicroBatch) -> None:
        """Record what a step did on each stage."""
        for stage, program in enumerate(self._programs(micro.kind)):
            template = self.template_numbers[program.key]
            run, start = micro.passes[stage], micro.starts[stage]
            if run is None or (isinstance(run, ChainPass) and not run.stretched):
                one = Durations.of_one(micro.durations[stage])
                self.recorder.run(self.index, stage, template, micro.step, np.array([start]), one)
            else:
                if isinstance(run, ChainPass):
                    starts, ends = run.instance_times()
                    times = starts[program.template.node_instance], ends[program.template.node_instance]
                else:
                    times = run.node_times()
                self.recorder.nodes(self.index, stage, template, micro.step, start, micro.durations[stage], *times)
            if stage < len(micro.send_starts):
                self.recorder.transfer(self.index, stage, micro.step, micro.send_starts[stage], micro.send_ends[stage])

    def complete(self, micro: MicroBatch, decision: Decision) -> None:
        """Account for and record what this replica brought to a step that ended now."""
        now = now_ns(self.env)
        prefills = [(s.request, s.computed, count) for s, count in decision.prefills]
        outcome = self.scheduler.complete(now, decision)
        row = self.rows.popleft()
        sampled = frozenset(_requests(outcome.sampled))
        for request, first, count in prefills:
            self.recorder.chunk(self.index, micro.step, request, first, count, sampled=request in sampled)
        slot = self.recorder.decoded(self.index, micro.step, 1, _requests(decision.decodes))
        kind = STEP_KINDS.index(micro.kind)
        self.recorder.step(self.index, micro.step, 1, slot, kind, micro.started_at, now, *row)
        self.settle(outcome)

    def settle(self, outcome: Outcome) -> None:
        """Tell everybody what a step brought."""
        ended = outcome.finished + outcome.cancelled
        self._left(ended)
        self.flush()
        if ended:
            self.recorder.finished(self.index, _requests(ended))
            self.on_done(self.index, ended)
        self.wake(self.index)

    def flush(self) -> None:
        """Hand the scheduler's facts to the recorder."""
        if self.scheduler.facts:
            self.recorder.replica_facts(self.index, self.scheduler.facts)
            self.scheduler.facts = []


def _requests(sequences: tuple[Sequence, ...]) -> tuple[int, ...]:
    return tuple([sequence.request for sequence in sequences])
