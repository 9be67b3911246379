"""Both ends of a hand-over, as every scheduler has them: K/V that goes to the next pool, or comes from the one before.

As DistServe (Zhong et al., OSDI 2024, section 4.3) and vLLM's disaggregated prefill do: a decode replica *pulls*. It
sets blocks aside for a prompt when it has them, and until then the prefill replica keeps its own, so that a decode pool
that is full holds the prefill pool back. What was preempted on a decode replica is computed anew there, as vLLM does,
and comes before prompts that are to be received. Where requests stay in one pool, nothing arrives and nothing leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import ADMITTED, CANCELLED, HANDED_OVER, PREEMPTED, RECEIVED
from tests.oracle.serving import queues
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.preemption import Preemption
from tests.oracle.serving.sequence import Sequence


class PoolMembers(Preemption):
    """Sequences of a replica that may come from, or go to, replicas of another pool.

    Attributes
    ----------
    arriving : deque of Sequence
        For which it has no blocks yet, in the order in which they were routed here.
    receiving : int
        Sequences that have blocks, whose K/V is on its way.
    on_reserve : callable
        Called with each sequence that was given blocks.
    """

    def __init__(self, config: ServingConfig, pool: BlockPool) -> None:
        super().__init__(config, pool)
        self.arriving: deque[Sequence] = deque()
        self.receiving = 0
        self.on_reserve: Callable[[Sequence], None] = _nobody

    def handed_over(self, now: int, sequence: Sequence) -> None:
        """Take back the blocks of a sequence whose K/V is elsewhere now."""
        self._release(sequence)
        self._note(now, HANDED_OVER, sequence, sequence.computed)

    def discard(self, now: int, sequence: Sequence) -> None:
        """Take back the blocks of a sequence that is computed and waits to leave: its client gave it up."""
        self._release(sequence)
        self._note(now, CANCELLED, sequence, sequence.generated)

    def lose(self, now: int, sequence: Sequence) -> None:
        """Take back the blocks of a sequence that is computed and can't leave: this has failed, or nobody is there."""
        self._release(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self._note(now, PREEMPTED, sequence, sequence.generated)

    def give_up(self, now: int, sequence: Sequence) -> None:
        """Take back the blocks that were set aside for a sequence which will not come."""
        self.receiving -= 1
        self._release(sequence)
        sequence.preemptions += 1
        self._note(now, PREEMPTED, sequence, sequence.generated)

    def received(self, now: int, sequence: Sequence) -> None:
        """Let a sequence decode whose K/V is here now."""
        self.receiving -= 1
        sequence.rank = queues.rank_in(self.config.order, sequence)
        self.running.append(sequence)
        self._note(now, RECEIVED, sequence, sequence.computed)

    def reserve(self, now: int) -> None:
        """Set blocks aside for prompts that wait elsewhere."""
        while self.arriving and not self.waiting and self._admits(self.arriving[0]):
            sequence = self.arriving[0]
            sequence.owner = self._owner(sequence)
            if not self._take(sequence, sequence.computed):
                break
            self.arriving.popleft()
            self.receiving += 1
            self._note(now, ADMITTED, sequence, sequence.computed)
            self.on_reserve(sequence)

    def _admits(self, sequence: Sequence) -> bool:
        del sequence
        return len(self.running) + self.receiving < self.config.max_batch_requests


def _nobody(sequence: Sequence) -> None:
    del sequence
