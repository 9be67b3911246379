"""Steady runs: many decode steps of one replica as a single event, cut short where something happens meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.batch import StepBatch
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.pricing import decode_keys
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.stepper import Stepper, requests_of
from clustersim.serving.decision import Decision
from clustersim.timeline.record import Durations

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


class SteadyRuns(Stepper):
    """Jumps over steps of a replica whose decode batch does not change; parameters are those of :class:`Stepper`."""

    run: Run | None = None

    @staticmethod
    def _begun(run: Run, now: int) -> int:
        """Return how many steps of a run began before this instant."""
        return int(np.searchsorted(run.starts, now, side="left"))

    def _catch_up(self, now: int) -> None:
        """Take the blocks that the run under way has taken by now, so that what happens now finds them taken.

        The scheduler has taken those of its first step, and learns of the others only when the run has ended.
        """
        run = self.run
        if run is not None:
            self.scheduler.take_for(run.decision, self._begun(run, now))

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

    def ends_step(self, now: int) -> bool:
        """Return whether a run is under way of which a step ends now; then it ends with that step."""
        run = self.run
        if run is None or now not in run.ends[np.searchsorted(run.ends, now) :][:1]:
            return False
        self._cut(now)
        return True

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

    def record_steps(self, run: Run, first: int, steps: int, row: tuple[int, ...]) -> None:
        """Record what this replica brought to ``steps`` steps of a run, from step ``first`` on."""
        slot = self.recorder.decoded(self.index, first, steps, requests_of(run.decision.decodes))
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
