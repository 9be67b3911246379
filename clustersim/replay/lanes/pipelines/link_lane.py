"""A lane with pipeline stages whose sends share links with its own collectives: who handles what changes, and when.

What happens on stages and boundaries is :mod:`clustersim.replay.lanes.pipelines.link_traffic`'s; here it meets the
scheduler. While nothing can be launched, arrivals change nothing, so changes are handled up to the next pass that ends
on the first or last stage; else one at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Sequence_
from typing import Any, Generic, TypeVar

from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.pipelines.link_traffic import LinkTraffic
from clustersim.replay.lanes.pipelines.staged import StagedLane
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

Micro = TypeVar("Micro")
Pipe = TypeVar("Pipe", bound=LinkTraffic[Any, Any])


class LinkLane(StagedLane, Generic[Micro, Pipe]):
    """One replica with stages, what is in flight, and when something changes next.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog
    pipe : LinkTraffic
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog, pipe: Pipe) -> None:
        super().__init__(scheduler, prices, log)
        self.pipe = pipe

    def _is_free(self, now: int) -> bool:
        """Whether no pass is on the first stage."""
        del now
        return self.pipe.passes[0] is None

    def _next_end(self, now: int) -> int:
        """Handle what changes until a decision may be due, and return when that is."""
        del now
        pipe, may_launch = self.pipe, len(self.scheduler.flying) < self.stages
        changes, passes, last = pipe.changes, pipe.passes, self.stages - 1
        while True:
            end = min(changes)
            if end == NEVER or (may_launch and (passes[0] is None or pipe.ends_at(0, end))):
                return end
            if pipe.ends_at(last, end):
                return end
            pipe.change(end)

    def land(self) -> list[Sequence]:
        """Account for all that changes now; return the requests that end with it."""
        now, self.end = self.end, NEVER
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

    @abstractmethod
    def _land(self, micro: Micro, now: int) -> list[Sequence]:
        """Log a step that has left the last stage; return the requests that end with it."""
