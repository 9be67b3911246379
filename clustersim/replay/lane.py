"""The folded replay of one undisturbed replica without pipeline stages: a run of decode steps is one jump.

**Why it equals ``full``.** A *lane* is a replica whose passes nothing outside can stretch (``replay.contention``),
so a step lasts as long as its operators one after the other: a sum over cost classes, of the same prices that the
full replay gives its operators (``graph.step_prices``). At the end of every step ``full`` completes the step, lets
arrivals of that instant queue and asks the scheduler. The lane does the same at every change of the batch, with the
same decisions (``serving.grouped``). In between the scheduler would decide the same again, because

- all that runs decodes, and everybody has a share of the token budget;
- nobody in the queue can be admitted: it is empty, or its head was refused for want of blocks or of a place in the
  batch, and both only get scarcer until a member finishes;
- an arrival could change that only where the queue is empty, and ends the run with the step that it falls into.

So a run ends with the first step in which a member finishes, before the first one that lacks a K/V block, or with
the step that an arrival falls into.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.step_prices import DecodePrice, StepPrices
from clustersim.plan.segments import causal_pairs
from clustersim.replay.lane_log import LaneLog
from clustersim.serving.batch import Batch, Chunks
from clustersim.serving.decode_group import DecodeGroup
from clustersim.serving.grouped import GroupedScheduler
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

NEVER: Final = 1 << 64
"""Later than any instant: times are 64 bits wide where they are recorded."""
MAX_RUN: Final = 4096
"""Most steps of one jump, so that progress shows and lists stay small."""
PREFILL, DECODE, MIXED = (STEP_KINDS.index(kind) for kind in ("prefill", "decode", "mixed"))


class Lane:
    """One replica: its scheduler, what runs, and until when.

    Parameters
    ----------
    scheduler : Scheduler
    prices : StepPrices
    log : LaneLog

    Attributes
    ----------
    end : int
        When what runs now ends, in ns; ``NEVER`` when nothing does.
    outstanding : int
        Prompt and output tokens of unfinished requests.
    """

    def __init__(self, scheduler: Scheduler, prices: StepPrices, log: LaneLog) -> None:
        self.scheduler = GroupedScheduler(scheduler, log, prices.pricer.windows)
        self.prices = prices
        self.log = log
        self.outstanding = 0
        self.end = NEVER
        self.batch: Batch | None = None
        self.row: tuple[int, ...] = ()
        self.number = 0
        self.steps = 0
        self.until = NEVER
        """The arrival that the run ends with."""
        self.ns: list[int] | tuple[int, ...] = ()
        self.price: DecodePrice | None = None

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; a run of steps ends with the step that it falls into."""
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        waiting = self.scheduler.waiting
        if self.steps > 1 and not waiting and now < self.until and now < self.end:
            ends = self._ends()
            self.steps = bisect_left(ends, now) + 1
            self.end = ends[self.steps - 1]
        waiting.append(sequence)

    def begin(self, now: int, until: int) -> None:
        """Start the next step or run of steps, if there is anything to run.

        Parameters
        ----------
        now : int
        until : int
            No request arrives here before this instant.
        """
        scheduler = self.scheduler
        batch = scheduler.next(now)
        if batch is None:
            return
        group, chunks, decodes = batch.group, batch.chunks, batch.decodes
        attended = 0 if group is None else group.computed + decodes
        context = attended
        new = 0
        if chunks:
            total, number, self.ns, new, context, _ = price_prompts(self.prices, chunks, group)
            kind = MIXED if decodes else PREFILL
            self.steps, self.end, self.price = 1, now + total, None
        else:
            assert group is not None
            self.price = price = self.prices.decode(decodes)
            kind, number = DECODE, price.number
            limit = min(group.finishes[0][0] - group.clock, MAX_RUN) if batch.steady else 1
            limit = group.affordable(limit, scheduler.free[0])
            self.until = NEVER if scheduler.waiting else until
            self._run(price, group, now, self.until, limit)
        self.batch, self.number = batch, number
        self.row = (
            now, kind, batch.slot, len(chunks) + decodes, new, decodes, context,
            len(scheduler.waiting), len(scheduler.running), scheduler.total - scheduler.free[0],
        )  # fmt: skip

    def _run(self, price: DecodePrice, group: DecodeGroup, now: int, until: int, limit: int) -> None:
        """Price at most ``limit`` steps, until one ends at ``until`` or later."""
        end, base, count = now, price.base_ns, group.count
        ns: list[int] = []
        if len(price.ns) == 1 and not group.windows:
            attention, layers, first = price.ns[0], price.counts[0], group.computed + count
            for keys in range(first, first + limit * count, count):
                took = attention(keys)
                ns.append(took)
                end += base + layers * took
                if end >= until:
                    break
            self.steps = len(ns)
        else:
            classes = classes_of(price, group)
            for step in range(min(limit, group.unchanged_windows)):
                end += base
                for attention, layers, keys, growth in classes:
                    took = attention(keys + step * growth)
                    ns.append(took)
                    end += layers * took
                if end >= until:
                    break
            self.steps = len(ns) // len(classes)
        self.ns, self.end = ns, end

    def _ends(self) -> list[int]:
        """Return when each step of the run ends."""
        price, start = self.price, self.row[0]
        if price is None:
            return [self.end]
        width = len(price.ns)
        lengths = [price.base_ns] * self.steps
        for place, layers in enumerate(price.counts):
            for step, took in enumerate(self.ns[place : self.steps * width : width]):
                lengths[step] += layers * took
        return [start + passed for passed in accumulate(lengths)]

    def land(self) -> int:
        """Account for what ends now; return how many requests finished."""
        now, batch, steps = self.end, self.batch, self.steps
        assert batch is not None
        self._log(steps, now)
        self.end, self.steps = NEVER, 0
        finished = self.scheduler.complete(now, batch, steps)
        for sequence in finished:
            self.outstanding -= sequence.prompt_tokens + sequence.output_tokens
        return len(finished)

    def _log(self, steps: int, end: int) -> None:
        width = 0 if self.price is None else len(self.price.ns)
        ns = self.ns[: steps * width] if 0 < steps * width < len(self.ns) else self.ns
        self.log.run(self.row, self.number, steps, end, ns)

    def stop(self, now: int) -> None:
        """Record what has ended at the horizon, and episodes that are open; a step in flight has not happened."""
        batch = self.batch
        if self.end != NEVER and batch is not None:
            ends = self._ends()
            steps = bisect_right(ends, now)
            if steps:
                self._log(steps, ends[steps - 1])
                self.scheduler.repeat(batch, steps)
                batch.previous = batch.step + steps - 1
        self.scheduler.stop()


