"""A chain on slow devices, or over weak links: what each instance takes longer, and what single ranks do meanwhile.

What a pass suffers is settled when it starts (``replay.slowdown``). Where its operators form a chain whose collectives
all ranks share, nothing of it has to be an event then: kernels take what the slowest rank takes, since the others wait
for it at the next collective, and a collective over weak links takes what its plan says of them. The replay by
operators (``Pipeline._start_by_operators``) gives the same times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from clustersim.clock import Int64Array
from clustersim.collective.communications import CommTable
from clustersim.graph.batch import Features
from clustersim.graph.blueprint import STREAMS
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.graph.program import StageProgram
from clustersim.replay.events.chain import ChainShape
from clustersim.replay.slowdown import Slowdown

_COMPUTE = STREAMS.index("compute")


class ChainTimes(Protocol):
    """A pass of a chain."""

    def instance_times(self) -> tuple[Int64Array, Int64Array]:
        """Return start and end of every instance."""
        ...


class SlowChain:
    """What a slowdown makes of one pass that is a chain.

    Parameters
    ----------
    shape : ChainShape
    program : StageProgram
    slowdown : Slowdown
    by_class : int64 array of shape (classes,)
        Durations without it.
    """

    def __init__(self, shape: ChainShape, program: StageProgram, slowdown: Slowdown, by_class: Int64Array) -> None:
        self.shape = shape
        self.program = program
        self.slowdown = slowdown
        self.by_class = by_class
        self.alone = by_class[shape.instance_class]

    def longer(self, comm: CommTable, devices: Sequence[int], features: Features) -> Int64Array:
        """Return how much longer each instance holds the pass up, int64 of shape (instances,).

        Parameters
        ----------
        comm : CommTable
        devices : sequence of int
            Of the ranks.
        features : Features
            Of the step: what communications carry.
        """
        slow = self.slowdown.slow
        slowest = max(slow, key=lambda rank: slow[rank], default=None)
        found: Int64Array = self._of_rank(slowest) - self.alone
        if self.slowdown.shares:
            found[self.shape.joins] += self._weak(comm, devices, features)
        return found

    def _weak(self, comm: CommTable, devices: Sequence[int], features: Features) -> Int64Array:
        """Return how much longer each collective takes over links as they are."""
        groups, of = self.shape.groups
        found = []
        for cls, members in groups:
            payload = payload_bytes(self.program, features, cls)
            group = tuple([devices[member] for member in members])
            plan = comm.chosen(self.program.classes[cls].node.communication, group, payload)
            alone = int(self.by_class[cls])
            found.append(self.slowdown.communication(plan, payload, alone)[1] - alone)
        longer: Int64Array = np.array(found, np.int64)[of]
        return longer

    def _of_rank(self, rank: int | None) -> Int64Array:
        """Return what each instance takes on a local rank, collectives as if no link were weak."""
        found = self.alone.copy()
        if rank not in self.slowdown.slow:
            return found
        template = self.program.template
        works = template.instance_stream == _COMPUTE
        works[self.shape.joins] = False
        took = self.by_class.copy()
        for cls in np.flatnonzero(np.bincount(template.instance_class[works])).tolist():
            took[cls] = self.slowdown.kernel_ns(rank, int(took[cls]))
        return np.where(works, took[template.instance_class], found)

    def left(self, run: ChainTimes) -> list[int]:
        """Return when each rank has done the last of its work, of a pass that meets nothing, as it begins."""
        found = [int(self._times(run, None)[1][-1])] * self.program.template.ranks
        for rank in self.slowdown.slow:
            found[rank] = int(self._times(run, rank)[1][-1])
        return found

    def node_times(self, run: ChainTimes) -> tuple[Int64Array, Int64Array]:
        """Return start and end of every node of a pass: ranks that are not the slowest wait at the next collective."""
        template = self.program.template
        if SlowChain not in template.made:
            template.made[SlowChain] = np.array([members[0] for members in template.members], np.int64)
        first = template.made[SlowChain]
        others = None if len(self.slowdown.slow) == template.ranks else self._times(run, None)
        starts, ends = np.empty((2, len(first)), np.int64) if others is None else _at(others, template.node_instance)
        for rank in self.slowdown.slow:
            mine = np.flatnonzero(first == rank)
            starts[mine], ends[mine] = _at(self._times(run, rank), template.node_instance[mine])
        return starts, ends

    def _times(self, run: ChainTimes, slow: int | None) -> tuple[Int64Array, Int64Array]:
        """Return start and end of each instance on a slow rank, or on those that are not."""
        begin, end = run.instance_times()
        first, took = self.shape.first, self._of_rank(slow)
        joins = self.shape.joins
        took[joins] = end[joins] - begin[joins]
        passed = np.cumsum(took) - took
        starts: Int64Array = np.repeat(begin[first] - passed[first], self.shape.many) + passed
        return starts, starts + took


def _at(times: tuple[Int64Array, Int64Array], instances: Int64Array) -> tuple[Int64Array, Int64Array]:
    return times[0][instances], times[1][instances]
