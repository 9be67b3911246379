"""Who gives its K/V blocks up for whom, where the pool lacks them.

The sequence that came last is preempted: it gives its blocks back and later computes its tokens anew (recomputation,
Kwon et al., "PagedAttention", SOSP 2023, section 4.5), or they are kept in host memory meanwhile
(``serving.swapping``).
"""

from __future__ import annotations

from clustersim.serving.decision import PREEMPTED
from tests.oracle.serving.members import Members
from tests.oracle.serving.queues import RANK
from tests.oracle.serving.sequence import Sequence


class Preemption(Members):
    """Sequences of a replica, of which those that came last give way to those that run before them."""

    def _grow(self, now: int, sequence: Sequence, tokens: int, chosen: list[Sequence]) -> bool:
        """Take the blocks that ``tokens`` need; return whether it has them.

        Where the pool lacks them, sequences admitted later (or of a higher rank, where the queue is ranked) give
        theirs, the last one first. One that is in flight cannot, so the sequence waits for it; and it never takes
        from one before it, nor gives up its own: the first sequence gets ahead in every round, so that none can
        starve another.
        """
        while not self._take(sequence, tokens):
            victim = next((s for s in self._after(sequence) if self._may_preempt(s, sequence, chosen)), None)
            if victim is None:
                return False
            self._preempt(now, victim)
        return True

    def _gives_up(self, now: int, sequence: Sequence) -> bool:
        """Let a prompt that lacks blocks give up its own, where it comes last of several: it waits again, and is done.

        As vLLM, where the last one that runs is the victim also where it is the one that lacks blocks. The first one
        keeps its own, so that it gets ahead.
        """
        after = any(other.owner == sequence.owner for other in self._after(sequence))
        can = self.config.admits_first_chunks and self.config.preemption == "recompute"
        if after or not can or sequence is self._first():
            return False
        self._preempt(now, sequence)
        return True

    def _first(self) -> Sequence:
        """Return the running sequence that comes before all others."""
        return self.running[0] if self.config.order.by == "arrival" else min(self.running, key=RANK)

    def _after(self, sequence: Sequence) -> list[Sequence]:
        """Return the running sequences that come after this one, the last one first."""
        if self.config.order.by == "arrival":
            return self.running[: self.running.index(sequence) : -1]
        return sorted((s for s in self.running if s.rank > sequence.rank), key=RANK, reverse=True)

    @staticmethod
    def _may_preempt(victim: Sequence, sequence: Sequence, chosen: list[Sequence]) -> bool:
        return victim.owner == sequence.owner and not victim.in_flight and victim.blocks > 0 and victim not in chosen

    def _preempt(self, now: int, sequence: Sequence) -> None:
        self.evicted.append(sequence)
        self._release(sequence)
        self.running.remove(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.waiting.add(sequence)  # at the front it would overtake one that was preempted before it
        self._note(now, PREEMPTED, sequence, sequence.generated)
