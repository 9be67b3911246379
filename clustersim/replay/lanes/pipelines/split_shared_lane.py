"""The folded replay of one replica with pipeline stages of SP ranks, whose sends share links with its collectives."""

from __future__ import annotations

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.replay.lanes.pipelines.link_lane import LinkLane
from clustersim.replay.lanes.pipelines.link_micro_batch import KIND
from clustersim.replay.lanes.pipelines.split_micro_batch import SplitMicro
from clustersim.replay.lanes.pipelines.split_shared_pipe import SplitSharedPipe
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.grouped.owner_group import OwnerGroup
from clustersim.serving.sequence import Sequence


class SplitSharedLane(LinkLane[SplitMicro, SplitSharedPipe]):
    """One replica with stages of SP ranks, each of which sends its own output."""

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
