"""Static batching: what waits becomes a batch, and nothing joins it until all of it has finished.

Serving before continuous batching (Yu et al., "Orca", OSDI 2022, section 3.1, names its cost). Every member's place
and all the K/V blocks that it will ever need are set aside when the batch is made up, so nothing is preempted. A
sequence that has finished leaves; engines that go on to compute padding for it take longer than this.
"""

from __future__ import annotations

from typing import Final

from clustersim.serving.config import ServingConfig
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.decision import Decision
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence

BEFORE_ALL: Final = -1
"""Where ranks of a queue begin that belong to a batch; others begin with 0 or more."""


class StaticScheduler(Scheduler):
    """One batch after the other; the parameters are those of :class:`~tests.oracle.serving.scheduler.Scheduler`."""

    def __init__(self, config: ServingConfig, pool: BlockPool, *, stages: int = 1, decode_overlap: bool = True) -> None:
        super().__init__(config, pool, stages=stages, decode_overlap=decode_overlap)
        self.owners: dict[int, int] = {}
        """Members of the batch that are still waiting: request → whose pool keeps it."""

    def _decide(self, now: int) -> Decision:
        if not self.running and (not self.waiting or self.waiting[0].request not in self.owners):
            self._make_up()  # anew where one that comes before its members joined the queue after they were chosen
        prefills = self._prefills(now, self.config.max_batch_tokens, [], whole=True)
        decodes = [] if prefills else self._decodes(now, self.config.max_batch_tokens)
        steady = not prefills and self.stages == 1 and len(decodes) == len(self.running)
        return Decision(decodes=tuple(decodes), prefills=tuple(prefills), steady=steady)

    def _make_up(self) -> None:
        self.owners.clear()
        left = list(self.pool.free)
        members = []
        for sequence in self.waiting:
            needed = self._whole(sequence)
            owner = max(range(len(left)), key=lambda one: (left[one], -one))
            if len(self.owners) == self.config.max_batch_requests or needed > left[owner]:
                break
            left[owner] -= needed
            self.owners[sequence.request] = owner
            members.append(sequence)
        for place, sequence in enumerate(members):  # those that come later go behind them, whatever their rank
            self.waiting.remove(sequence)
            sequence.rank = (BEFORE_ALL, place, sequence.request)
            self.waiting.add(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue, and out of the batch."""
        self.owners.pop(sequence.request, None)
        super().withdraw(sequence)

    def _admits(self, sequence: Sequence) -> bool:
        return sequence.request in self.owners

    def _owner(self, sequence: Sequence) -> int:
        return self.owners[sequence.request]

    def _admit(self, now: int, sequence: Sequence) -> None:
        del self.owners[sequence.request]
        super()._admit(now, sequence)
