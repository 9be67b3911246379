"""A lane of several stages whose prompts are split over SP ranks: each rank sends as soon as its own part is done.

The recurrence is that of :mod:`clustersim.replay.lanes.pipelines.pipelined`, but for l(k, s, r), when the output of
rank r leaves after the pass has begun:

    sent(k, s, r) = max(sent(k − 1, s, r), start(k, s) + l(k, s, r)) + c(k, s, r)

Ranks without sequences to decode send nothing in a step that only decodes, and their last send is that of an earlier
micro-batch; stages take micro-batches in the order in which they were launched all the same.
"""

from __future__ import annotations

from clustersim.replay.lanes.pipelines.pipelined import PipeLane
from clustersim.serving.grouped.batch import Batch


class SplitPipe(PipeLane):
    """One replica with stages of SP ranks; parameters are those of other lanes."""

    def _launch(self, now: int, batch: Batch) -> None:
        """Work out all that will happen to a micro-batch."""
        passes: list[int] = []
        varying: list[int] = []
        sent: list[int] = []
        carried: list[int] = []
        at = now
        new, context, priced = self.prices.leaving(batch)
        for stage, (total, number, ns, sends, leaves, sizes) in enumerate(priced):
            varying.extend(ns)
            start = max(at, self.free_at[stage])
            passes += (start, number)
            at = self.free_at[stage] = start + total
            if stage < self.stages - 1:
                free = self.sent_at[stage]
                begun = [max(start + left, before) for left, before in zip(leaves, free, strict=False)]
                ended = [begin + took for begin, took in zip(begun, sends, strict=True)]
                free[: len(ended)] = ended
                idle = [0] * (len(free) - len(ended))
                sent += (*begun, *idle, *ended, *idle)
                carried += (*sizes, *idle)
                at = max(ended)
        self.flight.append((at, batch, self._row(now, batch, new, context), passes, varying, sent, carried))
