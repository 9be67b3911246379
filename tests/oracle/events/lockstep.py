"""Replicas that share their experts: each decides for itself, and all take every step together.

A step of the group is one program whose coordinates are the replicas (``ParallelPlan.lockstep``): each brings the
tokens that its own scheduler chose, and all of them meet at the dispatch and the combine of every MoE layer. A replica
that has nothing to run brings a dummy batch of one token, as vLLM does
(vllm/v1/engine/core.py, ``DPEngineCoreProc.run_busy_loop``: ``execute_dummy_batch``, 2025), because the ranks
that hold its experts are asked for by the others. The next step starts when the one before it has ended everywhere.
Where steps run as two halves (``plan.ep.overlap``), all replicas split a step or none (``serving.halves``).

Passes are recorded as of the first of them; steps, chunks, decodes and facts name the replica whose they are, and every
replica has a row for each step of the group, an empty one where it brought a dummy batch.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import replace
from typing import Final

from clustersim.graph.batch import StepBatch
from clustersim.replay.core_groups import together
from clustersim.replay.events.pass_log import record_passes
from clustersim.replay.events.pipeline import Pipeline
from clustersim.replay.events.wiring import MicroBatch, OnLayer
from clustersim.replay.instant import now_ns
from clustersim.serving.decision import batch_of
from clustersim.serving.halves import halves_of
from tests.oracle.events import decode_run
from tests.oracle.events.decode_run import DecodeRun, keys_of_run
from tests.oracle.events.pipelines import is_free
from tests.oracle.events.replica import Replica
from tests.oracle.serving.decision import Decision
from tests.oracle.serving.sequence import Sequence

SHORT: Final = 1
"""Steps of a run that are priced where the last one was cut before."""
NOTHING: Final = Decision(decodes=(), prefills=())
"""What a replica brings that has nothing to run."""


class Member(Replica):
    """One replica of a group; the parameters are those of :class:`~tests.oracle.events.replica.Replica`."""

    group: Lockstep

    def add(self, sequence: Sequence) -> None:
        """Queue an arrived request."""
        self.scheduler.add(sequence)
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        if self.scheduler.waiting[0] is sequence:  # those before it are kept out as ever
            self.group.cut(now_ns(self.env))
        self.wake(self.index)

    def schedule(self) -> None:
        """Let the group take its next step, if it can."""
        self.group.schedule()

    def stop(self, now: int) -> None:
        """At the horizon: let the group account for what has ended; the first member speaks for all."""
        if self is self.group.members[0]:
            self.group.stop(now)

    def _cut(self, now: int) -> None:
        self.group.cut(now)

    def _cut_off(self, now: int) -> None:
        """Account for the steps of the group that have ended, once for all: what one needs has failed for all."""
        if self is self.group.members[0]:
            self.group.cut_off(now)


class Lockstep:
    """Replicas that take every step together.

    Parameters
    ----------
    members : sequence of Member
        In order of their numbers.
    jumps : bool
        Whether runs of decode steps may be one event.
    """

    def __init__(self, members: Sequences[Member], jumps: bool) -> None:
        self.members = members
        self.jumps = jumps
        self.env = members[0].env
        self.pricer = members[0].pricer
        self.recorder = members[0].recorder
        self.decisions: list[Decision] = []
        self.parts: list[list[Decision]] = []
        """The decisions, and those of the two halves of the step where it is split."""
        self.run: DecodeRun | None = None
        self.reach = SHORT
        """Steps of the next run at most: arrivals at any replica cut it, so that many would be priced in vain."""
        self.steps = 0
        for member in members:
            member.group = self

    def attach(self, pipeline: Pipeline) -> None:
        """Give the group its pipeline, of one stage."""
        self.pipeline = pipeline
        self.members[0].attach(pipeline)

    def schedule(self) -> None:
        """Start a step when none is under way and any replica has something to run."""
        if self.run is not None or not is_free(self.pipeline):
            return
        found = [member.scheduler.schedule(now_ns(self.env)) for member in self.members]
        for member in self.members:
            member.begin_swaps()
        if not any(found):
            return
        self.decisions = [decision or NOTHING for decision in found]
        parts = [batch_of(decision, 1, self.pricer.windows) for decision in self.decisions]
        for member, decision, part in zip(self.members, self.decisions, parts, strict=True):
            member.account(decision, part)
        self.parts = self._halves()
        halves = tuple(together([batch_of(one, 1, self.pricer.windows) for one in part]) for part in self.parts[1:])
        batch = replace(together(parts), halves=halves)
        if self.jumps and self._steady and not self.pipeline.is_slowed(0):
            self._jump(batch)
        else:
            self._step(batch)

    def _halves(self) -> list[list[Decision]]:
        """Return the decisions of all replicas; where each of them can split its step, those of both halves besides."""
        found = [
            halves_of(decision, member.experts) for member, decision in zip(self.members, self.decisions, strict=True)
        ]
        halves = [one for one in found if one is not None]
        if len(halves) < len(found):
            return [self.decisions]
        return [self.decisions, *([both[half] for both in halves] for half in (0, 1))]

    @property
    def _steady(self) -> bool:
        """Whether every replica would decide the same again, one that has nothing to run until something arrives."""
        for member, decision in zip(self.members, self.decisions, strict=True):
            scheduler = member.scheduler
            there = scheduler.waiting or scheduler.running or scheduler.swapped_out
            if (there or decision is not NOTHING) and not decision.steady:
                return False
        return True

    def _step(self, batch: StepBatch) -> None:
        program = self.pipeline.stages[0].programs[batch.program]
        features = self.pricer.features(batch)
        micro = MicroBatch(
            step=self.steps,
            kind=batch.kind,
            program=batch.program,
            decision=Decision(
                decodes=tuple(s for decision in self.decisions for s in decision.decodes),
                prefills=tuple(chunk for decision in self.decisions for chunk in decision.prefills),
            ),
            features=features,
            durations=[self.pricer.durations(program, batch, features)],
            started_at=now_ns(self.env),
        )
        self.steps += 1
        micro.on_layer = self._on_layer()
        self.pipeline.launch(micro)

    def _on_layer(self) -> OnLayer | None:
        """Return what tells every replica of the layers that a step has passed everywhere; None where none asks."""
        asked = [
            member.on_launch(member.index, decision.prefills)
            for member, decision in zip(self.members, self.decisions, strict=True)
            if member.on_launch is not None
        ]
        told = [on_layer for on_layer in asked if on_layer is not None]

        def passed(layer: int) -> None:
            for on_layer in told:
                on_layer(layer)

        return passed if told else None

    def step_ended(self, micro: MicroBatch) -> None:
        """Account for and record a step that ended on all ranks."""
        first = self.members[0]
        record_passes(
            first.recorder, first.index, self.pipeline.stages, first.template_numbers, micro, now_ns(first.env)
        )
        for member, decision in zip(self.members, self.decisions, strict=True):
            member.complete(micro, decision)

    def _jump(self, batch: StepBatch) -> None:
        pairs = [(m, d) for m, d in zip(self.members, self.decisions, strict=True) if d is not NOTHING]
        steps = min(decode_run.MAX_RUN, self.reach, *(member.scheduler.horizon(decision) for member, decision in pairs))
        decodes = [decision.decodes for part in self.parts[1:] or self.parts for decision in part]
        self.run = DecodeRun(self.pipeline, self.pricer, batch, keys_of_run(batch, decodes, steps), self._landed)
        for member, decision in zip(self.members, self.decisions, strict=True):
            member.run, member.repeated = self.run, decision

    def cut(self, now: int) -> None:
        """End a run with the first step that ends at ``now`` or later."""
        if self.run is not None:
            self.run.cut(now)

    def _landed(self, run: DecodeRun) -> None:
        self.run, self.reach = None, max(SHORT, 2 * len(run))
        self._record(run, len(run))
        for member, decision in zip(self.members, self.decisions, strict=True):
            member.run = None
            member.settle(member.scheduler.complete(now_ns(self.env), decision, len(run)))

    def _record(self, run: DecodeRun, steps: int) -> None:
        """Record so many steps of a run."""
        template = self.members[0].template_numbers[self.pipeline.stages[0].programs[run.program].key]
        self.recorder.run(self.members[0].index, 0, template, self.steps, run.starts[:steps], run.durations(steps))
        for member, decision in zip(self.members, self.decisions, strict=True):
            member.record_steps(run, decision, self.steps, steps, member.rows.popleft())
        self.steps += steps

    def cut_off(self, now: int) -> None:
        """Account for the steps that have ended, and forget the one under way: what it runs on has failed."""
        if self.run is not None:
            self.run.abandon()
            self.stop(now)
            self.run = None
        elif not is_free(self.pipeline):
            self.steps -= 1
        for member in self.members:
            member.run = None
        self.pipeline.abandon()

    def stop(self, now: int) -> None:
        """At the horizon: account for the steps of a run that have ended, and for the start of the next one."""
        run = self.run
        if run is None:
            return
        ended = run.ended(now)
        for member, decision in zip(self.members, self.decisions, strict=True):
            member.scheduler.advance(decision, min(ended + 1, len(run)))
            member.flush()
        if ended:
            self._record(run, ended)
