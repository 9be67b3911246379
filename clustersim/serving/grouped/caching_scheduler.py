"""The grouped scheduler of a replica that caches prefixes.

Blocks that decodes take are counted as ever. What they held is forgotten when somebody looks at the cache
(:meth:`~clustersim.serving.prefix_cache.CachingPool.catch_up`): they are the first ones that are free, and what is
given back meanwhile comes behind them.
"""

from __future__ import annotations

from clustersim.serving.grouped.batch import Batch, Chunks
from clustersim.serving.grouped.caching_queue import CachingQueue
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.log import Log
from clustersim.serving.grouped.scheduler import GroupedScheduler
from clustersim.serving.prefix_cache import CachingPool
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence


class CachingScheduler(GroupedScheduler):
    """One replica's queue, batch and K/V pool.

    Parameters
    ----------
    scheduler : Scheduler
        Its pool is a :class:`CachingPool` of one owner.
    log : Log
    windows : tuple of int
    """

    def __init__(self, scheduler: Scheduler, log: Log, windows: tuple[int, ...] = ()) -> None:
        super().__init__(scheduler, log, windows)
        assert isinstance(scheduler.pool, CachingPool)
        self.pool = scheduler.pool
        self.prompts = CachingQueue(scheduler, log, self.pool)

    @property
    def repeats(self) -> bool:
        """Never: which blocks are in use is looked up at each step."""
        return False

    def cached_tokens(self, sequence: Sequence, taken: int) -> int:
        """Return how many tokens of a prompt are cached, where a run of steps has taken so many blocks by now."""
        self.pool.catch_up(taken)
        return self.size * self.pool.cached_blocks(0, sequence)

    def _launch(self, group: DecodeGroup | None, chunks: Chunks) -> Batch:
        batch = super()._launch(group, chunks)
        # Where blocks are taken that it would have taken over, the first that waits needs fewer at once.
        batch.steady = batch.steady and not self.scheduler.may_fit_later()
        self.decoding += sum(sequence.decodes for sequence, _ in chunks)  # all but the last token was cached
        return batch

    def complete(self, now: int, batch: Batch, steps: int = 1) -> list[Sequence]:
        """Account for the end of what was decided first; what it has filled is cached before anybody leaves."""
        for sequence, count in batch.chunks:
            self.decoding -= sequence.decodes
            self.pool.catch_up()
            self.pool.store(sequence, sequence.computed + count)
        return super().complete(now, batch, steps)

    def _careful(self, now: int) -> Batch | None:
        self.pool.catch_up()
        return super()._careful(now)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence)
