"""A lane of one of several replicas that share their experts: it decides alone, and takes each step with all others.

How long steps take, and when the next one begins, is for :mod:`clustersim.replay.lanes.clocks.lockstep_clock` to find
out.
"""

from __future__ import annotations

from clustersim.graph.prices.lockstep_prices import Brought
from clustersim.replay.events import decode_run
from clustersim.replay.lanes.lane import Lane
from clustersim.replay.lanes.log import StepLog
from clustersim.replay.lanes.prices import prompt_sums, within
from clustersim.serving.grouped.batch import Batch
from clustersim.serving.sequence import Sequence


class MemberLane(Lane):
    """One replica, and what it brings to the step or run of steps under way.

    Attributes
    ----------
    batch : Batch or None
        None: it has nothing to run, and brings a dummy batch.
    ended : bool
        Whether its step has ended with nobody's last token, and is accounted for as the next one begins.
    ends : list of int
        When the steps under way end.
    """

    log: StepLog
    batch: Batch | None = None
    ended = False
    row: tuple[int, ...] = ()
    new = context = 0
    """New prompt tokens of that step, and its context."""
    ends: list[int]

    def arrive(self, now: int, sequence: Sequence) -> None:
        """Queue a request; the run of steps under way was priced up to this instant."""
        del now
        self._queue(sequence)

    def begin(self, now: int, until: int) -> None:
        """Decide what to bring to the next step."""
        del until
        scheduler, batch = self.scheduler, self.batch
        if self.ended:
            assert batch is not None
            self.ended = False
            if scheduler.repeats and scheduler.again(batch):
                batch.steady = True
                return
            scheduler.complete(now, batch)
        self.batch = scheduler.next(now)

    @property
    def is_steady(self) -> bool:
        """Whether it would decide the same again until a request ends or arrives, or a block is missing."""
        if self.batch is None:
            return not (self.scheduler.waiting or self.scheduler.running)
        return self.batch.steady

    @property
    def reach(self) -> int:
        """Steps up to which that is so at most."""
        if self.batch is None or self.batch.group is None:
            return decode_run.MAX_RUN
        group = self.batch.group
        limit = min(group.left, decode_run.MAX_RUN)
        return limit if limit == 1 else min(self.scheduler.affordable(group, limit), group.unchanged_windows)

    def brings(self, batch: Batch, windows: tuple[int, ...]) -> Brought:
        """Return what a step is priced by that has this batch, without a window and within each of some."""
        group, chunks, decodes = batch.group, batch.chunks, batch.decodes
        attended, growth = (0, 0) if group is None else (group.computed + decodes, decodes)
        if not chunks and not windows:
            self.new, self.context = 0, attended
            return Brought((decodes, decodes, 0, decodes, 0, 0, 0, 0, attended), (growth,))
        new, context, pairs, keys = prompt_sums(chunks)
        self.new, self.context = new, context + attended
        counts = new + decodes, len(chunks) + decodes, new, decodes, context, context + new, keys, pairs, attended
        if not windows:
            return Brought(counts, (growth,))
        grows = {} if group is None else {one.window: one.growth for one in group.windows}
        near = [count for window in windows for count in within(window, chunks, group)]
        return Brought((*counts, *near), (growth, *[grows.get(one, 0) for one in windows]))

    def launch(self, now: int, kind: int, ends: list[int]) -> None:
        """Note the step, or run of steps, of a kind that begins now."""
        self.ends = ends
        scheduler, batch = self.scheduler, self.batch
        if batch is None:
            scheduler.step += 1
            nothing = 0, 0, 0, 0
            self.row = now, kind, -1, *nothing, len(scheduler.waiting), len(scheduler.running), scheduler.used
            return
        decodes = batch.decodes
        self.row = (
            now, kind, batch.slot, len(batch.chunks) + decodes, self.new, decodes, self.context, len(scheduler.waiting),
            len(scheduler.running), scheduler.used,
        )  # fmt: skip

    def land(self) -> list[Sequence]:
        """Account for all steps under way; return the requests that end with them."""
        now, steps, batch = self.ends[-1], len(self.ends), self.batch
        self.log.steps(self.row, steps, now)
        if batch is None:
            self.scheduler.step += steps - 1
            return []
        if steps == 1 and not batch.chunks and batch.group is not None and batch.group.left > 1:
            self.ended = True
            return []
        return self._complete(now, batch, steps)

    def stop_after(self, steps: int) -> None:
        """Record so many of the steps under way, which have ended at the horizon, and the episodes that are open."""
        batch = self.batch
        if steps:
            self.log.steps(self.row, steps, self.ends[steps - 1])
            if batch is not None:
                batch.previous = batch.step + steps - 1
        self.scheduler.stop()
