"""The grouped scheduler where every step is decided by the scheduler itself, since nothing tells what would repeat.

That is a scheduler of a user's own, one that swaps or makes up whole batches, and others of
``ServingConfig.decided_singly``. Sequences are up to date between steps, so their scheduler decides, and accounts for
what ended, as it does by events. What a step costs here is what that costs.
"""

from __future__ import annotations

from clustersim.serving.decision import Decision
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.log import Log
from clustersim.serving.grouped.scheduler import GroupedScheduler
from clustersim.serving.grouped.window_sum import WindowSum
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence
from clustersim.timeline.episodes import Episodes


class AskedGroup(DecodeGroup):
    """The sequences that decode in one step, or in a run of equal ones.

    Parameters
    ----------
    members : tuple of Sequence
    block_tokens : int
    windows : tuple of int
    """

    __slots__ = ("members",)

    def __init__(self, members: tuple[Sequence, ...], block_tokens: int, windows: tuple[int, ...]) -> None:
        self.members = members
        self.block_tokens = block_tokens
        self.clock = 0
        self.count = len(members)
        self.computed = sum([sequence.computed for sequence in members])
        self.windows = tuple([WindowSum(window) for window in windows])
        for place, sequence in enumerate(members if windows else ()):
            sequence.place = place
            for sums in self.windows:
                sums.join(sequence, 0)

    @property
    def left(self) -> int:
        """Steps until the first of them has all its tokens."""
        return min([sequence.output_tokens - sequence.generated for sequence in self.members])

    def growth_after_first(self, steps: int) -> int:
        """Return the blocks that members enter in the next ``steps`` steps but the first, which has its own."""
        size = self.block_tokens
        return sum([max(0, -(-(one.computed + steps) // size) - one.blocks) for one in self.members])


class AskedBatch(Batch):
    """What a step carries, and the decision that says so.

    Attributes
    ----------
    decision : Decision
    first : int
        Number of the (first) step.
    """

    __slots__ = ("decision", "first")

    def __init__(self, decision: Decision, group: AskedGroup | None, step: int) -> None:
        self.group = group
        self.decodes = len(decision.decodes)
        self.chunks = [*decision.prefills]
        self.decision = decision
        self.step = self.first = step
        self.slot = -1 if group is None else 0
        self.previous = step - 1
        self.steady = decision.steady


class AskedScheduler(GroupedScheduler):
    """One replica of one stage; parameters are those of :class:`GroupedScheduler`."""

    def __init__(self, scheduler: Scheduler, log: Log, windows: tuple[int, ...] = ()) -> None:
        super().__init__(scheduler, log, windows)
        self.under_way: AskedBatch | None = None
        self.episodes = Episodes(1, log.decode)

    @property
    def queued(self) -> int:
        """Sequences that wait: to be admitted, or to come back from the host."""
        return len(self.waiting) + len(self.scheduler.swapped_out)

    def next(self, now: int) -> AskedBatch | None:
        """Decide the next step; None when there is nothing to run."""
        scheduler = self.scheduler
        decision = scheduler.schedule(now)
        self.hand_facts()
        if scheduler.swaps:
            self.episodes.close([swap.sequence.request for swap in scheduler.swaps if swap.out])
        if decision is None:
            return None
        decodes = decision.decodes
        batch = AskedBatch(decision, AskedGroup(decodes, self.size, self.windows) if decodes else None, self.step)
        if scheduler.caching is not None:  # who looks at the cache finds every block taken that is
            batch.steady = False
        self.under_way = batch
        self.step += 1
        return batch

    def affordable(self, group: DecodeGroup, limit: int) -> int:
        """Return how many of the next ``limit`` steps have their blocks."""
        del group
        return 1 if limit == 1 else self.scheduler.affordable(self._decision, limit)

    @property
    def _decision(self) -> Decision:
        assert self.under_way is not None
        return self.under_way.decision

    def repeat(self, batch: Batch, steps: int) -> None:
        """Note that a batch of decodes was carried by ``steps`` steps in a row, not only by one."""
        self.scheduler.advance(self._decision, steps)
        self.step = batch.step + steps

    def complete(self, now: int, batch: Batch, steps: int = 1) -> list[Sequence]:
        """Account for the end of what was decided; return the sequences that finished, and those that leave."""
        decision, episodes = self._decision, self.episodes
        self.under_way, self.step = None, batch.step + steps
        prompts = [(sequence, count, sequence.computed, sequence.generated) for sequence, count in batch.chunks]
        outcome = self.scheduler.complete(now, decision, steps)
        for sequence, count, start, generated in prompts:
            self.log.chunk(batch.step, sequence.request, start, count, sequence.generated - generated)
            episodes.close((sequence.request,))
        if batch.decodes:
            self._decoded(batch.step, steps, decision)
        self.hand_facts()
        ended = [*outcome.finished, *outcome.cancelled]
        if ended:
            episodes.close([sequence.request for sequence in ended])
        return ended

    def _decoded(self, step: int, steps: int, decision: Decision) -> None:
        self.episodes.decoded(step, steps, tuple([sequence.request for sequence in decision.decodes]))

    def cancel(self, now: int, sequence: Sequence, taken: int = 0) -> bool:
        """Let a sequence go whose client gave it up; see :meth:`GroupedScheduler.cancel`."""
        gone = self.scheduler.cancel(now, sequence)
        if gone:
            self.episodes.close((sequence.request,))
            self.hand_facts(taken)
        return gone

    def receive(self, now: int, sequence: Sequence, taken: int = 0) -> None:
        """Let a sequence decode whose K/V is here now; see :meth:`GroupedScheduler.receive`."""
        self.scheduler.received(now, sequence)
        self.hand_facts(taken)

    def evict(self, now: int) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Lose all K/V, and the step that is in flight; see :meth:`Scheduler.evict`."""
        self._count_ended()
        found = self.scheduler.evict(now)
        self.episodes.close([sequence.request for some in found for sequence in some])
        self.hand_facts()
        return found

    def _count_ended(self) -> None:
        """Account for the steps of a run that have ended; that which is in flight is as if it had never begun."""
        batch = self.under_way
        if batch is not None:
            self.step = batch.previous + 1
            if self.step > batch.first:
                self._decoded(batch.first, self.step - batch.first, batch.decision)

    def follow(self, predecessor: GroupedScheduler) -> None:
        """Go on with the numbers of steps and the episodes of a scheduler that failed."""
        assert isinstance(predecessor, AskedScheduler)
        self.step, self.episodes = predecessor.step, predecessor.episodes

    def cached_tokens(self, sequence: Sequence, taken: int) -> int:
        """Return how many leading tokens of a prompt one of the pools has cached; ``taken`` is 0 where any has."""
        del taken
        pool = self.scheduler.caching
        return 0 if pool is None else pool.block_tokens * pool.cached_blocks(0, sequence)

    def stop(self) -> None:
        """Record the episodes that are open at the end of the run; what is in flight has not happened."""
        self._count_ended()
        self.episodes.close()
