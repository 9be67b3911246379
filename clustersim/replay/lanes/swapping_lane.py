"""A lane whose sequences are swapped to host memory, over links on which nothing else ever is.

A copy ends beside the steps: after those that end at that instant, and before requests arrive. While one is under way
steps are taken singly, since its end may change what is decided (``serving.swapping``): none ever cuts a run.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_

from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.replay.lanes.host_copies import HostCopies
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.log import LaneLog
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence
from clustersim.serving.swapping import SwappingScheduler


class SwappingLane(DecodeJumpLane):
    """One replica of one stage; parameters are those of :class:`DecodeJumpLane`.

    Parameters
    ----------
    copies : HostCopies
    """

    def __init__(self, scheduler: Scheduler, prices: Sequence_[StepPrices], log: LaneLog, copies: HostCopies) -> None:
        super().__init__(scheduler, prices, log)
        self.copies = copies
        assert isinstance(scheduler, SwappingScheduler)  # its configuration says so
        self.host = scheduler.host
        self.step_end = NEVER
        """When the step ends that is under way beside copies."""

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; see :meth:`DecodeJumpLane.arrive`."""
        super().arrive(now, sequence)
        if not self.steps:
            self.end = NEVER  # a decision is due, whatever is copied

    def begin(self, now: int, until: int) -> None:
        """Start what is decided where no step is under way, and go on to whatever ends next."""
        if not self.steps:
            super().begin(now, until)
            swaps = self.scheduler.scheduler.swaps
            for swap in swaps:
                self.copies.begin(now, swap)
            swaps.clear()
            self.step_end = self.end
        self.end = min(self.step_end, self.copies.end)

    def go_on(self, until: int) -> bool:
        """Go on with a run of steps that nothing has ended; what ends beside a copy is no run."""
        return self.copies.end == NEVER and super().go_on(until)

    def land(self) -> list[Sequence]:
        """Account for what ends now: a step, copies, or both; return the requests that end with it."""
        now, copied = self.end, self.copies.ended(self.end)
        if not copied:
            return super().land()
        ended = super().land() if self.steps and self.step_end == now else []
        for swap in copied:
            swap.copied(now, swap.sequence)
        self.scheduler.hand_facts()
        self.end = NEVER
        return ended
