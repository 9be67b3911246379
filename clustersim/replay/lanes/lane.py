"""A *lane*: a replica whose passes nothing outside can stretch, so that what it does follows from arrivals alone.

What all lanes have in common is here: a scheduler, a log, and an instant before which nothing happens but arrivals.
What happens in between is for those who share experts (:mod:`clustersim.replay.lanes.member_lane`), or have stages
whose sends meet their own collectives (:mod:`clustersim.replay.lanes.pipelines.split_shared_lane`). Which replicas are
lanes is for ``replay.links.contention`` to find out; all others the core simulates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from clustersim.graph.blueprint import STEP_KINDS
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.prices import LanePrices
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.grouped.owner_scheduler import OwnerScheduler
from clustersim.serving.grouped.scheduler import GroupedScheduler
from clustersim.serving.order import ArrivalQueue
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

NEVER: Final = 1 << 64
"""Later than any instant: times are 64 bits wide where they are recorded."""
PREFILL, DECODE, MIXED = (STEP_KINDS.index(kind) for kind in ("prefill", "decode", "mixed"))


class Lane(ABC):
    """One replica: its scheduler, and until when nothing happens but arrivals.

    Parameters
    ----------
    scheduler : Scheduler
    windows : tuple of int
        Sliding windows of the model.
    log : LaneLog

    Attributes
    ----------
    end : int
        When something ends or changes after which a decision may be taken, in ns; ``NEVER`` when nothing does.
    outstanding : int
        Prompt and output tokens of unfinished requests.
    """

    prices: LanePrices
    """Of its steps, where it takes them by itself."""

    def __init__(self, scheduler: Scheduler, windows: tuple[int, ...], log: LaneLog) -> None:
        kind = OwnerScheduler if len(scheduler.pool.free) > 1 else GroupedScheduler
        self.scheduler: GroupedScheduler = kind(scheduler, log, windows)
        self.log = log
        self.outstanding = 0
        self.end = NEVER
        waiting = self.scheduler.waiting
        self.put: Callable[[Sequence], None] = waiting.append if isinstance(waiting, ArrivalQueue) else scheduler.add
        """Queues a request."""

    @abstractmethod
    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; :attr:`end` is ``NEVER`` afterwards where a decision is due now."""

    @abstractmethod
    def begin(self, now: int, until: int) -> None:
        """Launch what the scheduler decides, if it can be launched now.

        Parameters
        ----------
        now : int
        until : int
            No request arrives here before this instant.
        """

    def go_on(self, until: int) -> bool:
        """Go on at :attr:`end`, which is later then, if that ends nothing: no request arrives before ``until``."""
        del until
        return False

    @abstractmethod
    def land(self) -> list[Sequence]:
        """Account for what ends at :attr:`end`, which is ``NEVER`` then; return the requests that end with it."""

    def stop(self, now: int) -> None:
        """Record the episodes that are open at the horizon; what is in flight has not happened."""
        del now
        self.scheduler.stop()

    def _queue(self, sequence: Sequence) -> None:
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        self.put(sequence)

    def _row(self, now: int, batch: Batch, new: int, context: int) -> tuple[int, ...]:
        """Return ``lane_log.STEP_ROW`` of a step that begins, with its new prompt tokens and its context."""
        scheduler, chunks, decodes = self.scheduler, len(batch.chunks), batch.decodes
        kind = (MIXED if decodes else PREFILL) if chunks else DECODE
        return (
            now, kind, batch.slot, chunks + decodes, new, decodes, context, scheduler.queued,
            len(scheduler.running), scheduler.used,
        )  # fmt: skip

    def _complete(self, now: int, batch: Batch, steps: int = 1) -> list[Sequence]:
        """Account for the end of a batch; return the requests that end with it."""
        finished = self.scheduler.complete(now, batch, steps)
        for sequence in finished:
            self.outstanding -= sequence.prompt_tokens + sequence.output_tokens
        return finished
