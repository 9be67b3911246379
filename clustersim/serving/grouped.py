"""The decisions of :class:`~clustersim.serving.scheduler.Scheduler`, at the cost of what changes and not of what runs.

Decoding sequences are kept in *groups* that advance together (:mod:`clustersim.serving.decode_group`): one group
for each micro-batch in flight, and at most a few that wait. A step that takes a whole group, and perhaps prompts,
is decided with a few comparisons. The scheduler chooses decodes in order of admission, as many as an even share of
the micro-batches; that is the idle group itself unless members came or went, and then it is sorted out anew.

**Where a K/V block is missing** somebody has to give way. Then everybody who is not in flight is brought up to
date, and the scheduler itself decides that step (:meth:`GroupedScheduler._careful`): preemption has one
implementation. So there are three ways to differ from the scheduler, and each has its check: a wrong sum (blocks,
tokens), a wrong order, and a shortage not noticed; ``tests/laws`` lets both decide side by side.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from clustersim.serving.decision import ADMITTED, FINISHED
from clustersim.serving.decode_group import DecodeGroup, by_place
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

Chunks = list[tuple[Sequence, int]]


class Log(Protocol):
    """Takes what is decided."""

    def chunk(self, step: int, request: int, start: int, count: int, sampled: int) -> None:
        """Take a prompt chunk that a step computed."""
        ...

    def decode(self, slot: int, request: int, first_step: int, last_step: int) -> None:
        """Take an episode of decoding."""
        ...

    def fact(self, time: int, kind: int, request: int, value: int, used: int) -> None:
        """Take a fact."""
        ...


class Batch:
    """What a step carries.

    Attributes
    ----------
    group : DecodeGroup or None
        The sequences that decode.
    decodes : int
        How many.
    chunks : list of (Sequence, int)
        Prompt chunks.
    slot, step : int
        Slot of the decodes (−1 without) and number of the (first) step.
    previous : int
        The step that used the slot before: with it end the episodes of decoding that this batch continues.
    steady : bool
        Whether the same decision would be taken again until a sequence finishes, a block is missing or one arrives.
    """

    __slots__ = ("chunks", "decodes", "group", "previous", "slot", "steady", "step")

    def __init__(self, group: DecodeGroup | None, chunks: Chunks, step: int) -> None:
        self.group = group
        self.decodes = 0 if group is None else group.count
        self.chunks = chunks
        self.step = step
        self.slot = -1
        self.previous = -1
        self.steady = True


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
        config = scheduler.config
        self.scheduler = scheduler
        self.log = log
        self.windows = windows
        self.stages = scheduler.stages
        self.overlap = scheduler.decode_overlap
        self.chunked = config.scheduler == "chunked_prefill"
        self.max_tokens = config.max_batch_tokens
        self.max_requests = config.max_batch_requests
        self.waiting = scheduler.waiting
        self.running = scheduler.running
        self.free = scheduler.pool.free
        self.total = scheduler.pool.total
        self.size = scheduler.pool.block_tokens
        self.idle: list[DecodeGroup] = []
        self.loose: list[Sequence] = []
        """Decode, but in no group yet."""
        self.prefilling: list[Sequence] = []
        """Prompts begun, and not in flight."""
        self.decoding = 0
        self.flying: list[Batch] = []
        self.decodes_flying = 0
        self.admissions = 0
        self.step = 0
        self.slots = [-1] * self.stages
        """Last step of each slot."""

    @property
    def used(self) -> int:
        """K/V blocks in use."""
        return self.total - self.free[0]

    def next(self, now: int) -> Batch | None:
        """Decide the next step; None when there is nothing to run."""
        prompts = self.waiting or self.prefilling
        if prompts and not self.chunked:
            alone = self._prompts(now, self.max_tokens, self.free[0])
            if alone is None:
                return self._careful(now)
            if alone:
                return self._launch(None, alone)
        group = self._decodes()
        growth = 0 if group is None else group.phases[group.clock % self.size]
        free = self.free[0] - growth
        if free < 0:
            return self._careful(now)
        if prompts and self.chunked:
            budget = self.max_tokens if group is None else self.max_tokens - group.count
            beside = self._prompts(now, budget, free)
            if beside is None:
                return self._careful(now)
            if beside:
                return self._launch(group, beside)
        if group is None:
            return None
        self.free[0] = free
        return self._launch(group, [])

    def _launch(self, group: DecodeGroup | None, chunks: Chunks) -> Batch:
        batch = Batch(group, chunks, self.step)
        batch.steady = not chunks and batch.decodes == len(self.running)
        if group is not None:
            self.idle.remove(group)
            self.decodes_flying += 1
            self._carry(group, batch)
        if self.prefilling:
            for sequence, _ in chunks:
                if sequence.computed:  # begun before
                    self.prefilling.remove(sequence)
        self.flying.append(batch)
        self.step += 1
        return batch

    def _decodes(self) -> DecodeGroup | None:
        """Return the first ready sequences in order of admission, an even share of all, as a group."""
        idle, loose = self.idle, self.loose
        if not (idle or loose) or (self.decodes_flying and not self.overlap):
            return None
        share = min(-(-self.decoding // self.stages), self.max_tokens)
        if len(idle) == 1:
            group = idle[0]
            if group.count <= share:
                if not loose:
                    return group
                if group.count + len(loose) <= share:
                    self._join(group)
                    return group
            if group.count == share and all(s.place > group.latest for s in loose):
                return group
        elif not idle and len(loose) <= share:
            group = DecodeGroup(self.size, self.windows)
            idle.append(group)
            self._join(group)
            return group
        return self._sorted_out(share)

    def _join(self, group: DecodeGroup) -> None:
        for sequence in self.loose:
            group.join(sequence)
        self.loose.clear()

    def _sorted_out(self, share: int) -> DecodeGroup:
        """Form a group of the first ``share`` ready sequences; the others are loose."""
        ready = self._dissolve()
        group = DecodeGroup(self.size, self.windows)
        for sequence in ready[:share]:
            group.join(sequence)
        self.loose.extend(ready[share:])
        self.idle.append(group)
        return group

    def _dissolve(self) -> list[Sequence]:
        """Take all idle groups apart and return who is ready, up to date, by place."""
        ready = self.loose
        self.loose = []
        for group in self.idle:
            members = group.refresh()
            fresh = [(sequence, sequence.last_step) for sequence in group.fresh]
            for sequence in members:
                sequence.last_step = group.last_step
            for sequence, last_step in fresh:  # this group has not carried it
                sequence.last_step = last_step
            ready.extend(members)
        self.idle = []
        ready.sort(key=by_place)
        return ready

    def _prompts(self, now: int, budget: int, free: int) -> Chunks | None:
        """Choose prompt chunks, those already begun first, then from the queue; None when one begun lacks a block."""
        size = self.size
        chunks: Chunks = []
        for sequence in self.prefilling:
            count = min(sequence.to_compute, budget)
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
        waiting, running = self.waiting, self.running
        while waiting and budget > 0 and len(running) < self.max_requests:
            sequence = waiting[0]
            need = sequence.prompt_tokens + sequence.generated
            count = need if need < budget else budget
            if count < need and not self.chunked and (chunks or need <= self.max_tokens):
                break
            missing = -(-count // size)
            if missing > free:
                break
            free -= missing
            budget -= count
            waiting.popleft()
            running.append(sequence)
            sequence.place = self.admissions
            self.admissions += 1
            sequence.blocks = missing
            self.log.fact(now, ADMITTED, sequence.request, need, self.total - free)
            chunks.append((sequence, count))
        if chunks:
            self.free[0] = free
        return chunks

    def _carry(self, group: DecodeGroup, batch: Batch) -> None:
        """Give the decodes of a step their slot, and open and close episodes of decoding.

        The rule is that of ``timeline.episodes``: the slot is the one that the first sequence of the step used last,
        if no step used it since, else the one used longest ago.
        """
        slots, slot = self.slots, group.slot
        if group.fresh or slot < 0 or slots[slot] != group.last_step:
            slot = self._open(group, batch.step)
        batch.slot = slot
        batch.previous = slots[slot]
        group.slot = slot
        slots[slot] = group.last_step = batch.step

    def _open(self, group: DecodeGroup, step: int) -> int:
        slots, fresh, unbroken = self.slots, group.fresh, group.slot
        whole = len(fresh) == group.count
        slot = 0
        if self.stages > 1:
            first = min([entry[2] for entry in group.finishes], key=by_place)
            last_step = first.last_step if first in fresh else group.last_step
            if first.first_step >= 0 and slots[first.slot] == last_step:
                slot = first.slot
            else:
                slot = min(range(self.stages), key=lambda number: (slots[number], number))
        if not whole and (slot != unbroken or slots[slot] != group.last_step):
            new = {id(sequence) for sequence in fresh}
            carried = [entry[2] for entry in group.finishes if id(entry[2]) not in new]
            for sequence in carried:
                sequence.last_step = group.last_step
            fresh = [*fresh, *carried]
        for sequence in fresh:
            if sequence.first_step >= 0 and (sequence.slot != slot or slots[slot] != sequence.last_step):
                self.close(sequence, sequence.last_step)
            if sequence.first_step < 0:
                sequence.first_step = step
                sequence.slot = slot
        group.fresh = []
        return slot

    def close(self, sequence: Sequence, last_step: int) -> None:
        """Record an episode of decoding, if one is open."""
        if 0 <= sequence.first_step <= last_step:
            self.log.decode(sequence.slot, sequence.request, sequence.first_step, last_step)
        sequence.first_step = -1

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
        group, step = batch.group, batch.step
        finished: list[Sequence] = []
        if group is not None:
            self.decodes_flying -= 1
            if steps > 1:
                self.repeat(batch, steps)
            finished = group.advance(steps)
            for sequence in finished:
                self._finish(now, sequence, group.last_step)
            if group.count:
                self.idle.append(group)
        for sequence, count in batch.chunks:
            start = sequence.computed
            sequence.computed = computed = start + count
            sampled = 0
            if sequence.first_step >= 0:  # computed anew after a preemption
                self.close(sequence, sequence.last_step)
            left = sequence.prompt_tokens + sequence.generated - computed
            if left == 0:
                self.decoding += 1
                if sequence.generated < sequence.output_tokens:
                    sequence.generated += 1
                    sampled = 1
                if sequence.generated >= sequence.output_tokens:
                    self._finish(now, sequence, sequence.last_step)
                    finished.append(sequence)
                else:
                    self.loose.append(sequence)
            elif left == 1 and sequence.generated:  # the last token of what it computes anew is a decode step
                self.decoding += 1
                self.loose.append(sequence)
            else:
                self.prefilling.append(sequence)
                if len(self.prefilling) > 1:
                    self.prefilling.sort(key=by_place)
            self.log.chunk(step, sequence.request, start, count, sampled)
        return finished

    def repeat(self, batch: Batch, steps: int) -> None:
        """Note that a batch of decodes was carried by ``steps`` steps in a row, not only by one."""
        assert batch.group is not None
        self.free[0] -= batch.group.growth_after_first(steps)
        last = batch.step + steps - 1
        self.step = last + 1
        self.slots[batch.slot] = batch.group.last_step = last

    def _finish(self, now: int, sequence: Sequence, last_step: int) -> None:
        self.free[0] += sequence.blocks
        self.decoding -= 1
        self.running.remove(sequence)
        self.log.fact(now, FINISHED, sequence.request, sequence.generated, self.total - self.free[0])
        if sequence.first_step >= 0:
            self.close(sequence, last_step)

    def _careful(self, now: int) -> Batch | None:
        """Let the scheduler decide, on sequences that are up to date: some will give their blocks back."""
        scheduler = self.scheduler
        ready = self._dissolve()
        flying = [*self._flying()]
        for sequence in flying:
            sequence.in_flight = True
        scheduler.decodes_in_flight = self.decodes_flying
        decision = scheduler.schedule(now)
        for fact in scheduler.facts:
            self.log.fact(*fact)
        scheduler.facts.clear()
        decodes = decision.decodes if decision is not None else ()
        chunks = list(decision.prefills) if decision is not None else []
        group = DecodeGroup(self.size, self.windows) if decodes else None
        for sequence in decodes:
            sequence.in_flight = False
            group.join(sequence)  # type: ignore[union-attr]  # there is one exactly when there are decodes
        for sequence, _ in chunks:
            if not sequence.computed:
                sequence.place = self.admissions
                self.admissions += 1
        chosen = {id(sequence) for sequence in decodes}
        self.loose = [sequence for sequence in ready if sequence.computed and id(sequence) not in chosen]
        self.decoding = sum(sequence.decodes for sequence in self.running)
        begun = [sequence for sequence in self.running if sequence.computed and not sequence.decodes]
        away = {id(sequence) for sequence in flying}
        self.prefilling = [sequence for sequence in begun if id(sequence) not in away]
        for sequence in (*flying, *(sequence for sequence, _ in chunks)):
            sequence.in_flight = False
        if group is None and not chunks:
            return None
        if group is not None:
            self.idle.append(group)
        batch = self._launch(group, chunks)
        batch.steady = False  # who gave way may come back in the next step
        return batch

    def _flying(self) -> Iterable[Sequence]:
        """Yield every sequence in flight, up to date."""
        for batch in self.flying:
            if batch.group is not None:
                yield from batch.group.refresh()
            for sequence, _ in batch.chunks:
                yield sequence

    def stop(self) -> None:
        """Record the episodes that are open at the end of the run; what is in flight has not happened."""
        for batch in self.flying:
            if batch.group is not None:
                self._close_all(batch.group, batch.previous)
        for group in self.idle:
            self._close_all(group, group.last_step)
        for sequence in (*self.loose, *self.prefilling, *self.waiting):
            self.close(sequence, sequence.last_step)
        for batch in self.flying:
            for sequence, _ in batch.chunks:
                self.close(sequence, sequence.last_step)

    def _close_all(self, group: DecodeGroup, last_step: int) -> None:
        fresh = {id(sequence) for sequence in group.fresh}
        for _, _, sequence in sorted(group.finishes):
            self.close(sequence, sequence.last_step if id(sequence) in fresh else last_step)
