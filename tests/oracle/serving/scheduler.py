"""Which sequences the next step carries: continuous batching and chunked prefill, in the order of the queue.

Both know one notion: computed tokens catch up with known ones. A scheduler has no clock; the replay calls it with
``now``. Who waits and who runs is in ``serving.members``, who gives blocks up for whom in ``serving.preemption``.

- ``continuous``: prefill first, whole prompts (Yu et al., "Orca", OSDI 2022; vLLM before v1). A prompt longer than
  the token budget is prefilled alone, in chunks of the budget.
- ``chunked_prefill``: decode first, then the rest of the token budget with prompt chunks (Agrawal et al.,
  "Sarathi-Serve", OSDI 2024; vLLM v1).
"""

from __future__ import annotations

from typing import NamedTuple

from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import FINISHED
from clustersim.serving.stall import Stall
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.decision import Decision
from tests.oracle.serving.disaggregated import PoolMembers
from tests.oracle.serving.sequence import Sequence


class Outcome(NamedTuple):
    """What a step brought: the sequences that got a token, those that ended with it, and those that were given up."""

    sampled: tuple[Sequence, ...]
    finished: tuple[Sequence, ...]
    cancelled: tuple[Sequence, ...] = ()


class Scheduler(PoolMembers):
    """Decides the steps of one replica.

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
        super().__init__(config, pool)
        self.stages = stages
        self.decode_overlap = decode_overlap
        self.decodes_in_flight = 0
        self.heeds_all = False
        """Whether any request that comes may change what it decides, not only the first one that waits."""

    def schedule(self, now: int) -> Decision | None:
        """Decide the next step from what is not in flight; None when there is nothing to run."""
        self.reserve(now)
        decision = self._decide(now)
        while decision.is_empty and decision.evicted:  # they may be all that there is to run
            decision = self._decide(now)
        if decision.is_empty:
            return None
        for sequence in decision.decodes:
            sequence.in_flight = True
        for sequence, _ in decision.prefills:
            sequence.in_flight = True
        self.decodes_in_flight += bool(decision.decodes)
        return decision

    def _decide(self, now: int) -> Decision:
        self.evicted = []
        budget = self.config.max_batch_tokens
        if self.config.scheduler == "continuous":
            prefills = self._prefills(now, budget, [], whole=True)
            decodes = [] if prefills else self._decodes(now, budget)
        else:
            decodes = self._decodes(now, budget)
            prefills = [] if self.evicted else self._prefills(now, budget - len(decodes), decodes, whole=False)
        steady = not prefills and not self.evicted and len(decodes) == len(self.running)
        steady = steady and self.stages == 1 and not self.may_fit_later()
        return Decision(decodes=tuple(decodes), prefills=tuple(prefills), steady=steady, evicted=tuple(self.evicted))

    def may_fit_later(self) -> bool:
        """Return whether blocks that decodes take may make room for the first sequence that waits.

        Where they take what it would have taken over, it needs fewer blocks at once: only those of its first chunk.
        Where several owners keep room for those who run, another one may become the emptiest, with room for it.
        """
        if self.config.preemption == "never" and len(self.pool.free) > 1 and self.waiting:
            return True
        return self.caching is not None and bool(self.waiting) and self._admits(self.waiting[0])

    def _decodes(self, now: int, budget: int) -> list[Sequence]:
        """Choose decodes in order of admission; with PP a share of them, so that micro-batches are alike."""
        chosen: list[Sequence] = []
        if self.decodes_in_flight and not self.decode_overlap:
            return chosen
        decoding = [s for s in self.running if s.generated and s.prompt_tokens + s.generated == s.computed + 1]
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
        begun = [s for s in self.running if not s.generated or s.prompt_tokens + s.generated != s.computed + 1]
        for sequence in [s for s in begun if not s.in_flight]:
            count = min(sequence.to_compute, budget, limit)
            taken = [*decodes, *(s for s, _ in chosen)]
            if count == 0 or not sequence.blocks:
                continue
            if self._grow(now, sequence, sequence.computed + count, taken):
                chosen.append((sequence, count))
                budget -= count
            elif not self._gives_up(now, sequence):
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
            fits = self.config.admits_first_chunks or self._fits(sequence, cached, to_compute)
            if not fits or sequence.owner in exhausted or not self._take_up(sequence, cached, count):
                break
            self.waiting.popleft()
            self._admit(now, sequence)
            chosen.append((sequence, count))
            budget -= count
        return chosen

    def complete(self, now: int, decision: Decision, steps: int = 1) -> Outcome:
        """Account for a step that ended at ``now``, or for a decode run of so many, as :meth:`advance` does."""
        if steps > 1:
            self.take_for(decision, steps)
        sampled, done = list(decision.decodes), []
        self.decodes_in_flight -= bool(decision.decodes)
        for sequence in decision.decodes:
            sequence.in_flight = False
            sequence.computed += steps
            sequence.generated = generated = sequence.generated + steps
            if generated >= sequence.output_tokens and not (sequence.hands_over and sequence.leaving):
                done.append(sequence)
        for sequence, count in decision.prefills:
            sequence.in_flight = False
            sequence.computed += count
            if self.caching is not None:
                self.caching.store(sequence, sequence.computed)
            if sequence.to_compute == 0:
                if sequence.generated < sequence.output_tokens:
                    sequence.generated += 1
                    sampled.append(sequence)
                if sequence.answered or (sequence.hands_over and not sequence.leaving):
                    done.append(sequence)
        for sequence in done:
            self._finish(now, sequence)
        gone = self._let_go(now, decision) if self.leaving else ()
        return Outcome(sampled=tuple(sampled), finished=tuple(done), cancelled=gone)

    def _let_go(self, now: int, decision: Decision) -> tuple[Sequence, ...]:
        """Let those of an ended step go that were given up meanwhile; one that finished with it has its answer."""
        leaving = [s for s in (*decision.decodes, *(s for s, _ in decision.prefills)) if s.leaving]
        self.leaving -= len(leaving)
        gone = tuple(s for s in leaving if not s.answered)
        for sequence in gone:
            self.cancel(now, sequence)
        return gone

    def _finish(self, now: int, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if not sequence.hands_over:  # else its blocks stay until its K/V has been moved
            self._release(sequence)
            self._note(now, FINISHED, sequence, sequence.generated)

    def stall(self, now: int) -> Stall | None:
        """Return what a user's own scheduler left alone when it decided nothing; None where it is not a user's."""
        del now
        return None

    def horizon(self, decision: Decision) -> int:
        """Return for how many steps a steady decision would be taken again, if nothing arrives meanwhile.

        The run ends with the step in which the first sequence finishes, or before the one that lacks a block: the
        sequences grow by one token a step, each takes a block when it enters one, and nothing gives blocks back.
        Waiting sequences stay where they are, since what kept them out only gets scarcer.
        """
        if not decision.steady:
            return 1
        return self.affordable(decision, min([s.output_tokens - s.generated for s in decision.decodes]))

    def affordable(self, decision: Decision, steps: int) -> int:
        """Return how many of the next ``steps`` steps of a decision have their blocks."""
        size = self.pool.block_tokens
        if len(decision.decodes) * (steps // size + 1) <= min(self.pool.free):  # as many as they could need at most
            return steps
        entries: list[list[int]] = [[] for _ in self.pool.free]
        for sequence in decision.decodes:
            first = -sequence.computed % size
            entries[sequence.owner].extend(range(first or size, steps, size))
        for free, steps_with_entry in zip(self.pool.free, entries, strict=True):
            if len(steps_with_entry) > free:
                steps = min(steps, sorted(steps_with_entry)[free])
        return steps

    def advance(self, decision: Decision, steps: int) -> None:
        """Account for all of ``steps`` steps of a decode run but the last, which :meth:`complete` accounts for.

        The decision has taken the block that the first step needs.
        """
        self.take_for(decision, steps)
        more = steps - 1
        for sequence in decision.decodes if more else ():
            sequence.computed += more
            sequence.generated += more

    def take_for(self, decision: Decision, steps: int) -> None:
        """Take the blocks that the first ``steps`` steps of a decode run need and were not taken yet."""
        size = self.pool.block_tokens
        for sequence in decision.decodes:
            missing = -(-(sequence.computed + steps) // size) - sequence.blocks
            if missing > 0:
                self.pool.take(sequence.owner, missing)
                sequence.blocks += missing
