"""The prompts of a replica that no step carries now: those begun, in order of admission, and the queue.

Chunks are chosen as :class:`~clustersim.serving.scheduler.Scheduler` does, where nobody has to give way: a prompt
that is begun and lacks a K/V block is that scheduler's affair.
"""

from __future__ import annotations

from clustersim.serving.decision import ADMITTED
from clustersim.serving.grouped.batch import Chunks
from clustersim.serving.grouped.decode_group import by_place
from clustersim.serving.grouped.log import Log
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence


class PromptQueue:
    """Queue, prompts begun, and places of admission.

    Parameters
    ----------
    scheduler : Scheduler
        Owns the queue, the running sequences and the pool.
    log : Log
        Takes the facts of admission.

    Attributes
    ----------
    begun : list of Sequence
        Prompts begun, and not in flight.
    promised : int
        K/V blocks that those who run hold at their ends, where nobody is preempted.
    """

    def __init__(self, scheduler: Scheduler, log: Log) -> None:
        config, pool = scheduler.config, scheduler.pool
        self.log = log
        self.chunked = config.scheduler == "chunked_prefill"
        self.max_tokens = config.max_batch_tokens
        self.max_requests = config.max_batch_requests
        self.longest = (config.long_prompt_tokens if self.chunked else None) or self.max_tokens
        """Most tokens of one prompt in a step."""
        self.waiting = scheduler.waiting
        self.running = scheduler.running
        self.free = pool.free
        self.total = pool.total
        self.size = pool.block_tokens
        self.begun: list[Sequence] = []
        self.admissions = 0
        self.keeps_room = config.preemption == "never"
        self.first_chunk = config.admits_first_chunks
        """Whether blocks for the first chunk are enough, not those for the whole prompt."""
        self.promised = 0

    def choose(self, now: int, budget: int, free: int) -> Chunks | None:
        """Choose prompt chunks, those already begun first, then from the queue, and take the blocks that they need.

        Parameters
        ----------
        now : int
        budget : int
            Tokens that the step can take.
        free : int
            K/V blocks that decodes beside them leave; where there are chunks, those of the decodes are taken too.

        Returns
        -------
        list of (Sequence, int), or None
            None when a prompt that is begun lacks a block; then nothing has changed.
        """
        size = self.size
        chunks: Chunks = []
        for sequence in self.begun:
            count = min(sequence.to_compute, budget, self.longest)
            if count == 0:
                continue
            missing = -(-(sequence.computed + count) // size) - sequence.blocks
            if missing > free:
                return None
            free -= missing
            budget -= count
            chunks.append((sequence, count))
        for sequence, count in chunks:
            sequence.blocks = -(-(sequence.computed + count) // size)
        free = self._admit_from_queue(now, budget, free, chunks)
        if chunks:
            self.free[0] = free
        return chunks

    def _admit_from_queue(self, now: int, budget: int, free: int, chunks: Chunks) -> int:
        """Add chunks of prompts in order of arrival; return the blocks that are left."""
        size, waiting, running, longest = self.size, self.waiting, self.running, self.longest
        while waiting and budget > 0 and len(running) < self.max_requests:
            sequence = waiting[0]
            need = sequence.prompt_tokens + sequence.generated
            count = need if need < budget else budget
            count = count if count < longest else longest
            if count < need and not self.chunked and (chunks or need <= self.max_tokens):
                break
            missing = -(-count // size)
            if (missing if self.first_chunk else -(-need // size)) > free or (
                self.keeps_room and not self._promise(sequence)
            ):
                break
            free -= missing
            budget -= count
            waiting.popleft()
            running.append(sequence)
            sequence.admitted = True
            self.number(sequence)
            sequence.blocks = missing
            self.log.fact(now, ADMITTED, sequence.request, need, self.total - free)
            chunks.append((sequence, count))
        return free

    def _promise(self, sequence: Sequence) -> bool:
        """Promise a sequence that waits what it may come to need, if the pool has it beside what others may."""
        promised = self.promised - -sequence.most_tokens // self.size
        if promised > self.total:
            return False
        self.promised = promised
        return True

    def part_from(self, sequence: Sequence) -> None:
        """Note that a sequence runs no more."""
        self.promised += -sequence.most_tokens // self.size

    def number(self, sequence: Sequence) -> None:
        """Give a sequence that is admitted its place."""
        sequence.place = self.admissions
        self.admissions += 1

    def launch(self, chunks: Chunks) -> None:
        """Let go of the prompts that a step carries."""
        if self.begun:
            for sequence, _ in chunks:
                if sequence.computed:  # begun before
                    self.begun.remove(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Take a prompt of which a step has computed a part."""
        self.begun.append(sequence)
        if len(self.begun) > 1:
            self.begun.sort(key=by_place)
