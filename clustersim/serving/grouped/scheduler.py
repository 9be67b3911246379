"""The decisions of :class:`~clustersim.serving.scheduler.Scheduler`, at the cost of what changes and not of what runs.

Decoding sequences are kept in *groups* that advance together (:mod:`clustersim.serving.grouped.decode_group`): one
group for each micro-batch in flight, and at most a few that wait (:mod:`clustersim.serving.grouped.ready_decodes`). A
step that takes a whole group, and perhaps prompts (:mod:`clustersim.serving.grouped.prompt_queue`), is decided with a
few comparisons.
The scheduler chooses decodes in order of admission, as many as an even share of the micro-batches; that is the group
that waits itself unless members came or went. Which slot they use and who decoded when is kept elsewhere
(:mod:`clustersim.serving.grouped.decode_slots`).

**Where a K/V block is missing** somebody has to give way. Then everybody who is not in flight is brought up to
date, and the scheduler itself decides that step (:meth:`GroupedScheduler._careful`): preemption has one
implementation. So there are three ways to differ from the scheduler, and each has its check: a wrong sum (blocks,
tokens), a wrong order, and a shortage not noticed; ``tests/laws`` lets both decide side by side.
"""

from __future__ import annotations

from collections.abc import Iterable

from clustersim.serving.decision import ADMITTED, FINISHED
from clustersim.serving.grouped.batch import Batch, Chunks
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.decode_slots import DecodeSlots
from clustersim.serving.grouped.log import Log
from clustersim.serving.grouped.prompt_queue import PromptQueue
from clustersim.serving.grouped.ready_decodes import ReadyDecodes
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence


