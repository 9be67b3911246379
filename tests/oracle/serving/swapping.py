"""Preemption by swap: a victim's K/V blocks are copied to host memory, and back before it goes on.

``core.swapping`` says the rules.
"""

from __future__ import annotations

from typing import Final

from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import CANCELLED, SWAPPED_IN, SWAPPED_OUT
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.decision import Decision, Swap
from tests.oracle.serving.queues import queue_of
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence

SPARE: Final = 100
"""One in so many blocks stays free when a sequence comes back."""


class SwappingScheduler(Scheduler):
    """Preempts by swap; the parameters are those of :class:`~tests.oracle.serving.scheduler.Scheduler`.

    Parameters
    ----------
    host : BlockPool
        Blocks in host memory, of each owner.

    Attributes
    ----------
    swapped : Queue
        Sequences that leave or are at rest.
    outbound : dict
        Request → copy to the host; the sequence itself has no blocks any more that it could compute in.
    inbound : dict
        Request → sequence that is copied back.
    """

    def __init__(
        self,
        config: ServingConfig,
        pool: BlockPool,
        host: BlockPool,
        *,
        stages: int = 1,
        decode_overlap: bool = True,
    ) -> None:
        super().__init__(config, pool, stages=stages, decode_overlap=decode_overlap)
        self.host = host
        self.swapped = queue_of(config.order)
        self.outbound: dict[int, Swap] = {}
        self.inbound: dict[int, Sequence] = {}
        self.short: set[int] = set()
        """Owners whose next free blocks are for a sequence that waits for a copy to end; anew in each decision."""

    def schedule(self, now: int) -> Decision | None:
        """Decide the next step; see :meth:`Scheduler.schedule`."""
        away = len(self.swapped)
        decision = super().schedule(now)
        if decision is None and len(self.swapped) < away and not self.swapped:  # others may be admitted again
            decision = super().schedule(now)
        return decision

    def _decide(self, now: int) -> Decision:
        self.short.clear()
        decision = super()._decide(now)
        prefill_first = self.config.scheduler == "continuous" and decision.prefills
        if not decision.evicted and not prefill_first:  # decodes must have their blocks before
            self._swap_in(now)
        if self.outbound or self.inbound:
            return decision._replace(steady=False)
        return decision

    def _admits(self, sequence: Sequence) -> bool:
        del sequence
        taken = len(self.running) + len(self.inbound) + self.receiving
        return not self.swapped and taken < self.config.max_batch_requests

    def _grow(self, now: int, sequence: Sequence, tokens: int, chosen: list[Sequence]) -> bool:
        """Take the blocks that ``tokens`` need; where they have to be copied out first, wait for that.

        Until then nobody after it takes a free block of that pool.
        """
        owner = sequence.owner
        missing = self.pool.needed(tokens) - sequence.blocks
        if missing > 0 and owner in self.short:
            return False
        while not self._take(sequence, tokens):
            coming = sum(swap.blocks for swap in self.outbound.values() if swap.sequence.owner == owner)
            if coming and missing <= self.pool.free[owner] + coming:
                self.short.add(owner)
                return False
            victim = next((s for s in self._after(sequence) if self._may_preempt(s, sequence, chosen)), None)
            if victim is None:
                return False
            self._preempt(now, victim)
        return True

    def _preempt(self, now: int, sequence: Sequence) -> None:
        if not sequence.computed or sequence.blocks > self.host.free[sequence.owner]:
            super()._preempt(now, sequence)
            return
        self.evicted.append(sequence)
        self.running.remove(sequence)
        self.host.take(sequence.owner, sequence.blocks)
        swap = Swap(sequence=sequence, out=True, blocks=sequence.blocks, copied=self.copied)
        sequence.blocks = 0
        self.outbound[sequence.request] = swap
        self.swapped.add(sequence)
        self.swaps.append(swap)

    def _swap_in(self, now: int) -> None:
        """Let come back whoever was swapped out and has room, in the order of the queue."""
        while self.swapped and len(self.running) + len(self.inbound) < self.config.max_batch_requests:
            sequence = self.swapped[0]
            owner = sequence.owner
            spare = self.pool.blocks // SPARE if self.running or self.inbound else 0
            if sequence.request in self.outbound or owner in self.short:
                return
            if self.pool.needed(sequence.computed + 1) + spare > self.pool.free[owner]:
                return
            self.swapped.popleft()
            sequence.blocks = self.pool.needed(sequence.computed)
            self.pool.take(owner, sequence.blocks)
            self.inbound[sequence.request] = sequence
            self.swaps.append(Swap(sequence=sequence, out=False, blocks=sequence.blocks, copied=self.copied))
            self._note(now, SWAPPED_IN, sequence, sequence.computed)

    def copied(self, now: int, sequence: Sequence) -> bool:
        """Account for the end of a copy: the blocks at its source are free.

        Returns
        -------
        bool
            Whether the sequence leaves with it, since its client gave it up meanwhile.
        """
        left = self.outbound.pop(sequence.request, None)
        if left is not None:
            sequence.preemptions += 1
            self.pool.give(sequence.owner, left.blocks)
            self._note(now, SWAPPED_OUT, sequence, sequence.computed)
        else:
            del self.inbound[sequence.request]
            self.host.give(sequence.owner, sequence.blocks)
            self.running.append(sequence)
        return sequence.leaving and self.cancel(now, sequence)

    def cancel(self, now: int, sequence: Sequence) -> bool:
        """Let a sequence go whose client gave it up; one that is being copied goes when its copy ends.

        See :meth:`Scheduler.cancel`.
        """
        if sequence.request in self.outbound or sequence.request in self.inbound:
            sequence.leaving = True
            return False
        if not any(sequence is away for away in self.swapped):
            return super().cancel(now, sequence)
        self.swapped.remove(sequence)
        self.host.give(sequence.owner, self.pool.needed(sequence.computed))
        self._note(now, CANCELLED, sequence, sequence.generated)
        return True

    def evict(self, now: int) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Lose all K/V, that in host memory and on its way too; see :meth:`Members.evict`."""
        for swap in self.outbound.values():
            swap.sequence.blocks = swap.blocks  # until the copy has ended
        self.running += self.swapped_out
        return super().evict(now)

    @property
    def swapped_out(self) -> tuple[Sequence, ...]:
        """Sequences that neither run nor wait to be admitted: those in host memory, and on their way."""
        return (*self.swapped, *self.inbound.values())
