"""Steps of one replica: they are launched in its pipeline, and recorded when they have left the last stage."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from clustersim.graph.batch import StepBatch
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.program import StageProgram
from clustersim.plan.parallel import ExpertPlan
from clustersim.replay.events.pass_log import record_passes
from clustersim.replay.events.pipeline import Pipeline
from clustersim.replay.events.swaps import Swaps
from clustersim.replay.events.wiring import MicroBatch
from clustersim.replay.instant import now_ns
from clustersim.serving.decision import batch_of
from clustersim.serving.halves import halves_of
from clustersim.timeline.record import Recorder
from tests.oracle.events.launches import OnLaunch
from tests.oracle.serving.decision import Decision
from tests.oracle.serving.scheduler import Outcome, Scheduler
from tests.oracle.serving.sequence import Sequence

if TYPE_CHECKING:
    from simpy import Environment


class Stepper:
    """Runs and records the steps of one replica.

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
    experts : ExpertPlan
        Says whether steps are split into halves that overlap.
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
        experts: ExpertPlan,
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
        self.experts = experts
        self.pipeline: Pipeline | None = None
        self.swaps: Swaps | None = None
        self.in_flight = 0
        self.steps = 0
        self.outstanding = 0
        self.alive = True
        self.rows: deque[tuple[int, ...]] = deque()
        self.on_launch: OnLaunch | None = None

    def attach(self, pipeline: Pipeline) -> None:
        """Give the replica its pipeline."""
        self.pipeline = pipeline

    @property
    def _pipeline(self) -> Pipeline:
        assert self.pipeline is not None
        return self.pipeline

    def _programs(self, name: str) -> list[StageProgram]:
        return [wiring.programs[name] for wiring in self._pipeline.stages]

    def batch_of(self, decision: Decision) -> StepBatch:
        """Return what a decision's step carries, in two halves where the plan has them and it can be split."""
        owners, windows = len(self.scheduler.pool.free), self.pricer.windows
        batch, halves = batch_of(decision, owners, windows), halves_of(decision, self.experts)
        if halves is None:
            return batch
        return replace(batch, halves=tuple([batch_of(half, owners, windows) for half in halves]))

    def _step(self, decision: Decision, batch: StepBatch) -> None:
        features = self.pricer.features(batch)
        micro = MicroBatch(
            step=self.steps,
            kind=batch.kind,
            program=batch.program,
            decision=decision,
            features=features,
            durations=[wiring.durations(batch, features) for wiring in self._pipeline.stages],
            started_at=now_ns(self.env),
        )
        self.account(decision, batch)
        self.steps += 1
        self.in_flight += 1
        if self.on_launch is not None:
            micro.on_layer = self.on_launch(self.index, decision.prefills)
        self._pipeline.launch(micro)

    def account(self, decision: Decision, batch: StepBatch) -> None:
        """Remember what the step row needs and what will have changed when the step ends."""
        pool = self.scheduler.pool
        context = sum(chunk.start for chunk in batch.chunks) + sum(batch.decode_keys)
        self.rows.append(
            (
                len(decision.decodes) + len(decision.prefills), batch.prefill_tokens, batch.num_decodes, context,
                len(self.scheduler.waiting) + len(self.scheduler.swapped_out), len(self.scheduler.running),
                pool.used, pool.total,
            )
        )  # fmt: skip

    def step_ended(self, micro: MicroBatch) -> None:
        """Account for and record a step that left the last stage."""
        self.in_flight -= 1
        record_passes(self.recorder, self.index, self._pipeline.stages, self.template_numbers, micro, now_ns(self.env))
        self.complete(micro, micro.decision)

    def complete(self, micro: MicroBatch, decision: Decision) -> None:
        """Account for and record what this replica brought to a step that ended now."""
        now = now_ns(self.env)
        prefills = [(s.request, s.computed, count) for s, count in decision.prefills]
        outcome = self.scheduler.complete(now, decision)
        row = self.rows.popleft()
        sampled = frozenset(requests_of(outcome.sampled))
        for request, first, count in prefills:
            self.recorder.chunk(self.index, micro.step, request, first, count, sampled=request in sampled)
        slot = self.recorder.decoded(self.index, micro.step, 1, requests_of(decision.decodes))
        kind = STEP_KINDS.index(micro.kind)
        self.recorder.step(self.index, micro.step, 1, slot, kind, micro.started_at, now, *row)
        self.settle(outcome)

    def settle(self, outcome: Outcome) -> None:
        """Tell everybody what a step brought."""
        ended = outcome.finished + outcome.cancelled
        self._left(ended)
        self.flush()
        if ended:
            self.recorder.finished(self.index, requests_of(ended))
            self.on_done(self.index, ended)
        self.wake(self.index)

    def flush(self) -> None:
        """Hand the scheduler's facts to the recorder."""
        if self.scheduler.facts:
            self.recorder.replica_facts(self.index, self.scheduler.facts)
            self.scheduler.facts = []
            for time, request, owner in self.scheduler.kept:
                self.recorder.kept(self.index, request, time, owner)
            self.scheduler.kept = []

    def _left(self, sequences: tuple[Sequence, ...]) -> None:
        for sequence in sequences:
            self.outstanding -= sequence.prompt_tokens + sequence.output_tokens


def requests_of(sequences: tuple[Sequence, ...]) -> tuple[int, ...]:
    """Return the numbers of the requests of sequences."""
    return tuple([sequence.request for sequence in sequences])