def classes_of(price: DecodePrice, group: DecodeGroup) -> list[tuple[Callable[[int], int], int, int, int]]:
    """Return (ns of keys, instances, keys in the next step, keys more with every step) of each class that attends."""
    found = []
    sums = {one.window: one for one in group.windows}
    for attention, instances, window in zip(price.ns, price.counts, price.windows, strict=True):
        keys, growth = group.computed + group.count, group.count
        if window is not None:
            keys, growth = sums[window].keys(group.count, group.clock), sums[window].growth
        found.append((attention, instances, keys, growth))
    return found


def price_decodes(prices: StepPrices, group: DecodeGroup) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Return (ns, row, varying ns, sends) of one step that only decodes."""
    price = prices.decode(group.count)
    if group.windows:
        ns = tuple([attention(keys) for attention, _, keys, _ in classes_of(price, group)])
    else:
        keys = group.computed + group.count
        ns = tuple([attention(keys) for attention in price.ns])
    total = price.base_ns
    for took, instances in zip(ns, price.counts, strict=True):
        total += instances * took
    return total, price.number, ns, price.sends


def price_prompts(
    prices: StepPrices, chunks: Chunks, group: DecodeGroup | None
) -> tuple[int, int, tuple[int, ...], int, int, tuple[int, ...]]:
    """Return (ns, row, varying ns, new prompt tokens, context and attended tokens, sends) of a step with prompts."""
    decodes = 0 if group is None else group.count
    attended = 0 if group is None else group.computed + decodes
    new = context = pairs = keys = 0
    for sequence, count in chunks:
        start = sequence.computed
        new += count
        context += start
        pairs += count * start + count * (count + 1) // 2
        keys += start + count
    windows = prices.pricer.windows
    if windows:
        windowed = {window: _within(window, chunks, group) for window in windows}
        price = prices.prompts(len(chunks), new, context, pairs, keys, decodes, attended, windowed)
    else:
        price = prices.prompts(len(chunks), new, context, pairs, keys, decodes, attended)
    return price[0], price[1], price[2], new, context + attended, price[3]


def _within(window: int, chunks: Chunks, group: DecodeGroup | None) -> tuple[int, int, int]:
    """Return the pairs and prefill keys of chunks, and the keys of decodes, within a sliding window."""
    pairs = keys = 0
    for sequence, count in chunks:
        start = sequence.computed
        pairs += causal_pairs((start, start + count), (0, start + count), window)
        keys += min(start + count, count + window - 1)
    sums = [] if group is None else [one for one in group.windows if one.window == window]
    return pairs, keys, sum(one.keys(group.count, group.clock) for one in sums if group is not None)
