"""The grouped scheduler where each SP rank keeps whole sequences: a pool of K/V blocks for each of these owners."""

from __future__ import annotations

from operator import lt, sub

from clustersim.serving.grouped.batch import Batch, Chunks
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.log import Log
from clustersim.serving.grouped.owner_group import OwnerGroup
from clustersim.serving.grouped.owner_queue import OwnerQueue
from clustersim.serving.grouped.scheduler import GroupedScheduler
from clustersim.serving.scheduler import Scheduler


class OwnerScheduler(GroupedScheduler):
    """One replica's queue, batch and K/V pools.

    Parameters
    ----------
    scheduler : Scheduler
    log : Log
    windows : tuple of int
    """

    prompts: OwnerQueue

    def __init__(self, scheduler: Scheduler, log: Log, windows: tuple[int, ...] = ()) -> None:
        super().__init__(scheduler, log, windows)
        owners = len(self.free)
        self.prompts = OwnerQueue(scheduler, log)
        self.ready.new_group = lambda: OwnerGroup(self.size, windows, owners)
        self.none = [0] * owners

    def next(self, now: int) -> Batch | None:
        """Decide the next step; None when there is nothing to run."""
        prompts = self.prompts if self.waiting or self.prompts.begun else None
        if prompts is not None and not self.chunked:
            alone = prompts.choose_beside(now, self.max_tokens, self.none)
            if alone is None:
                return self._careful(now)
            if alone:
                return self._launch(None, alone)
        group = self._decodes()
        growths = group.growths() if isinstance(group, OwnerGroup) else self.none
        if any(map(lt, self.free, growths)):
            return self._careful(now)
        if prompts is not None and self.chunked:
            budget = self.max_tokens if group is None else self.max_tokens - group.count
            beside = prompts.choose_beside(now, budget, growths)
            if beside is None:
                return self._careful(now)
            if beside:
                return self._launch(group, beside)
        elif group is not None:
            self.free[:] = map(sub, self.free, growths)
        return None if group is None else self._launch(group, [])

    def _launch(self, group: DecodeGroup | None, chunks: Chunks) -> Batch:
        batch = super()._launch(group, chunks)
        if self.waiting and self.prompts.keeps_room:  # another owner may become the emptiest, with room for it
            batch.steady = False
        return batch
