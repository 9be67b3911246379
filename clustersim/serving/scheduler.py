"""Which sequences the next step carries: continuous batching and chunked prefill, first come first served.

Both know one notion: computed tokens catch up with known ones. A scheduler has no clock; the replay calls it with
``now``.

- ``continuous``: prefill first, whole prompts (Yu et al., "Orca", OSDI 2022; vLLM before v1). A prompt longer than
  the token budget is prefilled alone, in chunks of the budget.
- ``chunked_prefill``: decode first, then the rest of the token budget with prompt chunks (Agrawal et al.,
  "Sarathi-Serve", OSDI 2024; vLLM v1).

When the K/V pool is empty, the sequence that came last is preempted: it gives its blocks back and later computes
its tokens anew (recomputation, Kwon et al., "PagedAttention", SOSP 2023, section 4.5), or they are kept in host
memory meanwhile (``serving.swapping``).
"""

from __future__ import annotations

from dataclasses import dataclass

from clustersim.serving.blocks import BlockPool
from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import ADMITTED, CANCELLED, FINISHED, PREEMPTED, REUSED, Decision, Fact
from clustersim.serving.order import RANK, Queue
from clustersim.serving.prefix_cache import CachingPool
from clustersim.serving.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step brought: the sequences that got a token, those that ended with it, and those that were given up."""

    sampled: tuple[Sequence, ...]
    finished: tuple[Sequence, ...]
    cancelled: tuple[Sequence, ...] = ()


class Scheduler:
    """Queues, running sequences and K/V blocks of one replica.

    Parameters
    ----------
    config : ServingConfig
    pool : BlockPool
    stages : int
        Micro-batches that may be in flight (pp).
    decode_overlap : bool
        Whether decode steps of disjoint micro-batches may be in flight together.
    """

    def __init__(self, config: ServingConfig, pool: BlockPool, *, stages: int = 1, decode_overlap: bool = True) -> None:
        self.config = config
        self.pool = pool
        self.caching = pool if isinstance(pool, CachingPool) else None
        self.stages = stages
        self.decode_overlap = decode_overlap
        self.waiting: Queue = config.order.queue()
        self.running: list[Sequence] = []
        self.facts: list[Fact] = []
        self.decodes_in_flight = 0
        self.leaving = 0
        self.evicted = False

    @property
    def aside(self) -> tuple[Sequence, ...]:
        """Sequences that neither run nor wait to be admitted; none where preemption is by recomputation."""
        return ()

    def refusal(self, sequence: Sequence) -> str | None:
        """Return why a request can never run here, or None."""
        if sequence.prompt_tokens == 0:
            return "the prompt is empty"
        tokens = sequence.prompt_tokens + max(0, sequence.output_tokens - 1)
        needed = self.pool.needed(tokens)
        if needed > self.pool.blocks:
            return f"needs {needed} K/V blocks for {tokens} tokens, but the pool has {self.pool.blocks}"
        return None

    def add(self, sequence: Sequence) -> None:
        """Queue an arrived request."""
        sequence.rank = self.config.order.rank(sequence)
        self.waiting.add(sequence)

    def schedule(self, now: int) -> Decision | None:
        """Decide the next step from what is not in flight; None when there is nothing to run."""
        decision = self._decide(now)
        while decision is None and self.evicted:  # what was preempted may be all that there is to run
            decision = self._decide(now)
        if decision is not None:
            for sequence in decision.decodes:
                sequence.in_flight = True
            for sequence, _ in decision.prefills:
                sequence.in_flight = True
            self.decodes_in_flight += bool(decision.decodes)
        return decision

    def _decide(self, now: int) -> Decision | None:
        self.evicted = False
        budget = self.config.max_batch_tokens
        if self.config.scheduler == "continuous":
            prefills = self._prefills(now, budget, [], whole=True)
            decodes = [] if prefills else self._decodes(now, budget)
        else:
            decodes = self._decodes(now, budget)
            prefills = [] if self.evicted else self._prefills(now, budget - len(decodes), decodes, whole=False)
        if not decodes and not prefills:
            return None
        steady = not prefills and not self.evicted and len(decodes) == len(self.running)
        steady = steady and self.stages == 1 and not self._may_fit_later()
        return Decision(decodes=tuple(decodes), prefills=tuple(prefills), steady=steady)

    def _may_fit_later(self) -> bool:
        """Return whether blocks that decodes take may make room for the first sequence that waits.

        Where they take what it would have taken over, it needs fewer blocks at once: only those of its first chunk.
        """
        return self.caching is not None and bool(self.waiting) and self._admits(self.waiting[0])

    def _decodes(self, now: int, budget: int) -> list[Sequence]:
        """Choose decodes in order of admission; with PP a share of them, so that micro-batches are alike."""
        chosen: list[Sequence] = []
        if self.decodes_in_flight and not self.decode_overlap:
            return chosen
        decoding = [s for s in self.running if s.decodes]
        ready = decoding if self.stages == 1 else [s for s in decoding if not s.in_flight]
        share = -(-len(decoding) // self.stages)
        size = self.pool.block_tokens
        limit = min(share, budget)
        # In order of arrival the first can take from all others; in a ranked queue the next one may have to take from
        # it, so that who lacks a block leaves its place in the step to those behind it.
        for sequence in ready[:limit] if self.config.order.by == "arrival" else ready:
            if len(chosen) == limit:
                break
            # one that was preempted for a sequence before it has no blocks
            has_room = sequence.computed < sequence.blocks * size
            if has_room or (sequence.blocks and self._grow(now, sequence, sequence.computed + 1, chosen)):
                chosen.append(sequence)
        return chosen

    def _prefills(self, now: int, budget: int, decodes: list[Sequence], *, whole: bool) -> list[tuple[Sequence, int]]:
        """Fill ``budget`` with prompts: those already begun, then waiting ones in order of arrival."""
        chosen: list[tuple[Sequence, int]] = []
        limit = budget if whole else self.config.long_prompt_tokens or budget
        exhausted: list[int] = []  # owners whose next free blocks are for a prompt already begun
        for sequence in [s for s in self.running if not s.decodes and not s.in_flight]:
            count = min(sequence.to_compute, budget, limit)
            taken = [*decodes, *(s for s, _ in chosen)]
            if count == 0 or not sequence.blocks:
                continue
            if self._grow(now, sequence, sequence.computed + count, taken):
                chosen.append((sequence, count))
                budget -= count
            else:
                exhausted.append(sequence.owner)
        while self.waiting and budget > 0 and self._admits(self.waiting[0]):
            sequence = self.waiting[0]
            sequence.owner = self._owner(sequence)
            cached = self._cached(sequence)
            to_compute = sequence.to_compute - cached * self.pool.block_tokens
            count = min(to_compute, budget, limit)
            alone = to_compute > self.config.max_batch_tokens and not chosen
            if self.evicted or (whole and count < to_compute and not alone):
                break
            if sequence.owner in exhausted or not self._take_up(sequence, cached, count):
                break
            self.waiting.popleft()
            self._admit(now, sequence)
            chosen.append((sequence, count))
            budget -= count
        return chosen

    def _admits(self, sequence: Sequence) -> bool:
        """Return whether there is a place for the first sequence that waits."""
        del sequence
        return len(self.running) < self.config.max_batch_requests

    def _owner(self, sequence: Sequence) -> int:
        """Return whose pool is to keep a sequence."""
        return self.pool.emptiest() if self.caching is None else self.caching.longest(sequence)

    def _cached(self, sequence: Sequence) -> int:
        """Return how many cached blocks a sequence that waits would take over from its owner's pool."""
        return 0 if self.caching is None else self.caching.cached_blocks(sequence.owner, sequence)

    def _take_up(self, sequence: Sequence, cached: int, count: int) -> bool:
        """Give a sequence that waits cached blocks, and those that ``count`` more tokens need, if the pool has them."""
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

    def _after(self, sequence: Sequence) -> list[Sequence]:
        """Return the running sequences that come after this one, the last one first."""
        if self.config.order.by == "arrival":
            return self.running[: self.running.index(sequence) : -1]
        return sorted((s for s in self.running if s.rank > sequence.rank), key=RANK, reverse=True)

    @staticmethod
    def _may_preempt(victim: Sequence, sequence: Sequence, chosen: list[Sequence]) -> bool:
        return victim.owner == sequence.owner and not victim.in_flight and victim.blocks > 0 and victim not in chosen

    def _preempt(self, now: int, sequence: Sequence) -> None:
        self.evicted = True
        self._release(sequence)
        self.running.remove(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.waiting.add(sequence)  # at the front it would overtake one that was preempted before it
        self._note(now, PREEMPTED, sequence, sequence.generated)

    def _release(self, sequence: Sequence) -> None:
        if self.caching is not None:
            self.caching.release(sequence)
            return
        self.pool.give(sequence.owner, sequence.blocks)
        sequence.blocks = 0

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

    def _note(self, now: int, kind: int, sequence: Sequence, tokens: int) -> None:
        self.facts.append((now, kind, sequence.request, tokens, self.pool.used))

    def complete(self, now: int, decision: Decision) -> Outcome:
        """Account for a step that ended at ``now``."""
        sampled = []
        self.decodes_in_flight -= bool(decision.decodes)
        for sequence in decision.decodes:
            sequence.in_flight = False
            sequence.computed += 1
            sequence.generated += 1
            sampled.append(sequence)
        done = [s for s in sampled if s.generated >= s.output_tokens]
        for sequence, count in decision.prefills:
            sequence.in_flight = False
            sequence.computed += count
            if self.caching is not None:
                self.caching.store(sequence)
            if sequence.to_compute == 0:
                if sequence.generated < sequence.output_tokens:
                    sequence.generated += 1
                    sampled.append(sequence)
                if sequence.generated >= sequence.output_tokens:
                    done.append(sequence)
        for sequence in done:
            self._finish(now, sequence)
        gone = self._let_go(now, decision) if self.leaving else ()
        return Outcome(sampled=tuple(sampled), finished=tuple(done), cancelled=gone)

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

    def _let_go(self, now: int, decision: Decision) -> tuple[Sequence, ...]:
        """Let those of an ended step go that were given up meanwhile; one that finished with it has its answer."""
        leaving = [s for s in (*decision.decodes, *(s for s, _ in decision.prefills)) if s.leaving]
        self.leaving -= len(leaving)
        gone = tuple(s for s in leaving if s.generated < s.output_tokens)
        for sequence in gone:
            self.cancel(now, sequence)
        return gone

    def _finish(self, now: int, sequence: Sequence) -> None:
        self._release(sequence)
        self._note(now, FINISHED, sequence, sequence.generated)
        self.running.remove(sequence)

    def horizon(self, decision: Decision) -> int:
        """Return for how many steps a steady decision would be taken again, if nothing arrives meanwhile.

        The run ends with the step in which the first sequence finishes, or before the one that lacks a block: the
        sequences grow by one token a step, each takes a block when it enters one, and nothing gives blocks back.
        Waiting sequences stay where they are, since what kept them out only gets scarcer.
        """
        if not decision.steady:
            return 1
        steps = min(s.output_tokens - s.generated for s in decision.decodes)
        size = self.pool.block_tokens
        entries: list[list[int]] = [[] for _ in self.pool.free]
        for sequence in decision.decodes:
            first = -sequence.computed % size
            entries[sequence.owner].extend(range(first or size, steps, size))
        for free, steps_with_entry in zip(self.pool.free, entries, strict=True):
            if len(steps_with_entry) > free:
                steps = min(steps, sorted(steps_with_entry)[free])
        return steps

    def advance(self, decision: Decision, steps: int) -> None:
        """Account for all of ``steps`` steps of a steady run but the last, which :meth:`complete` accounts for.

        The decision has taken the block that the first step needs.
        """
        self.take_for(decision, steps)
        for sequence in decision.decodes:
            sequence.computed += steps - 1
            sequence.generated += steps - 1

    def take_for(self, decision: Decision, steps: int) -> None:
        """Take the blocks that the first ``steps`` steps of a steady run need and were not taken yet."""
        for sequence in decision.decodes:
            missing = self.pool.needed(sequence.computed + steps) - sequence.blocks
            if missing > 0:
                self.pool.take(sequence.owner, missing)
                sequence.blocks += missing
