"""Decode jumps of lanes: a decode run as sums of prices (by events: :mod:`clustersim.replay.events.decode_jumps`).

**Why it equals ``full``** is said there. Nothing outside can stretch the passes of a lane
(:mod:`clustersim.replay.lanes.lane`), so a step lasts as long as its operators one after the other: a sum over cost
classes, of the same prices (``graph.prices.steps``). The scheduler is one with the same decisions
(``serving.grouped.scheduler``), asked at every change of the batch. Where only all lanes together tell when the next
request arrives, steps are priced up to the next arrival anywhere, and further ones when it turns out to have gone
elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Sequence_
from itertools import accumulate
from operator import mul
from typing import Final

from clustersim.graph.prices.decodes import DecodePrice
from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.events import decode_run
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.prices import LanePrices, decode_classes
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

PIECE: Final = 8
"""A run goes on by one in so many of its steps at least, so that it isn't asked for each of them."""


class DecodeJumpLane(Lane):
    """One replica of one stage, and the step or decode run that it is in.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        Of the only stage.
    log : LaneLog
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog) -> None:
        self.prices = LanePrices(prices)
        super().__init__(scheduler, self.prices.windows, log)
        self.batch: Batch | None = None
        self.row: tuple[int, ...] = ()
        self.number = 0
        self.steps = 0
        self.limit = 0
        """Steps that the run has at most."""
        self.until = NEVER
        """With an arrival at this instant, the run ends with its last step."""
        self.ns: list[int] | tuple[int, ...] = ()
        self.price: DecodePrice | None = None
        self.heeds_all = scheduler.heeds_all
        self.known: list[int] = []
        """When the first steps of the run end, as far as somebody has asked."""

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; a run of steps ends with the step that it falls into."""
        self._queue(sequence)
        if self.steps and (self.heeds_all or self.scheduler.waiting[0] is sequence):  # those before it stay out as ever
            if now < self.until:
                self._cut(now)
            self.limit = self.steps

    def _cut(self, now: int) -> None:
        """End a run with the step that is under way: one that ends now, unless schedulers have been asked."""
        if self.steps > 1 and now < self.end:
            ends = self._ends()
            self.steps = bisect_left(ends, now) + 1
            self.end = ends[self.steps - 1]

    def begin(self, now: int, until: int) -> None:
        """Start the next step or run of steps, if there is anything to run."""
        scheduler = self.scheduler
        batch = scheduler.next(now)
        if batch is None:
            return
        group = batch.group
        if batch.chunks:
            new, context, ((total, number, self.ns, _),) = self.prices.step(batch)
            self.steps = self.limit = 1
            self.end, self.price = now + total, None
        else:
            assert group is not None
            new, context = 0, group.computed + batch.decodes
            self.price = price = self._price_of(group)
            number = price.number
            limit = min(group.left, decode_run.MAX_RUN) if batch.steady else 1
            self.limit = min(scheduler.affordable(group, limit), group.unchanged_windows)
            self.until = NEVER if scheduler.waiting else until
            self.ns, self.steps, self.end = [], 0, now
            self._extend(price, group, 1)
        self.batch, self.number, self.known = batch, number, []
        self.row = self._row(now, batch, new, context)

    def _price_of(self, group: DecodeGroup) -> DecodePrice:
        """Return the price of a run of steps of a group."""
        return self.prices.stages[0].decode(group.count)

    def go_on(self, until: int) -> bool:
        """Price further steps of a run that nothing has ended."""
        if self.steps == self.limit:
            return False
        price, batch = self.price, self.batch
        assert price is not None
        assert batch is not None
        assert batch.group is not None
        self.until = until
        self._extend(price, batch.group, self.steps // PIECE + 1)
        self.until = NEVER
        return True

    def _extend(self, price: DecodePrice, group: DecodeGroup, least: int) -> None:
        """Price so many steps at least, and until one ends at :attr:`until` or later."""
        begun, end, until, ns = self.steps, self.end, self.until, self.ns
        base, count = price.base_ns, group.count
        assert isinstance(ns, list)
        enough = begun + least
        if len(price.ns) == 1 and not group.windows:
            attention, layers, first = price.ns[0], price.counts[0], group.computed + count
            for keys in range(first + begun * count, first + self.limit * count, count):
                took = attention(keys)
                ns.append(took)
                end += base + layers * took
                if end >= until and len(ns) >= enough:
                    break
            self.steps = len(ns)
        else:
            classes = decode_classes(price, group)
            row = [0 if growth else attention(keys) for attention, _, keys, growth in classes]  # full windows stay full
            base += sum(map(mul, price.counts, row))
            grows = [(place, *one) for place, one in enumerate(classes) if one[3]]
            for step in range(begun, self.limit):
                end += base
                for place, attention, layers, keys, growth in grows:
                    row[place] = took = attention(keys + step * growth)
                    end += layers * took
                ns += row
                if end >= until and step + 1 >= enough:
                    break
            self.steps = step + 1
        self.end = end

    def _ends(self) -> list[int]:
        """Return when each step of the run ends."""
        price, known = self.price, self.known
        if price is None:
            return [self.end]
        width, first = len(price.ns), len(known)
        lengths = [price.base_ns] * (self.steps - first)
        for place, layers in enumerate(price.counts):
            for step, took in enumerate(self.ns[first * width + place : self.steps * width : width]):
                lengths[step] += layers * took
        if lengths:
            known += [*accumulate(lengths, initial=known[-1] if known else self.row[0])][1:]
        return known[: self.steps]

    def land(self) -> list[Sequence]:
        """Account for what ends now; return the requests that end with it."""
        now, batch, steps = self.end, self.batch, self.steps
        assert batch is not None
        self._log(steps, now)
        self.end, self.steps = NEVER, 0
        return self._complete(now, batch, steps)

    def _log(self, steps: int, end: int) -> None:
        width = 0 if self.price is None else len(self.price.ns)
        ns = self.ns[: steps * width] if 0 < steps * width < len(self.ns) else self.ns
        self.log.run(self.row, self.number, steps, end, ns)

    def stop(self, now: int) -> None:
        """Record what has ended at the horizon, and episodes that are open; a step in flight has not happened."""
        steps, batch = self._log_ended(now), self.batch
        if steps and batch is not None:
            self.scheduler.repeat(batch, steps)
        self.scheduler.stop()

    def _log_ended(self, now: int) -> int:
        """Log the steps of what is under way that have ended; return how many."""
        batch = self.batch
        if self.end == NEVER or batch is None:
            return 0
        ends = self._ends()
        steps = bisect_right(ends, now)
        if steps:
            self._log(steps, ends[steps - 1])
            batch.previous = batch.step + steps - 1
        return steps
