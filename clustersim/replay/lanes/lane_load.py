"""A lane as routers know it: what is asked of it, at the present instant."""

from __future__ import annotations

from abc import ABC, abstractmethod

from clustersim.replay.lanes.lane import Lane
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence
from clustersim.serving.view import ReplicaView


class LaneLoad(ABC):
    """One replica.

    Attributes
    ----------
    index : int
    lane : Lane
    scheduler : Scheduler
    """

    index: int
    lane: Lane
    scheduler: Scheduler

    @property
    @abstractmethod
    def now(self) -> int:
        """The present instant."""

    @property
    def outstanding(self) -> int:
        """Prompt and output tokens of unfinished requests."""
        return self.lane.outstanding

    @property
    def waiting(self) -> int:
        """Sequences that wait: to be admitted, to be received, or to come back from the host."""
        scheduler = self.scheduler
        return len(scheduler.waiting) + len(scheduler.swapped_out) + len(scheduler.arriving)

    @property
    def running(self) -> int:
        """Sequences that run, or whose K/V is on its way here."""
        return len(self.scheduler.running) + self.scheduler.receiving

    def cached_tokens(self, request: Sequence) -> int:
        """Return how many leading tokens of a prompt are cached."""
        if self.scheduler.caching is None:
            return 0
        return self.lane.scheduler.cached_tokens(request, self.lane.taken(self.now))

    def view(self, request: Sequence) -> ReplicaView:
        """Return what a user's router is shown."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        return ReplicaView(
            replica=self.index,
            waiting=self.waiting,
            running=self.running,
            outstanding_tokens=self.outstanding,
            waiting_tokens=sum(s.to_compute for s in (*scheduler.waiting, *scheduler.running) if not s.decodes),
            free_blocks=sum(pool.free) - self.lane.taken(self.now),
            pool_blocks=pool.total,
            cached_tokens=self.cached_tokens(request),
        )

    def story(self) -> list[str]:
        """Return who waits for what beside its scheduler: nobody does."""
        return []
