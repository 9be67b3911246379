"""The folded replay of one replica with pipeline stages whose sends share links with its own collectives.

As long as none of these meet, all is forecast at the launch; else it is in the pipe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequence_

from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.pipelines.link_forecast import Flight, SharedForecast
from clustersim.replay.lanes.pipelines.link_lane import LinkLane
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedMicro
from clustersim.replay.lanes.pipelines.link_pipeline import SharedPipe
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

__all__ = ["SharedLane"]


class SharedLane(LinkLane[SharedMicro, SharedPipe]):
    """One replica with stages whose ranks send together.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog
    pipe : SharedPipe
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog, pipe: SharedPipe) -> None:
        super().__init__(scheduler, prices, log, pipe)
        self.forecast = SharedForecast(pipe.shared, log.ranks)
        self.forecasts: Flight = deque()
        self.local = all(set(stages) <= {at, at + 1} for at, stages in enumerate(pipe.meets))
        """Whether sends may meet no stages but those that they connect, which is what a forecast looks at."""
        self.calm = self.local
        """Whether everything in flight is forecast; else it is in the pipe."""

    def _is_free(self, now: int) -> bool:
        """Whether no pass is on the first stage."""
        return self.forecast.free_at[0] <= now if self.calm else super()._is_free(now)

    def _next_end(self, now: int) -> int:
        """Return when something changes after which a decision may be due."""
        if not self.calm:
            self.calm = self.local and self.forecast.take(self.forecasts, self.pipe)
        if not self.calm:
            return super()._next_end(now)
        return self._earliest(now, self.forecast.free_at[0], self.forecasts[0][0] if self.forecasts else NEVER)

    def land(self) -> list[Sequence]:
        """Account for all that changes now; return the requests that end with it."""
        if not self.calm:
            return super().land()
        now, self.end, self.asked = self.end, NEVER, False
        if self.forecasts and self.forecasts[0][0] == now:
            return self._land(self.forecasts.popleft()[1], now)
        return []  # the first stage is free

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
