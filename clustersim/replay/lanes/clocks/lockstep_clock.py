"""Lanes of replicas that share their experts: each decides for itself, and all take every step together.

What a step is, and what a replica brings that has nothing to run, is said in :mod:`clustersim.replay.events.lockstep`;
prices are the pricer's own. A run of steps is priced up to the next arrival anywhere, and ends with the step under way
then, so that nothing ever has to cut it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.program import StageProgram
from clustersim.replay.events.lockstep import SHORT, together
from clustersim.replay.input import CompiledMode
from clustersim.replay.lanes.clocks.shared_clock import SharedClock
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.member_lane import MemberLane
from clustersim.serving.grouped.batch import Batch
from clustersim.timeline.record import Durations, Recorder

UNTOLD: Final = -1
"""A request in a batch: prices ask nobody which one it is."""
NOTHING: Final = StepBatch()


class LockstepPasses:
    """The steps that all replicas take together: what each costs, and how it is recorded.

    Parameters
    ----------
    lanes : sequence of MemberLane
    pricer : Pricer
    programs : mapping
        Kind of step → program, whose coordinates are the replicas.
    templates : mapping
        Kind of step → number of its template.
    recorder : Recorder
    """

    def __init__(
        self,
        lanes: Sequence[MemberLane],
        pricer: Pricer,
        programs: Mapping[str, StageProgram],
        templates: Mapping[str, int],
        recorder: Recorder,
    ) -> None:
        self.lanes = lanes
        self.pricer = pricer
        self.programs = programs
        self.templates = templates
        self.recorder = recorder
        self.steps = 0
        self.ends = np.zeros(0, np.int64)
        """When the steps under way end."""
        self.short = SHORT
        """Steps that are priced at once."""

    def begin(self, now: int, until: int) -> int:
        """Begin the next step, or a run of steps up to an instant; return when it ends, ``NEVER`` where nobody has any.

        Parameters
        ----------
        now, until : int
            No request arrives before ``until``.
        """
        lanes = self.lanes
        for lane in lanes:
            lane.begin(now, until)
        if all(lane.batch is None for lane in lanes):
            return NEVER
        batch = together([_part(lane.batch, self.pricer.windows) for lane in lanes])
        steady = all(lane.is_steady for lane in lanes)
        steps = min(self.short, *(lane.reach for lane in lanes)) if steady else 1
        self.kind, self.started = batch.kind, now
        self.durations = self._durations(batch, steps)
        lengths = self.programs[self.kind].template.total_times(self.durations.table())
        self.ends = now + np.cumsum(lengths)
        self.ends = self.ends[: int(np.searchsorted(self.ends, until)) + 1]
        self.short = max(SHORT, 2 * len(self.ends))
        for lane in lanes:
            lane.launch(now, STEP_KINDS.index(self.kind), self.ends)
        return int(self.ends[-1])

    def _durations(self, batch: StepBatch, steps: int) -> Durations:
        """Return what so many steps cost, class by class."""
        program = self.programs[batch.program]
        if batch.kind != "decode":
            return Durations.of_one(self.pricer.durations(program, batch, self.pricer.features(batch)))
        grown = np.arange(steps, dtype=np.int64)
        keys: dict[tuple[int, int | None], Int64Array] = {}
        for s, lane in enumerate(self.lanes):
            group = None if lane.batch is None else lane.batch.group
            keys[s, None] = batch.decode_keys[s] + (0 if group is None else group.count) * grown
            grows = {} if group is None else {one.window: one.growth for one in group.windows}
            for window, sums in batch.windowed_keys.items():
                keys[s, window] = sums[s] + grows.get(window, 0) * grown
        row, columns, varying = self.pricer.decode_run(program, batch.decode_sequences, keys)
        return Durations(row=row, columns=columns, varying=varying)

    def record(self, steps: int) -> None:
        """Record so many of the steps under way, as of the first replica."""
        starts = np.concatenate(([self.started], self.ends[: steps - 1]))
        costs = self.durations
        if steps < len(costs.varying):
            costs = Durations(row=costs.row, columns=costs.columns, varying=costs.varying[:steps])
        self.recorder.run(self.lanes[0].log.replica, 0, self.templates[self.kind], self.steps, starts, costs)
        self.steps += steps


class LockstepClock(SharedClock):
    """All lanes of a run, which take every step together.

    Parameters
    ----------
    run : Intake
    passes : LockstepPasses
    """

    def __init__(self, run: Intake, passes: LockstepPasses) -> None:
        super().__init__(run)
        self.passes = passes

    def run(self, mode: CompiledMode = "auto", behind_s: float = 0.0) -> str:
        """Simulate as :meth:`SharedClock.run` does."""
        del mode, behind_s
        self._run()
        self._record()
        return "replicas that share experts are not"

    def _run(self) -> None:
        run, passes = self.all, self.passes
        closed = run.requests.concurrency is not None
        self.freed = run.requests.concurrency or 0
        now, end = 0, NEVER
        while True:
            self._arrive(now, closed)
            if end == NEVER:
                until = run.horizon + 1
                end = passes.begin(now, until if closed else min(self.coming[0], until))
            now = end if closed else min(end, self.coming[0])
            if now > run.horizon:
                break
            if end == now:
                passes.record(len(passes.ends))
                for index in range(len(self.lanes)):
                    self._land(index, now)
                end = NEVER
        ended = int(np.searchsorted(passes.ends, run.horizon, side="right")) if end != NEVER else 0
        if ended:
            passes.record(ended)
        for lane in passes.lanes:
            lane.stop_after(ended)


def _part(batch: Batch | None, windows: tuple[int, ...]) -> StepBatch:
    """Return what one replica brings."""
    if batch is None:
        return NOTHING if not windows else StepBatch(windowed_keys=dict.fromkeys(windows, (0,)))
    group = batch.group
    chunks = tuple([Chunk(request=UNTOLD, start=one.computed, count=count) for one, count in batch.chunks])
    if group is None:
        return StepBatch(chunks=chunks, windowed_keys=dict.fromkeys(windows, (0,)))
    within: dict[int, tuple[int, ...]] = {one.window: (one.keys(group.count, group.clock),) for one in group.windows}
    return StepBatch(
        chunks=chunks, decode_sequences=(group.count,), decode_keys=(group.computed + group.count,),
        windowed_keys=within,
    )  # fmt: skip
