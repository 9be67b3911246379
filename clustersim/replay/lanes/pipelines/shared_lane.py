"""The folded replay of one replica with pipeline stages whose sends share links with its own collectives.

What happens on stages and boundaries is :mod:`clustersim.replay.lanes.pipelines.link_pipeline`'s; here it meets the
scheduler. While nothing can be launched, arrivals change nothing, so changes are handled up to the next pass that ends
on the first or last stage; else one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequence_

from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.pipelines.link_forecast import Flight, SharedForecast
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedMicro
from clustersim.replay.lanes.pipelines.link_pipeline import SharedPipe
from clustersim.replay.lanes.pipelines.staged import StagedLane
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

__all__ = ["SharedLane"]


class SharedLane(StagedLane):
    """One replica with stages, what is in flight, and when something changes next.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog
    pipe : SharedPipe
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog, pipe: SharedPipe) -> None:
        super().__init__(scheduler, prices, log)
        self.pipe = pipe
        self.forecast = SharedForecast(pipe.shared, log.ranks)
        self.forecasts: Flight = deque()
        self.local = all(set(stages) <= {at, at + 1} for at, stages in enumerate(pipe.meets))
        """Whether sends may meet no stages but those that they connect, which is what a forecast looks at."""
        self.calm = self.local
        """Whether everything in flight is forecast; else it is in the pipe."""

    def _is_free(self, now: int) -> bool:
        """Whether no pass is on the first stage."""
        return self.forecast.free_at[0] <= now if self.calm else self.pipe.passes[0] is None

    def _next_end(self, now: int) -> int:
        """Return when something changes after which a decision may be due."""
        if not self.calm:
            self.calm = self.local and self.forecast.take(self.forecasts, self.pipe)
        if not self.calm:
            return self._go_on()
        return self._earliest(now, self.forecast.free_at[0], self.forecasts[0][0] if self.forecasts else NEVER)

    def _go_on(self) -> int:
        """Handle what changes until a decision may be due, and return when that is."""
        pipe, may_launch = self.pipe, len(self.scheduler.flying) < self.stages
        changes, passes, last = pipe.changes, pipe.passes, self.stages - 1
        while True:
            end = min(changes)
            if may_launch and (passes[0] is None or pipe.ends_at(0, end)):
                return end
            if pipe.ends_at(last, end):
                return end
            pipe.change(end)

    def land(self) -> list[Sequence]:
        """Account for all that changes now; return the requests that end with it."""
        now, self.end = self.end, NEVER
        if self.calm:
            self.asked = False
            if self.forecasts and self.forecasts[0][0] == now:
                return self._land(self.forecasts.popleft()[1], now)
            return []  # the first stage is free
        pipe = self.pipe
        changes, busy = pipe.changes, pipe.passes[0]
        while min(changes) == now:
            pipe.change(now)
        if busy is not None and pipe.passes[0] is None:
            self.asked = False
        done: list[Sequence] = []
        for micro in pipe.landed:
            done += self._land(micro, now)
        pipe.landed.clear()
        return done

    def _launch(self, now: int, batch: Batch) -> None:
        """Start a micro-batch on the first stage."""
        new, context, priced = self.prices.step(batch)
        row = self._row(now, batch, new, context)
        chunks, decodes = len(batch.chunks), batch.decodes
        micro = SharedMicro(batch, row, (new + decodes, chunks + decodes, new, decodes), priced)
        if self.calm and not self.forecast.add(self.forecasts, micro, 0, now):
            self.forecast.release(self.forecasts, self.pipe, now)
            self.calm = False
        if not self.calm:
            self.pipe.start(0, micro, now)

    def _land(self, micro: SharedMicro, now: int) -> list[Sequence]:
        log = self.log
        for stage, stretches in micro.stretched:
            log.stretch(stage, stretches)
        log.step(micro.row, micro.passes, now, [ns for priced in micro.priced for ns in priced[2]], micro.sent)
        self.asked = False
        return self._complete(now, micro.batch)
