"""The prompts of a replica of which each SP rank keeps whole sequences: each takes its blocks from its owner's pool."""

from __future__ import annotations

from clustersim.serving.decision import ADMITTED
from clustersim.serving.grouped.batch import Chunks
from clustersim.serving.grouped.log import Log
from clustersim.serving.grouped.prompt_queue import PromptQueue
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence


class OwnerQueue(PromptQueue):
    """Queue, prompts begun, and places of admission.

    Parameters
    ----------
    scheduler : Scheduler
    log : Log
    """

    def __init__(self, scheduler: Scheduler, log: Log) -> None:
        super().__init__(scheduler, log)
        self.pool = scheduler.pool
        self.promised_by = [0] * len(self.free)
        """K/V blocks that those who run hold at their ends, by owner."""

    def choose_beside(self, now: int, budget: int, growths: list[int]) -> Chunks | None:
        """Choose prompt chunks as :meth:`choose` does, and take the blocks that they and the decodes beside them need.

        Parameters
        ----------
        now, budget : int
        growths : list of int
            K/V blocks that decodes beside them take, by owner; they are there.
        """
        free, size = self.free, self.size
        chunks: Chunks = []
        left = [there - taken for there, taken in zip(free, growths, strict=True)]
        for sequence in self.begun:
            count = min(sequence.to_compute, budget, self.longest)
            if count == 0:
                continue
            left[sequence.owner] -= -(-(sequence.computed + count) // size) - sequence.blocks
            if left[sequence.owner] < 0:
                return None
            budget -= count
            chunks.append((sequence, count))
        for sequence, count in chunks:
            sequence.blocks = -(-(sequence.computed + count) // size)
        free[:] = left
        self._admit(now, budget, chunks)
        return chunks

    def _admit(self, now: int, budget: int, chunks: Chunks) -> None:
        """Add chunks of prompts in order of arrival, each kept by the owner with most free blocks."""
        free, waiting, running = self.free, self.waiting, self.running
        while waiting and budget > 0 and len(running) < self.max_requests:
            sequence = waiting[0]
            need = sequence.prompt_tokens + sequence.generated
            count = min(need, budget, self.longest)
            if count < need and not self.chunked and (chunks or need <= self.max_tokens):
                break
            owner = sequence.owner = self.pool.emptiest()
            missing = -(-count // self.size)
            room = missing if self.first_chunk else -(-need // self.size)
            if room > free[owner] or (self.keeps_room and not self._promise(sequence)):
                break
            free[owner] -= missing
            budget -= count
            waiting.popleft()
            running.append(sequence)
            sequence.admitted = True
            self.number(sequence)
            sequence.blocks = missing
            self.log.fact(now, ADMITTED, sequence.request, need, self.total - sum(free))
            self.log.kept(now, sequence.request, owner)
            chunks.append((sequence, count))

    def _promise(self, sequence: Sequence) -> bool:
        """Promise a sequence that waits what it may come to need, if its owner's pool has it beside what others may."""
        promised = self.promised_by[sequence.owner] - -sequence.most_tokens // self.size
        if promised > self.pool.blocks:
            return False
        self.promised_by[sequence.owner] = promised
        return True

    def part_from(self, sequence: Sequence) -> None:
        """Note that a sequence runs no more."""
        self.promised_by[sequence.owner] += -sequence.most_tokens // self.size
