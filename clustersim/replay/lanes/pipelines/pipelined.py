"""The folded replay of one undisturbed replica with pipeline stages: micro-batches by a max-plus recurrence.

**Why it equals ``full``.** Nothing outside can stretch a pass or a send here (``replay.links.contention``), and stages
take micro-batches in the order in which they were launched. So all that happens to a micro-batch follows when it is
launched: with d(k, s) what the pass of micro-batch k lasts on stage s and c(k, s) its send,

    start(k, s) = max(end(k − 1, s), arrival(k, s)),      end(k, s) = start(k, s) + d(k, s)
    sent(k, s)  = max(sent(k − 1, s), end(k, s)) + c(k, s),  arrival(k, s + 1) = the latest sent(k, s) of its ranks

and start(k, 0) is the instant of the decision. What remains are the instants at which something is decided: when
the first stage is free and fewer micro-batches than stages are in flight, when a micro-batch leaves the last stage,
and when a request arrives. Decisions are those of ``serving.grouped.scheduler``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequence_
from typing import Final

from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.lanes.lane import DECODE, NEVER
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.pipelines.decode_rounds import Decodes, decodes_of, pass_through
from clustersim.replay.lanes.pipelines.staged import StagedLane
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

__all__ = ["PipeLane"]

MOST_COUNTS: Final = 4096
"""Batches by their size of which it is remembered what they cost."""


class PipeLane(StagedLane):
    """One replica with stages, what is in flight, and when each stage and boundary is free.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog) -> None:
        super().__init__(scheduler, prices, log)
        self.free_at = [0] * self.stages
        self.sent_at = [[0] * log.ranks for _ in range(self.stages - 1)]
        """Per boundary when each rank's last send ends."""
        kinds = [prices[stage].programs.values() for stage in range(self.stages - 1)]
        self.even_sends = [all(len(set(p.template.send_classes)) == 1 for p in programs) for programs in kinds]
        """Per boundary whether all ranks always take equally long to send."""
        self.known: dict[int, Decodes | None] = {}
        """Sequences that decode → what a step of them costs but for attention."""
        self.flight: deque[tuple[int, Batch, tuple[int, ...], list[int], list[int], list[int], list[int]]] = deque()
        """(end, batch, step row, passes, varying durations, sends, bytes), from the row on as :meth:`LaneLog.step`"""

    def _is_free(self, now: int) -> bool:
        """Whether no pass is on the first stage."""
        return self.free_at[0] <= now

    def _next_end(self, now: int) -> int:
        """Return when a micro-batch leaves the last stage, or before that the first stage is free for a launch."""
        return self._earliest(now, self.free_at[0], self.flight[0][0] if self.flight else NEVER)

    def _launch(self, now: int, batch: Batch) -> None:
        """Work out all that will happen to a micro-batch."""
        free_at, sent_at, last = self.free_at, self.sent_at, self.stages - 1
        passes: list[int] = []
        varying: list[int] = []
        sent: list[int] = []
        at = now
        new, context, priced = self.prices.step(batch)
        for stage, (total, number, ns, sends) in enumerate(priced):
            varying.extend(ns)
            at = max(at, free_at[stage])
            passes.append(at)
            passes.append(number)
            at = free_at[stage] = at + total
            if stage < last:
                before = sent_at[stage]
                if self.even_sends[stage]:
                    at = max(at, before[0])
                    sent += [at] * len(before)
                    at += sends[0]
                    ended = sent_at[stage] = [at] * len(before)
                else:
                    begun = [max(at, free) for free in before]
                    ended = sent_at[stage] = [start + took for start, took in zip(begun, sends, strict=True)]
                    sent += begun
                    at = max(ended)
                sent += ended
        self.flight.append((at, batch, self._row(now, batch, new, context), passes, varying, sent, []))

    def _go_round(self, until: int) -> None:
        """Launch further steps of decodes that are all in flight, as far as no request arrives before.

        Each group is launched again when it is back and the first stage is free, as long as no other one is back then.
        """
        scheduler, flight, log = self.scheduler, self.flight, self.log
        if not scheduler.repeats:
            return
        while True:
            end, batch, row, passes, varying, sends, carried = flight[0]
            start = max(end, self.free_at[0])
            if start >= until or (len(flight) > 1 and flight[1][0] <= start) or not scheduler.again(batch):
                return
            flight.popleft()
            log.step(row, passes, end, varying, sends, carried)
            if not self._launch_again(start, batch):
                self._launch(start, batch)

    def _launch_again(self, now: int, batch: Batch) -> bool:
        """Launch decodes that all stages do alike, if they do, and if ranks have sent alike before."""
        count = batch.decodes
        if count not in self.known:
            if len(self.known) >= MOST_COUNTS:
                self.known.clear()
            self.known[count] = decodes_of(self.prices, count, self.log.ranks)
        decodes, group = self.known[count], batch.group
        if decodes is None or group is None:
            return False
        for stage, sent_at in zip(decodes.stages, self.sent_at, strict=False):
            if sent_at.count(sent_at[0]) < stage.senders and len(set(sent_at[: stage.senders])) > 1:
                return False
        scheduler, attended = self.scheduler, group.computed + count
        took = decodes.attention(attended)
        end, passes, sent, carried = pass_through(decodes, took, now, self.free_at, self.sent_at)
        running, used = len(scheduler.running), scheduler.used
        row = (now, DECODE, batch.slot, count, 0, count, attended, 0, running, used)
        self.flight.append((end, batch, row, passes, [took] * self.stages, sent, carried))
        return True

    def land(self) -> list[Sequence]:
        """Account for what ends now; return the requests that end with it."""
        now, self.end = self.end, NEVER
        self.asked = False
        if not self.flight or self.flight[0][0] != now:
            return []  # the first stage is free
        _, batch, row, passes, varying, sends, carried = self.flight.popleft()
        self.log.step(row, passes, now, varying, sends, carried)
        return self._complete(now, batch)
