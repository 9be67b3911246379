"""A lane of one stage on whose links K/V on its way may be: a step that meets some ends when somebody else says so.

What is on the links, and how long such a step takes, is :mod:`clustersim.replay.lanes.link_watch`'s to find out. A run
of steps ends with the step that meets K/V; if that takes longer than alone, it is a row of its own in the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Sequence_
from typing import Final

from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.log import STEP_ROW, LaneLog
from clustersim.replay.links.uses import Counts
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence
from clustersim.values import dataclass

AWAY: Final = NEVER - 1
"""The end of a step of which somebody else says when it ends."""
KIND, NEW, CONTEXT, WAITING, USED = map(
    STEP_ROW.index, ("kind", "prefill_tokens", "context_tokens", "waiting", "kv_blocks_used")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentStep:
    """A step that has begun and not ended.

    Parameters
    ----------
    step, start_ns, end_ns : int
        Its number; when it began, and ends if it meets nothing.
    kind, number : int
        Position in ``STEP_KINDS``, and row of durations.
    varying : sequence of int
        Nanoseconds of the columns that vary.
    counts : (int, int, int, int)
        What its payloads depend on.
    """

    step: int
    start_ns: int
    end_ns: int
    kind: int
    number: int
    varying: Sequence_[int]
    counts: Counts


class StretchedLane(DecodeJumpLane):
    """One replica of one stage, and the step or decode run that it is in; parameters are those of the other lanes.

    Attributes
    ----------
    apart : int or None
        When the last step began, where somebody else says when it ends.
    stretches : list of int
        Instances of that step that took longer, and how much, in turns.
    came : list of int
        When requests came since the run began.
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog) -> None:
        super().__init__(scheduler, prices, log)
        self.apart: int | None = None
        self.stretches: list[int] = []
        self.came: list[int] = []

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; a run of steps ends with the step that it falls into."""
        self.came.append(now + self.begun(now))
        super().arrive(now, sequence)

    def begin(self, now: int, until: int) -> None:
        """Start the next step or run of steps, if there is anything to run."""
        self.came.clear()
        super().begin(now, until)

    def _cut(self, now: int) -> None:
        """End a run with the step that is under way; where somebody else says when that ends, it is the last one."""
        if self.apart is None:
            super()._cut(now)

    def ends_step(self, now: int) -> bool:
        """Whether a run is under way of which a step ends now; then it ends with that step."""
        return self.apart is None and super().ends_step(now)

    def take_apart(self, now: int) -> PresentStep | None:
        """Let what is under way end with its present step, and somebody else say when, by :meth:`come_back`.

        Returns
        -------
        PresentStep or None
            None where no step goes on after ``now``: nothing is under way, or it ends now.
        """
        batch, row = self.batch, self.row
        if self.end == NEVER or batch is None:
            return None
        starts = [row[0], *self._ends()]
        ended = bisect_right(starts, now, 1) - 1
        if ended == self.steps or (ended and starts[ended] == now and not self.begun(now)):
            self.steps = self.limit = ended
            self.end = now
            return None
        self.steps = self.limit = ended + 1
        self.end, self.apart = AWAY, starts[ended]
        new, decodes = row[NEW], batch.decodes
        return PresentStep(
            step=batch.step + ended,
            start_ns=starts[ended],
            end_ns=starts[ended + 1],
            kind=row[KIND],
            number=self.number,
            varying=self._varying(ended),
            counts=(new + decodes, len(batch.chunks) + decodes, new, decodes),
        )

    def _varying(self, step: int) -> Sequence_[int]:
        """Return what varies in one step of what is under way."""
        width = 0 if self.price is None else len(self.price.ns)
        return self.ns[step * width : (step + 1) * width] if width else self.ns

    def come_back(self, now: int, stretches: list[int]) -> None:
        """Let the step that was taken apart end now, ``stretches`` (instance and ns, in turns) later than alone."""
        self.end, self.stretches = now, stretches

    def land(self) -> list[Sequence]:
        """Account for what ends now; return the requests that end with it."""
        done = super().land()
        self.apart = None
        return done

    def _log(self, steps: int, end: int) -> None:
        """Log so many steps, of which the last one may have taken longer than alone."""
        start, last = self.apart, steps - 1
        if start is None or not self.stretches:
            super()._log(steps, end)
            return
        if last:
            super()._log(last, start)
        self.log.stretch(0, self.stretches)
        self.log.run(self._row_of(last, start), self.number, 1, end, self._varying(last))
        self.stretches = []

    def _row_of(self, step: int, start: int) -> tuple[int, ...]:
        """Return ``STEP_ROW`` of one step of a run."""
        row, batch = self.row, self.batch
        if not step or batch is None or batch.group is None:
            return row
        grown = {
            CONTEXT: step * batch.decodes,
            WAITING: bisect_right(self.came, start),
            USED: batch.group.growth_after_first(step + 1),
        }
        return start, *(value + grown.get(at, 0) for at, value in enumerate(row[1:], 1))

    def _log_ended(self, now: int) -> int:
        """Log the steps of what is under way that have ended; return how many."""
        if self.apart is not None:  # the last step has not
            self.steps -= 1
            self.end = self.apart
            self.ns = self.ns[: len(self.ns) - len(self._varying(self.steps))]
        return super()._log_ended(now) if self.steps else 0
