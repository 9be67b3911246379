"""The prompts of a replica that caches prefixes: who is admitted takes over what is cached of its prompt."""

from __future__ import annotations

from clustersim.serving.decision import ADMITTED, REUSED
from clustersim.serving.grouped.batch import Chunks
from clustersim.serving.grouped.log import Log
from clustersim.serving.grouped.prompt_queue import PromptQueue
from clustersim.serving.prefix_cache import CachingPool
from clustersim.serving.scheduler import Scheduler


class CachingQueue(PromptQueue):
    """Queue, prompts begun, and places of admission; the parameters are those of other queues.

    Parameters
    ----------
    scheduler : Scheduler
    log : Log
    pool : CachingPool
    """

    def __init__(self, scheduler: Scheduler, log: Log, pool: CachingPool) -> None:
        super().__init__(scheduler, log)
        self.pool = pool

    def _admit_from_queue(self, now: int, budget: int, free: int, chunks: Chunks) -> int:
        """Add chunks of prompts in order of arrival; return the blocks that are left."""
        pool, waiting, running = self.pool, self.waiting, self.running
        pool.free[0] = free
        while waiting and budget > 0 and len(running) < self.max_requests:
            sequence = waiting[0]
            pool.catch_up()
            cached = pool.cached_blocks(0, sequence)
            need = sequence.known - cached * self.size
            count = min(need, budget, self.longest)
            if count < need and not self.chunked and (chunks or need <= self.max_tokens):
                break
            missing = -(-count // self.size)
            if not pool.fits(sequence, cached, missing if self.first_chunk else -(-need // self.size)):
                break
            pool.take_over(sequence, cached)
            pool.take(0, missing)
            budget -= count
            waiting.popleft()
            running.append(sequence)
            sequence.admitted = True
            self.number(sequence)
            sequence.blocks += missing
            self.log.fact(now, ADMITTED, sequence.request, sequence.known, pool.used)
            if cached:
                self.log.fact(now, REUSED, sequence.request, cached * self.size, pool.used)
            chunks.append((sequence, count))
        return pool.free[0]

    def launch(self, chunks: Chunks) -> None:
        """Let go of the prompts that a step carries; one that was just admitted has computed tokens, too."""
        for sequence, _ in chunks:
            if sequence in self.begun:
                self.begun.remove(sequence)
