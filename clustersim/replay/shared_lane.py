"""The folded replay of one replica with pipeline stages whose sends share links with its own collectives.

What happens on stages and boundaries is :mod:`clustersim.replay.shared_pipe`'s; here it meets the scheduler. A launch
needs the first stage free and fewer micro-batches in flight than stages. While that cannot be, arrivals change
nothing, so changes are handled up to the next pass that ends on the first or last stage; else one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequence_

from clustersim.graph.step_prices import StepPrices
from clustersim.replay.lane import DECODE, MIXED, NEVER, PREFILL, price_prompts
from clustersim.replay.lane_log import LaneLog
from clustersim.replay.pipe_lane import PipeLane
from clustersim.replay.shared_forecast import Flight, SharedForecast
from clustersim.replay.shared_micro import Priced, SharedMicro
from clustersim.replay.shared_pipe import SharedPipe
from clustersim.serving.batch import Batch
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

__all__ = ["SharedLane"]


class SharedLane(PipeLane):
    """One replica: its scheduler, what is in flight, and when something changes next.

    Parameters
    ----------
    scheduler : Scheduler
    prices : sequence of StepPrices
        One per stage.
    log : LaneLog
    pipe : SharedPipe

    Attributes
    ----------
    end : int
        When something changes, after which a decision may be taken, in ns; ``NEVER`` when nothing does.
    outstanding : int
        Prompt and output tokens of unfinished requests.
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog, pipe: SharedPipe) -> None:
        super().__init__(scheduler, prices, log)
        self.pipe = pipe
        self.forecast = SharedForecast(pipe.shared, log.ranks)
        self.forecasts: Flight = deque()
        self.local = all(set(stages) <= {at, at + 1} for at, stages in enumerate(pipe.meets))
        """Whether sends may meet no stages but those that they connect, which is what a forecast looks at."""
        self.calm = self.local
        """Whether everything in flight is forecast; else it is in the pipe."""
        self.flying = 0
        self.asked = False
        """Whether the scheduler has said what can be launched as things are."""

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; a decision is due where the first stage could take it."""
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        self.scheduler.waiting.append(sequence)
        self.asked = False
        if self._is_free(now):
            self.end = NEVER

    def _is_free(self, now: int) -> bool:
        """Whether a micro-batch can be launched."""
        free = self.forecast.free_at[0] <= now if self.calm else self.pipe.passes[0] is None
        return free and self.flying < self.stages

    def begin(self, now: int, until: int) -> None:
        """Launch a micro-batch if the first stage is free and there is something to run."""
        del until
        if not self.asked and self._is_free(now):
            batch = self.scheduler.next(now)
            self.asked = True
            if batch is not None:
                self._launch(now, batch)
        if not self.calm:
            self.calm = self.local and self.forecast.take(self.forecasts, self.pipe)
        if not self.calm:
            self._go_on()
            return
        end = self.forecasts[0][0] if self.forecasts else NEVER
        if self.flying < self.stages:
            free = self.forecast.free_at[0]
            if now < free < end:
                end = free
        self.end = end

    def _go_on(self) -> None:
        """Handle what changes until a decision may be taken."""
        pipe = self.pipe
        changes, passes, last = pipe.changes, pipe.passes, self.stages - 1
        while True:
            self.end = end = min(changes)
            if self.flying < self.stages and (passes[0] is None or pipe.ends_at(0, end)):
                return
            if pipe.ends_at(last, end):
                return
            pipe.change(end)

    def land(self) -> int:
        """Account for all that changes now; return how many requests finished."""
        now, self.end = self.end, NEVER
        if self.calm:
            self.asked = False
            if self.forecasts and self.forecasts[0][0] == now:
                return self._land(self.forecasts.popleft()[1], now)
            return 0  # the first stage is free
        pipe = self.pipe
        changes, busy = pipe.changes, pipe.passes[0]
        while min(changes) == now:
            pipe.change(now)
        if busy is not None and pipe.passes[0] is None:
            self.asked = False
        done = 0
        for micro in pipe.landed:
            done += self._land(micro, now)
        pipe.landed.clear()
        return done

    def _launch(self, now: int, batch: Batch) -> None:
        """Start a micro-batch on the first stage."""
        scheduler, group, decodes, chunks = self.scheduler, batch.group, batch.decodes, batch.chunks
        context, new, kind = 0 if group is None else group.computed + decodes, 0, DECODE
        priced: list[Priced]
        if chunks:
            kind = MIXED if decodes else PREFILL
            priced = []
            for prices in self.prices:
                total, number, ns, new, context, sends = price_prompts(prices, chunks, group)
                priced.append((total, number, ns, sends))
        else:
            assert group is not None
            priced = self._decodes(group)
        width = len(chunks) + decodes
        row = (
            now, kind, batch.slot, width, new, decodes, context, len(scheduler.waiting), len(scheduler.running),
            scheduler.total - scheduler.free[0],
        )  # fmt: skip
        self.flying += 1
        micro = SharedMicro(batch, row, kind, (new + decodes, width, new, decodes), priced)
        if self.calm and not self.forecast.add(self.forecasts, micro, 0, now):
            self.forecast.release(self.forecasts, self.pipe, now)
            self.calm = False
        if not self.calm:
            self.pipe.start(0, micro, now)

    def _land(self, micro: SharedMicro, now: int) -> int:
        log = self.log
        for stage, stretches in micro.stretched:
            log.stretch(stage, stretches)
        log.step(micro.row, micro.passes, now, [ns for priced in micro.priced for ns in priced[2]], micro.sent)
        finished = self.scheduler.complete(now, micro.batch)
        for sequence in finished:
            self.outstanding -= sequence.prompt_tokens + sequence.output_tokens
        self.flying -= 1
        self.asked = False
        return len(finished)
