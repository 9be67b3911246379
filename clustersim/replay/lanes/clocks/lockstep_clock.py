"""Lanes of replicas that share their experts: each decides for itself, and all take every step together.

What a step is, and what a replica brings that has nothing to run, is said in :mod:`clustersim.replay.events.lockstep`;
prices are those of :mod:`clustersim.graph.prices.lockstep_prices`. A run of steps is priced up to the next arrival
anywhere, and ends with the step under way then, so that nothing ever has to cut it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.lockstep_prices import Brought, LockstepPrices
from clustersim.replay.events.lockstep import SHORT
from clustersim.replay.lanes.clocks.shared_clock import SharedClock
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import DECODE, MIXED, NEVER, PREFILL
from clustersim.replay.lanes.member_lane import MemberLane
from clustersim.timeline.record import Durations, Recorder


class LockstepPasses:
    """The steps that all replicas take together: what each costs, and how it is recorded.

    Parameters
    ----------
    lanes : sequence of MemberLane
    prices : LockstepPrices
    templates : mapping
        Kind of step → number of its template.
    recorder : Recorder
    """

    def __init__(
        self,
        lanes: Sequence[MemberLane],
        prices: LockstepPrices,
        templates: Mapping[str, int],
        recorder: Recorder,
    ) -> None:
        self.lanes = lanes
        self.prices = prices
        windows = len(prices.pricer.windows)
        self.prompt = Brought((1, 1, 1, 0, 0, 1, 1, 1, 0, *(1, 1, 0) * windows), (0,) * (1 + windows))
        self.decode = Brought((1, 1, 0, 1, 0, 0, 0, 0, 1, *(0, 0, 1) * windows), (0,) * (1 + windows))
        """What a replica brings that has nothing to run: one token of a prompt, or that begins to decode."""
        self.templates = templates
        self.recorder = recorder
        self.steps = 0
        self.ends: list[int] = []
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
        kind, brought = self._brought()
        self.kind, self.started = STEP_KINDS[kind], now
        if kind == DECODE:
            row, columns, varying, lengths = self.prices.decodes(brought, self._reach())
            self.durations = Durations(row=row, columns=columns, varying=varying)
        else:
            row, lengths = self.prices.prompts(self.kind, brought)
            self.durations = Durations.of_one(row)
        ends: list[int] = list(accumulate(lengths.tolist(), initial=now))[1:]
        self.ends = ends = ends[: bisect_left(ends, until) + 1]
        self.short = max(SHORT, 2 * len(ends))
        for lane in lanes:
            lane.launch(now, kind, ends)
        return ends[-1]

    def _brought(self) -> tuple[int, list[Brought]]:
        """Return the kind of the step, and what each replica brings."""
        windows = self.prices.pricer.windows
        found = [None if lane.batch is None else lane.brings(lane.batch, windows) for lane in self.lanes]
        batches = [lane.batch for lane in self.lanes if lane.batch is not None]
        decodes = any(batch.decodes for batch in batches)
        nothing = self.decode if decodes else self.prompt
        kind = (MIXED if decodes else PREFILL) if any(batch.chunks for batch in batches) else DECODE
        return kind, [one or nothing for one in found]

    def _reach(self) -> int:
        """Return how many steps all would decide alike, as far as they are priced at once."""
        steps = self.short
        for lane in self.lanes:
            if steps == 1:
                break
            steps = min(steps, lane.reach) if lane.is_steady else 1
        return steps

    def record(self, steps: int) -> None:
        """Record so many of the steps under way, as of the first replica."""
        starts = np.array([self.started, *self.ends[: steps - 1]], np.int64)
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
                for index, lane in enumerate(passes.lanes):
                    done = lane.land()
                    if done:
                        self._end(index, done, now)
                end = NEVER
        ended = bisect_right(passes.ends, run.horizon) if end != NEVER else 0
        if ended:
            passes.record(ended)
        for lane in passes.lanes:
            lane.stop_after(ended)
