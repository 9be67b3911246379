"""A lane with pipeline stages: when the scheduler is asked for a micro-batch.

A launch needs the first stage free and fewer micro-batches in flight than stages. What happens to a micro-batch then
is told apart, in :mod:`clustersim.replay.lanes.pipelines.split_shared_lane`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Sequence_

from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.prices import LanePrices
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence


class StagedLane(Lane):
    """One replica with stages.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog) -> None:
        self.prices = LanePrices(prices)
        super().__init__(scheduler, self.prices.windows, log)
        self.stages = len(prices)
        self.asked = False
        """Whether the scheduler has said what can be launched as things are."""

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; a decision is due where the first stage could take it."""
        self._queue(sequence)
        self.asked = False
        if self._may_launch(now):
            self.end = NEVER

    def begin(self, now: int, until: int) -> None:
        """Launch a micro-batch if the first stage is free and there is something to run."""
        del until
        if not self.asked and self._may_launch(now):
            batch = self.scheduler.next(now)
            self.asked = True
            if batch is not None:
                self._launch(now, batch)
        self.end = self._next_end(now)

    def _may_launch(self, now: int) -> bool:
        return self._is_free(now) and len(self.scheduler.flying) < self.stages

    @abstractmethod
    def _is_free(self, now: int) -> bool:
        """Whether no pass is on the first stage."""

    @abstractmethod
    def _next_end(self, now: int) -> int:
        """Return what :attr:`end` is, after what was launched at ``now``."""

    @abstractmethod
    def _launch(self, now: int, batch: Batch) -> None:
        """Start a micro-batch on the first stage."""
