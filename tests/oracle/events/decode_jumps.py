"""Decode jumps by events: a decode run as one event.

``core.steps`` says why a jump equals its steps.

So a run ends with the first step in which a member finishes, before the first one that lacks a K/V block, or with
the step in which something happens. Its steps are a :class:`~tests.oracle.events.decode_run.DecodeRun`.
"""

from __future__ import annotations

from clustersim.graph.batch import StepBatch
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.replay.instant import now_ns
from clustersim.serving.halves import halves_of
from tests.oracle.events import decode_run
from tests.oracle.events.decode_run import DecodeRun, keys_of_run
from tests.oracle.events.stepper import Stepper, requests_of
from tests.oracle.serving.decision import Decision


class DecodeJumps(Stepper):
    """Takes the steps of an unchanging decode batch as one event; parameters are those of :class:`Stepper`."""

    run: DecodeRun | None = None
    """The run under way, if any."""
    repeated: Decision
    """What each step of it does."""

    def _catch_up(self, now: int) -> None:
        """Take the blocks that the run under way has taken by now, so that what happens now finds them taken.

        The scheduler has taken those of its first step, and learns of the others only when the run has ended.
        """
        if self.run is not None:
            self.scheduler.take_for(self.repeated, self.run.begun(now))

    def _jump(self, decision: Decision, batch: StepBatch) -> None:
        steps = min(self.scheduler.horizon(decision), decode_run.MAX_RUN)
        owners, halves = range(len(batch.decode_sequences)), halves_of(decision, self.experts) or (decision,)
        decodes = [[q for q in half.decodes if q.owner == s] for half in halves for s in owners]
        self.account(decision, batch)
        self.in_flight += 1
        self.repeated = decision
        self.run = DecodeRun(self._pipeline, self.pricer, batch, keys_of_run(batch, decodes, steps), self._landed)

    def _cut(self, now: int) -> None:
        """End the run with the first step that ends at ``now`` or later."""
        assert self.run is not None
        self.run.cut(now)

    def _landed(self, run: DecodeRun) -> None:
        decision = self.repeated
        self.run = None
        self.in_flight -= 1
        outcome = self.scheduler.complete(now_ns(self.env), decision, len(run))
        self._record_run(run, len(run), self.rows.popleft())
        self.settle(outcome)

    def _record_run(self, run: DecodeRun, steps: int, row: tuple[int, ...]) -> None:
        (program,) = self._programs(run.program)
        template = self.template_numbers[program.key]
        self.recorder.run(self.index, 0, template, self.steps, run.starts[:steps], run.durations(steps))
        self.record_steps(run, self.repeated, self.steps, steps, row)
        self.steps += steps

    def ends_step(self, now: int) -> bool:
        """Return whether a run is under way of which a step ends now; then it ends with that step."""
        if self.run is None or not self.run.ends_step(now):
            return False
        self._cut(now)
        return True

    def stop(self, now: int) -> None:
        """At the horizon: account for the steps of a run that have ended, and for the start of the next one."""
        run = self.run
        if run is None:
            return
        ended = run.ended(now)
        self.scheduler.advance(self.repeated, min(ended + 1, len(run)))
        if ended:
            self._record_run(run, ended, self.rows.popleft())
        self.flush()

    def record_steps(self, run: DecodeRun, decision: Decision, first: int, steps: int, row: tuple[int, ...]) -> None:
        """Record what this replica brought to ``steps`` steps of a run, from step ``first`` on."""
        slot = self.recorder.decoded(self.index, first, steps, requests_of(decision.decodes))
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