class GroupedScheduler:
    """One replica's queue, batch and K/V pool.

    Parameters
    ----------
    scheduler : Scheduler
        Owns the queue, the running sequences and the pool; its budget of tokens covers that of requests.
    log : Log
    windows : tuple of int
        Sliding windows of the model.
    """

    def __init__(self, scheduler: Scheduler, log: Log, windows: tuple[int, ...] = ()) -> None:
        self.scheduler = scheduler
        self.log = log
        self.windows = windows
        self.stages = scheduler.stages
        self.overlap = scheduler.decode_overlap
        self.chunked = scheduler.config.scheduler == "chunked_prefill"
        self.max_tokens = scheduler.config.max_batch_tokens
        self.waiting = scheduler.waiting
        self.running = scheduler.running
        self.free = scheduler.pool.free
        self.total = scheduler.pool.total
        self.size = scheduler.pool.block_tokens
        self.ready = ReadyDecodes(self.size, windows)
        self.prompts = PromptQueue(scheduler, log)
        self.slots = DecodeSlots(self.stages, log)
        self.decoding = 0
        """Running sequences whose next step is a decode step."""
        self.flying: list[Batch] = []
        self.decodes_flying = 0
        self.step = 0

    @property
    def used(self) -> int:
        """K/V blocks in use."""
        return self.total - sum(self.free)

    @property
    def queued(self) -> int:
        """Sequences that wait."""
        return len(self.waiting)

    def next(self, now: int) -> Batch | None:
        """Decide the next step; None when there is nothing to run."""
        if self.scheduler.arriving:
            self.scheduler.reserve(now)
            self.hand_facts()
        prompts = self.prompts if self.waiting or self.prompts.begun else None
        if prompts is not None and not self.chunked:
            alone = prompts.choose(now, self.max_tokens, self.free[0])
            if alone is None:
                return self._careful(now)
            if alone:
                return self._launch(None, alone)
        group = self._decodes()
        growth = 0 if group is None else group.phases[group.clock % self.size]
        free = self.free[0] - growth
        if free < 0:
            return self._careful(now)
        if prompts is not None and self.chunked:
            budget = self.max_tokens if group is None else self.max_tokens - group.count
            beside = prompts.choose(now, budget, free)
            if beside is None:
                return self._careful(now)
            if beside:
                return self._launch(group, beside)
        if group is None:
            return None
        self.free[0] = free
        return self._launch(group, [])

    @property
    def repeats(self) -> bool:
        """Whether each group in flight is what the next step carries when it is back, and nothing else can be in it."""
        ready, share = self.ready, min(-(-self.decoding // self.stages), self.max_tokens)
        if self.waiting or self.prompts.begun or ready.groups or ready.loose:
            return False
        return all(batch.group is not None and not batch.chunks and batch.decodes <= share for batch in self.flying)

    def again(self, batch: Batch) -> bool:
        """Let the decodes in flight that were decided first, of which none has its last token, be in the next step.

        Returns
        -------
        bool
            Whether they can be: with this step none of them ends, and their K/V blocks are there.
        """
        group = batch.group
        if group is None or group.left < 2 or not self._takes(group):
            return False
        group.advance(1)
        self.flying.append(self.flying.pop(0))
        batch.step = self.step
        batch.slot, batch.previous = self.slots.carry(group, batch.step)
        self.step += 1
        return True

    def _takes(self, group: DecodeGroup) -> bool:
        """Take the blocks that a group enters in the step after the one under way, if they are there."""
        free = self.free[0] - group.phases[(group.clock + 1) % self.size]
        if free >= 0:
            self.free[0] = free
        return free >= 0

    def _decodes(self) -> DecodeGroup | None:
        """Return an even share of all decodes, the first ones in order of admission, as a group."""
        if self.decodes_flying and not self.overlap:
            return None
        return self.ready.first(min(-(-self.decoding // self.stages), self.max_tokens))

    def _launch(self, group: DecodeGroup | None, chunks: Chunks) -> Batch:
        batch = Batch(group, chunks, self.step)
        batch.steady = not chunks and batch.decodes == len(self.running)
        if group is not None:
            self.ready.groups.remove(group)
            self.decodes_flying += 1
            batch.slot, batch.previous = self.slots.carry(group, batch.step)
        self.prompts.launch(chunks)
        self.flying.append(batch)
        self.step += 1
        return batch

    def complete(self, now: int, batch: Batch, steps: int = 1) -> list[Sequence]:
        """Account for the end of what was decided first; return the sequences that finished.

        Parameters
        ----------
        now : int
        batch : Batch
        steps : int
            How many steps of it were taken in a row; more than one only of decodes that are all that runs.
        """
        self.flying.pop(0)
        group = batch.group
        finished: list[Sequence] = []
        if group is not None:
            self.decodes_flying -= 1
            if steps > 1:
                self.repeat(batch, steps)
            finished = group.advance(steps)
            for sequence in finished:
                self._finish(now, sequence, group.last_step)
            if group.count:
                self.ready.groups.append(group)
        for sequence, count in batch.chunks:
            if self._compute(now, batch.step, sequence, count):
                finished.append(sequence)
        return finished

    def repeat(self, batch: Batch, steps: int) -> None:
        """Note that a batch of decodes was carried by ``steps`` steps in a row, not only by one."""
        assert batch.group is not None
        self.free[0] -= batch.group.growth_after_first(steps)
        self._repeated(batch.group, batch.step + steps - 1)

    def _repeated(self, group: DecodeGroup, last: int) -> None:
        self.step = last + 1
        self.slots.repeat(group, last)

    def affordable(self, group: DecodeGroup, limit: int) -> int:
        """Return how many of the next ``limit`` steps of a group have their blocks."""
        return group.affordable(limit, self.free[0])

    def _compute(self, now: int, step: int, sequence: Sequence, count: int) -> bool:
        """Account for a prompt chunk; return whether the sequence finished with it."""
        start = sequence.computed
        sequence.computed = computed = start + count
        sampled, finished = 0, False
        if sequence.first_step >= 0:  # computed anew after a preemption
            self.slots.close(sequence, sequence.last_step)
        left = sequence.prompt_tokens + sequence.generated - computed
        if left == 0:
            self.decoding += 1
            if sequence.generated < sequence.output_tokens:
                sequence.generated += 1
                sampled = 1
            finished = sequence.generated >= sequence.output_tokens
            if finished:
                self._finish(now, sequence, sequence.last_step)
            else:
                self.ready.loose.append(sequence)
        elif left == 1 and sequence.generated:  # the last token of what it computes anew is a decode step
            self.decoding += 1
            self.ready.loose.append(sequence)
        else:
            self.prompts.put_back(sequence)
        self.log.chunk(step, sequence.request, start, count, sampled)
        return finished

    def _finish(self, now: int, sequence: Sequence, last_step: int) -> None:
        self.decoding -= 1
        self.running.remove(sequence)
        self.prompts.part_from(sequence)
        self._release(sequence)
        self.log.fact(now, FINISHED, sequence.request, sequence.generated, self.used)
        if sequence.first_step >= 0:
            self.slots.close(sequence, last_step)

    def _release(self, sequence: Sequence) -> None:
        """Take back the blocks of a sequence."""
        self.free[sequence.owner] += sequence.blocks

    def _careful(self, now: int) -> Batch | None:
        """Let the scheduler decide, on sequences that are up to date: some will give their blocks back."""
        scheduler = self.scheduler
        ready = self.ready.dissolve()
        flying = [*self._flying()]
        for sequence in flying:
            sequence.in_flight = True
        scheduler.decodes_in_flight = self.decodes_flying
        decision = scheduler.schedule(now)
        admitted = {request for _, kind, request, _, _ in scheduler.facts if kind == ADMITTED}
        self.hand_facts()
        decodes = decision.decodes if decision is not None else ()
        chunks = list(decision.prefills) if decision is not None else []
        for sequence, _ in chunks:
            if sequence.request in admitted:
                self.prompts.number(sequence)
        chosen, away = {id(sequence) for sequence in decodes}, {id(sequence) for sequence in flying}
        computing = {id(sequence) for sequence, _ in chunks}
        self.ready.loose = [s for s in ready if s.computed and id(s) not in chosen | computing]
        self.decoding = sum(s.decodes for s in self.running if id(s) not in computing)
        begun = [sequence for sequence in self.running if sequence.computed and not sequence.decodes]
        self.prompts.begun = [sequence for sequence in begun if id(sequence) not in away]
        for sequence in (*flying, *decodes, *(sequence for sequence, _ in chunks)):
            sequence.in_flight = False
        if decision is None:
            return None
        batch = self._launch(self.ready.form(decodes) if decodes else None, chunks)
        batch.steady = False  # who gave way may come back in the next step
        return batch

    def hand_facts(self) -> None:
        """Log what the scheduler decided by itself."""
        scheduler = self.scheduler
        if scheduler.facts:
            for time, kind, request, value, used in scheduler.facts:
                self.log.fact(time, kind, request, value, used)
            scheduler.facts.clear()
            for time, request, owner in scheduler.kept:
                self.log.kept(time, request, owner)
            scheduler.kept.clear()

    def _flying(self) -> Iterable[Sequence]:
        """Yield every sequence in flight, up to date."""
        for batch in self.flying:
            if batch.group is not None:
                yield from batch.group.refresh()
            for sequence, _ in batch.chunks:
                yield sequence

    def stop(self) -> None:
        """Record the episodes that are open at the end of the run; what is in flight has not happened."""
        slots = self.slots
        for batch in self.flying:
            if batch.group is not None:
                slots.close_all(batch.group, batch.previous)
        for group in self.ready.groups:
            slots.close_all(group, group.last_step)
        for sequence in (*self.ready.loose, *self.prompts.begun, *self.waiting):
            slots.close(sequence, sequence.last_step)
        for batch in self.flying:
            for sequence, _ in batch.chunks:
                slots.close(sequence, sequence.last_step)
