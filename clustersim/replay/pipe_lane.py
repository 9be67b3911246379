"""The folded replay of one undisturbed replica with pipeline stages: micro-batches by a max-plus recurrence.

**Why it equals ``full``.** Nothing outside can stretch a pass or a send here (``replay.contention``), and stages
take micro-batches in the order in which they were launched. So all that happens to a micro-batch follows when it is
launched: with d(k, s) what the pass of micro-batch k lasts on stage s and c(k, s) its send,

    start(k, s) = max(end(k − 1, s), arrival(k, s)),      end(k, s) = start(k, s) + d(k, s)
    sent(k, s)  = max(sent(k − 1, s), end(k, s)) + c(k, s),  arrival(k, s + 1) = the latest sent(k, s) of its ranks

and start(k, 0) is the instant of the decision. What remains are the instants at which something is decided: when
the first stage is free and fewer micro-batches than stages are in flight, when a micro-batch leaves the last stage,
and when a request arrives. Decisions are those of ``serving.grouped``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequence_

from clustersim.graph.program import CostClass
from clustersim.graph.step_prices import StepPrices
from clustersim.replay.lane import DECODE, MIXED, NEVER, PREFILL, price_decodes, price_prompts
from clustersim.replay.lane_log import LaneLog
from clustersim.serving.batch import Batch
from clustersim.serving.decode_group import DecodeGroup
from clustersim.serving.grouped import GroupedScheduler
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

__all__ = ["PipeLane"]


class PipeLane:
    """One replica with stages: its scheduler, what is in flight, and when something is decided next.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog

    Attributes
    ----------
    end : int
        When something ends after which a decision may be taken, in ns; ``NEVER`` when nothing does.
    outstanding : int
        Prompt and output tokens of unfinished requests.
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog) -> None:
        self.scheduler = GroupedScheduler(scheduler, log, prices[0].pricer.windows)
        self.prices = prices
        self.log = log
        self.outstanding = 0
        self.end = NEVER
        self.stages = len(prices)
        self.free_at = [0] * self.stages
        self.sent_at = [[0] * log.ranks for _ in range(self.stages - 1)]
        """Per boundary when each rank's last send ends."""
        kinds = [prices[stage].programs.values() for stage in range(self.stages - 1)]
        self.even_sends = [all(len(set(p.template.send_classes)) == 1 for p in programs) for programs in kinds]
        """Per boundary whether all ranks always take equally long to send."""
        attention = [_attention(one) for one in prices]
        self.one_attention = all(len(classes) == 1 and classes == attention[0] for classes in attention)
        self.one_attention = self.one_attention and not self.scheduler.windows
        """Whether decodes attend at the same price on every stage."""
        self.flight: deque[tuple[int, Batch, tuple[int, ...], list[int], list[int], list[int]]] = deque()
        """(end, batch, step row, passes, varying durations, sends), the last three as :meth:`LaneLog.step` has them"""

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; a decision is due where the first stage could take it."""
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        self.scheduler.waiting.append(sequence)
        if self.free_at[0] <= now and len(self.flight) < self.stages:
            self.end = NEVER

    def begin(self, now: int, until: int) -> None:
        """Launch a micro-batch if the first stage is free and there is something to run."""
        del until
        flight = self.flight
        if self.free_at[0] <= now and len(flight) < self.stages:
            batch = self.scheduler.next(now)
            if batch is not None:
                self._launch(now, batch)
        end = flight[0][0] if flight else NEVER
        if len(flight) < self.stages:
            free = self.free_at[0]
            if now < free < end:
                end = free
        self.end = end

    def _launch(self, now: int, batch: Batch) -> None:
        """Work out all that will happen to a micro-batch."""
        scheduler, group, decodes, chunks = self.scheduler, batch.group, batch.decodes, batch.chunks
        context, new, kind = 0 if group is None else group.computed + decodes, 0, DECODE
        free_at, sent_at, last = self.free_at, self.sent_at, self.stages - 1
        passes: list[int] = []
        varying: list[int] = []
        sent: list[int] = []
        at = now
        if chunks:
            kind = MIXED if decodes else PREFILL
            priced = []
            for prices in self.prices:
                total, number, ns, new, context, sends = price_prompts(prices, chunks, group)
                priced.append((total, number, ns, sends))
        else:
            assert group is not None
            priced = self._decodes(group)
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
        row = (
            now, kind, batch.slot, len(chunks) + decodes, new, decodes, context, len(scheduler.waiting),
            len(scheduler.running), scheduler.total - scheduler.free[0],
        )  # fmt: skip
        self.flight.append((at, batch, row, passes, varying, sent))

    def _decodes(self, group: DecodeGroup) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        """Return (ns, row, varying ns, sends) of a step that only decodes, by stage."""
        if not self.one_attention:
            return [price_decodes(prices, group) for prices in self.prices]
        count = group.count
        prices = [one.decode(count) for one in self.prices]
        took = prices[0].ns[0](group.computed + count)
        ns = (took,)
        return [(price.base_ns + price.counts[0] * took, price.number, ns, price.sends) for price in prices]

    def land(self) -> int:
        """Account for what ends now; return how many requests finished."""
        now, self.end = self.end, NEVER
        if not self.flight or self.flight[0][0] != now:
            return 0  # the first stage is free
        _, batch, row, passes, varying, sends = self.flight.popleft()
        self.log.step(row, passes, now, varying, sends)
        finished = self.scheduler.complete(now, batch)
        for sequence in finished:
            self.outstanding -= sequence.prompt_tokens + sequence.output_tokens
        return len(finished)

    def stop(self, now: int) -> None:
        """Record the episodes that are open at the horizon; what is in flight has not happened."""
        del now
        self.scheduler.stop()


def _attention(prices: StepPrices) -> list[CostClass]:
    """Return the classes of a stage by which decodes attend."""
    return [cls for cls in prices.programs["decode"].classes if cls.node.op == "attention_decode"]
