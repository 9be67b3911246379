"""Whether all ranks of a stage send alike: each meets nothing but collectives of its own replica, as the others do.

A link may then have two users at a time: the collective of one stage and the send of one rank. Ranks of a stage do
the same at the same time, and where their links are loaded alike they get the same share, bit for bit: the shares of
a link depend on its own users, and sums of two do not depend on their order. So one rank's send stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise

from clustersim.collective.algorithms import Kind
from clustersim.collective.communications import CommTable
from clustersim.replay.prepared import Prepared

Loads = dict[int, tuple[float, ...]]
"""Link → bytes per payload byte of each plan that may use it, 0 where one does not."""


def sends_differ(prepared: Prepared) -> bool:
    """Whether sends of ranks of a stage may meet different things on links, where all ranks join each collective."""
    contention = prepared.contention
    if not (contention.stages or contention.boundaries):
        return False
    used = set(prepared.links_on_the_way)
    for pool in prepared.pools:
        for number in pool.meshes:
            replica = _Replica(prepared, number)
            links = set(replica.links())
            if not used.isdisjoint(links) or replica.sends_differ():
                return True
            used |= links
    return False


class _Replica:
    """What the stages and boundaries of one replica load."""

    def __init__(self, prepared: Prepared, replica: int) -> None:
        comm, pool = prepared.input.comm, prepared.pool_of(replica)
        stages = range(pool.input.plan.pp)
        self.capacity = prepared.input.topology.link_capacity
        self.crowded = not prepared.contention.crowded.isdisjoint((replica, stage) for stage in stages)
        devices = [pool.stage_devices(replica, stage) for stage in stages]
        programs = [pool.programs[replica, stage].values() for stage in stages]
        self.send_classes = [program.template.send_classes for kinds in programs for program in kinds]
        self.ranks = len(devices[0])
        self.stages: list[Loads] = []
        for mine, kinds in zip(devices, programs, strict=True):
            ops = dict.fromkeys(chain.from_iterable(program.collectives for program in kinds))
            self.stages.append(_loads(comm, [(op, tuple(mine[m] for m in members)) for op, members in ops]))
        self.sends = [
            [_loads(comm, [("send", pair)]) for pair in zip(left, right, strict=True)]
            for left, right in pairwise(devices)
        ]

    def links(self) -> Iterable[int]:
        return chain(*self.stages, *chain.from_iterable(self.sends))

    def sends_differ(self) -> bool:
        """Whether two collectives, or two sends, share a link, or ranks load theirs differently."""
        if self.crowded or any(len(some) not in (0, self.ranks) or len(set(some)) > 1 for some in self.send_classes):
            return True
        sent: set[int] = set()
        for loads in chain.from_iterable(self.sends):
            if not sent.isdisjoint(loads):
                return True
            sent.update(loads)
        told = [[sorted(map(self._described, one, one.values())) for one in ranks] for ranks in self.sends]
        return any(one != ranks[0] for ranks in told for one in ranks)

    def _described(self, link: int, loads: tuple[float, ...]) -> tuple[float | int | tuple[float, ...], ...]:
        """Return all that bears on how a send's link is shared."""
        stage, theirs = next(((s, found[link]) for s, found in enumerate(self.stages) if link in found), (-1, ()))
        return loads, float(self.capacity[link]), stage, theirs


def _loads(comm: CommTable, groups: Iterable[tuple[Kind, tuple[int, ...]]]) -> Loads:
    plans = [plan for op, devices in groups for plan in comm.plans(op, devices)]
    found: dict[int, list[float]] = {}
    for number, plan in enumerate(plans):
        for link, load in zip(plan.links.tolist(), plan.load_per_byte.tolist(), strict=True):
            found.setdefault(link, [0.0] * len(plans))[number] = load
    return {link: tuple(loads) for link, loads in found.items()}
