"""The sequences of one replica: who waits, who runs, and whose K/V blocks are whose.

A sequence waits, is admitted when there is a place and there are blocks for its prompt, runs, and leaves: finished,
given up, or preempted (``serving.preemption``), to wait again. What a step computes is decided in
``serving.scheduler``.
"""

from __future__ import annotations

from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import ADMITTED, CANCELLED, PREEMPTED, REUSED
from tests.oracle.serving import queues
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.decision import Fact, Swap
from tests.oracle.serving.prefix_cache import CachingPool
from tests.oracle.serving.queues import Queue, queue_of
from tests.oracle.serving.sequence import Sequence


class Members:
    """Queue, running sequences and K/V blocks of one replica.

    Parameters
    ----------
    config : ServingConfig
    pool : BlockPool

    Attributes
    ----------
    waiting : Queue
        In the declared order.
    running : list of Sequence
        In the order of admission.
    kept : list of (int, int, int)
        Since these were last taken: instant, request that was admitted, and the SP rank that keeps it, of several.
    facts : list of Fact
        What happened and has not been recorded; who records it takes it away.
    leaving : int
        How many were given up while a step carries them.
    evicted : list of Sequence
        Whom the decision that is being taken has preempted.
    swaps : list of Swap
        Copies that were decided and have not been begun; who begins them takes them away.
    """

    def __init__(self, config: ServingConfig, pool: BlockPool) -> None:
        self.config = config
        self.pool = pool
        self.caching = pool if isinstance(pool, CachingPool) else None
        self.waiting: Queue = queue_of(config.order)
        self.running: list[Sequence] = []
        self.facts: list[Fact] = []
        self.kept: list[tuple[int, int, int]] = []
        self.leaving = 0
        self.evicted: list[Sequence] = []
        self.swaps: list[Swap] = []

    @property
    def swapped_out(self) -> tuple[Sequence, ...]:
        """Sequences that neither run nor wait to be admitted; none where preemption is by recomputation."""
        return ()

    def refusal(self, sequence: Sequence) -> str | None:
        """Return why a request can never run here, or None."""
        if sequence.output_tokens == 0:
            return "has no output token, as one that failed where its trace was recorded"
        if sequence.prompt_tokens == 0:
            return "the prompt is empty"
        window, discarded = self.config.context_window, self.config.discarded_tokens
        if window is not None and sequence.prompt_tokens + sequence.output_tokens - discarded > window:
            return f"is longer, with its output, than the context window of {window:,} tokens"
        needed = self._whole(sequence)
        if needed > self.pool.blocks:
            return f"needs {needed} K/V blocks for {sequence.most_tokens} tokens, but the pool has {self.pool.blocks}"
        return None

    def add(self, sequence: Sequence) -> None:
        """Queue an arrived request."""
        sequence.rank = queues.rank_in(self.config.order, sequence)
        self.waiting.add(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue."""
        self.waiting.remove(sequence)

    def cancel(self, now: int, sequence: Sequence) -> bool:
        """Let a sequence go whose client gave it up.

        Returns
        -------
        bool
            Whether it is gone. One that a step carries goes when that step ends, as :meth:`complete` says.
        """
        if sequence.in_flight:
            sequence.leaving = True
            self.leaving += 1
            return False
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.withdraw(sequence)
        self._note(now, CANCELLED, sequence, sequence.generated)
        return True

    def evict(self, now: int) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Lose all K/V, and every step that is in flight: what served this has failed.

        Returns
        -------
        (sequences, sequences)
            Those that are to be computed anew elsewhere, and those that were given up while a step carried them.
        """
        running, self.running = self.running, []
        waiting = tuple(self.waiting)
        cancelled = []
        for sequence in running:
            self._release(sequence)
            sequence.computed, sequence.in_flight = 0, False
            if sequence.leaving:
                cancelled.append(sequence)
                self._note(now, CANCELLED, sequence, sequence.generated)
            else:
                sequence.preemptions += 1
                self._note(now, PREEMPTED, sequence, sequence.generated)
        return (*(s for s in running if not s.leaving), *waiting), tuple(cancelled)

    def _owner(self, sequence: Sequence) -> int:
        """Return whose pool is to keep a sequence."""
        return self.pool.emptiest() if self.caching is None else self.caching.longest(sequence)

    def _cached(self, sequence: Sequence) -> int:
        """Return how many cached blocks a sequence that waits would take over from its owner's pool."""
        return 0 if self.caching is None else self.caching.cached_blocks(sequence.owner, sequence)

    def _whole(self, sequence: Sequence) -> int:
        """Return how many blocks a sequence holds at its end."""
        return self.pool.needed(sequence.most_tokens)

    def _keeps_room(self, sequence: Sequence, cached: int) -> bool:
        """Return whether those that run keep, beside a sequence that waits, the blocks that they may come to need.

        As TensorRT-LLM's ``GUARANTEED_NO_EVICT``: whoever is admitted is never preempted.
        """
        owner = sequence.owner
        still = sum(self._whole(s) - s.blocks for s in self.running if s.owner == owner)
        more = self._whole(sequence) - cached + still
        return more <= self.pool.free[owner] if self.caching is None else self.caching.fits(sequence, cached, more)

    def _fits(self, sequence: Sequence, cached: int, tokens: int) -> bool:
        """Return whether the pool has blocks for so many tokens behind those of a waiting sequence that are cached."""
        missing = self.pool.needed(tokens)
        if self.caching is None:
            return missing <= self.pool.free[sequence.owner]
        return self.caching.fits(sequence, cached, missing)

    def _take_up(self, sequence: Sequence, cached: int, count: int) -> bool:
        """Give a sequence that waits cached blocks, and those that ``count`` more tokens need, if the pool has them."""
        if self.config.preemption == "never" and not self._keeps_room(sequence, cached):
            return False
        if cached and self.caching is not None:
            if not self.caching.fits(sequence, cached, self.pool.needed(count)):
                return False
            self.caching.take_over(sequence, cached)
        return self._take(sequence, sequence.computed + count)

    def _admit(self, now: int, sequence: Sequence) -> None:
        sequence.admitted = True
        self.running.append(sequence)
        self._note(now, ADMITTED, sequence, sequence.known)
        if sequence.shared:
            self._note(now, REUSED, sequence, sequence.shared * self.pool.block_tokens)

    def _take(self, sequence: Sequence, tokens: int) -> bool:
        """Give the sequence the blocks that ``tokens`` need, if the pool has them."""
        missing = self.pool.needed(tokens) - sequence.blocks
        if missing > self.pool.free[sequence.owner]:
            return False
        if missing > 0:
            self.pool.take(sequence.owner, missing)
            sequence.blocks += missing
        return True

    def _release(self, sequence: Sequence) -> None:
        if self.caching is not None:
            self.caching.release(sequence)
            return
        self.pool.give(sequence.owner, sequence.blocks)
        sequence.blocks = 0

    def _note(self, now: int, kind: int, sequence: Sequence, tokens: int) -> None:
        self.facts.append((now, kind, sequence.request, tokens, self.pool.used))
        if kind == ADMITTED and len(self.pool.free) > 1:
            self.kept.append((now, sequence.request, sequence.owner))
