"""The folded replay of one replica with pipeline stages of SP ranks, whose sends share links with its collectives.

What happens on stages and boundaries is :mod:`clustersim.replay.lanes.pipelines.split_shared_pipe`'; here it meets the
scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.pipelines.link_micro_batch import KIND
from clustersim.replay.lanes.pipelines.split_pass import SplitMicro
from clustersim.replay.lanes.pipelines.split_shared_pipe import SplitSharedPipe
from clustersim.replay.lanes.pipelines.staged import StagedLane
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.grouped.owner_group import OwnerGroup
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence


class SplitSharedLane(StagedLane):
    """One replica with stages, what is in flight, and when something changes next.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog
    pipe : SplitSharedPipe
    """

    def __init__(
        self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog, pipe: SplitSharedPipe
    ) -> None:
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

    def _launch(self, now: int, batch: Batch) -> None:
        """Start a micro-batch on the first stage."""
        carries = self._carried(batch)
        new, context, priced = self.prices.leaving(batch)
        row = self._row(now, batch, new, context)
        self.pipe.launch(SplitMicro(batch, row, row[KIND], carries, priced, self.log.ranks), now)

    def _carried(self, batch: Batch) -> StepBatch:
        """Return what a step carries, as payloads depend on it: on tokens, not on what they attend to."""
        chunks = tuple(
            [Chunk(request=0, start=one.computed, count=count, owner=one.owner) for one, count in batch.chunks]
        )
        group, idle = batch.group, self.prices.idle
        decodes = tuple(group.counts) if isinstance(group, OwnerGroup) else (batch.decodes, *idle)
        none = (0,) * len(decodes)
        windowed = dict.fromkeys(self.prices.windows, none)
        return StepBatch(chunks=chunks, decode_sequences=decodes, decode_keys=none, windowed_keys=windowed)

    def _land(self, micro: SplitMicro, now: int) -> list[Sequence]:
        log = self.log
        for stage, late in micro.irregular:
            log.irregular(stage, late)
        varying = [ns for priced in micro.priced for ns in priced[2]]
        sent: list[int] = []
        carried: list[int] = []
        for starts, ends, priced in zip(micro.starts, micro.ends, micro.priced, strict=False):
            sent += (*starts, *ends)
            carried += (*priced[5], *(0 for _ in range(log.ranks - len(priced[5]))))
        log.step(micro.row, micro.passes, now, varying, sent, carried)
        self.asked = False
        return self._complete(now, micro.batch)
