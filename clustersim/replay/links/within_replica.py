"""Which replicas' sends may meet nothing but their own stages' collectives, alike on all ranks: found before the run.

A link may then have two users at a time: the collective of one stage and the send of one rank. Ranks of a stage do
the same at the same time, and where their links are loaded alike they get the same share, bit for bit: the shares of
a link depend on its own users, and sums of two do not depend on their order. So one rank's send stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise
from typing import Final

from clustersim.collective.algorithms import Kind
from clustersim.collective.communications import CommTable
from clustersim.graph.prices.counts import COUNTS
from clustersim.graph.program import StageProgram
from clustersim.replay.events.pass_program import contraction_is_exact
from clustersim.replay.prepared import Prepared
from clustersim.values import dataclass

PAYLOAD_COUNTS: Final = 4
"""Payloads depend on the first so many of the counts that a step is told by: tokens, sequences, and which of both."""

Loads = dict[int, tuple[float, ...]]
"""Link → bytes per payload byte of each plan that may use it, 0 where one does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLinks:
    """Per boundary of a replica: the stages whose collectives its sends may meet.

    Parameters
    ----------
    meets : tuple of tuple of int
    obstacle : str
        Why sends and collectives that meet have to be events; empty when they need not.
    """

    meets: tuple[tuple[int, ...], ...]
    obstacle: str


Users = dict[int, set[int]]
"""Link → the replicas that may use it, and :data:`ON_ITS_WAY` where K/V between replicas, or to a host, may."""
ON_ITS_WAY: Final = -1


def users_of(prepared: Prepared) -> Users:
    """Return who may use which links; replicas in lockstep are one, whose number is that of the first."""
    found: Users = {}
    for pool in prepared.pools:
        for replica in pool.meshes:
            for link in _Replica(prepared, replica).links():
                found.setdefault(link, set()).add(replica)
    for link in prepared.links_on_the_way:
        found.setdefault(link, set()).add(ON_ITS_WAY)
    return found


def find_shared_links(prepared: Prepared, replica: int, users: Users) -> SharedLinks:
    """Analyse plan, placement and routes of a replica."""
    stages = range(prepared.pool_of(replica).input.plan.pp)
    programs = [program for at in stages for program in prepared.pool_of(replica).programs[replica, at].values()]
    if not prepared.contention.crowded.isdisjoint((replica, stage) for stage in stages):
        return _refused("collectives can meet on a link")
    split = prepared.pool_of(replica).input.plan.sp.degree > 1
    if split and not all(map(_in_turn, programs)):
        return _refused("communications can meet on a link, and not all SP ranks join each")
    if not split and not all(contraction_is_exact(program) and _whole_groups(program) for program in programs):
        return _refused("communications can meet on a link, and not all ranks of a stage do the same")
    if not split and not all(map(told_by_counts, programs)):
        return _refused("communications can meet on a link, and what they carry depends on contexts")
    here = _Replica(prepared, replica)
    others = set().union(*(users[link] for link in here.links())) - {replica}
    if ON_ITS_WAY in others:
        return _refused("K/V on its way can meet communications of a pipeline on a link")
    try:
        found = here.meets(alike=not split)
        return _refused("replicas can meet on a link") if others else SharedLinks(meets=found, obstacle="")
    except _Unlike as reason:
        return _refused(str(reason))


def _refused(why: str) -> SharedLinks:
    return SharedLinks(meets=(), obstacle=why)


class _Unlike(Exception):  # noqa: N818
    """Ranks differ in what they meet."""


def _whole_groups(program: StageProgram) -> bool:
    template = program.template
    everybody = tuple(range(template.ranks))
    same = all(members == everybody for _, members in program.collectives)
    return same and len(set(template.send_classes)) <= 1 and len(template.send_classes) in (0, template.ranks)


def _in_turn(program: StageProgram) -> bool:
    """Whether collectives are of all ranks of a stage, and come one after the other on one stream."""
    template = program.template
    everybody = tuple(range(template.ranks))
    streams = template.instance_stream[[program.classes[cls].comm is not None for cls in template.instance_class]]
    return all(members == everybody for _, members in program.collectives) and len(set(streams.tolist())) <= 1


def told_by_counts(program: StageProgram) -> bool:
    """Whether what the communications of a program carry depends on counts of tokens and sequences alone."""
    amounts = (cls.node.amount for cls in program.classes if cls.comm is not None)
    return all(COUNTS.get(name, PAYLOAD_COUNTS) < PAYLOAD_COUNTS for name, _ in chain.from_iterable(amounts))


def _loads(comm: CommTable, groups: Iterable[tuple[Kind, tuple[int, ...]]]) -> Loads:
    plans = [plan for op, devices in groups for plan in comm.plans(op, devices)]
    found: dict[int, list[float]] = {}
    for number, plan in enumerate(plans):
        for link, load in zip(plan.links.tolist(), plan.load_per_byte.tolist(), strict=True):
            found.setdefault(link, [0.0] * len(plans))[number] = load
    return {link: tuple(loads) for link, loads in found.items()}


class _Replica:
    """What the stages and boundaries of one replica load."""

    def __init__(self, prepared: Prepared, replica: int) -> None:
        inputs, pool = prepared.input, prepared.pool_of(replica)
        self.capacity = inputs.topology.link_capacity
        devices = [pool.stage_devices(replica, stage) for stage in range(pool.input.plan.pp)]
        self.stages: list[Loads] = []
        for stage, mine in enumerate(devices):
            kinds = pool.programs[replica, stage].values()
            ops = dict.fromkeys(chain.from_iterable(program.collectives for program in kinds))
            self.stages.append(_loads(inputs.comm, [(op, tuple(mine[m] for m in members)) for op, members in ops]))
        self.sends = [
            [_loads(inputs.comm, [("send", pair)]) for pair in zip(left, right, strict=True)]
            for left, right in pairwise(devices)
        ]

    def links(self) -> Iterable[int]:
        return chain(*self.stages, *chain.from_iterable(self.sends))

    def meets(self, *, alike: bool) -> tuple[tuple[int, ...], ...]:
        """Return the stages that sends of each boundary may meet.

        Raises
        ------
        _Unlike
            When two sends share a link, or ranks that have to be ``alike`` load theirs differently.
        """
        sent: set[int] = set()
        found = []
        for ranks in self.sends:
            for loads in ranks:
                if not sent.isdisjoint(loads):
                    raise _Unlike("sends can meet on a link")
                sent.update(loads)
            told = [sorted(map(self._described, loads, loads.values())) for loads in ranks if alike]
            if any(one != told[0] for one in told):
                raise _Unlike("communications can meet on a link, and ranks of a stage load theirs differently")
            found.append(
                tuple(
                    s for s, loads in enumerate(self.stages) if any(not loads.keys().isdisjoint(one) for one in ranks)
                )
            )
        return tuple(found)

    def _described(self, link: int, loads: tuple[float, ...]) -> tuple[float | int | tuple[float, ...], ...]:
        """Return all that bears on how a send's link is shared."""
        stage, theirs = next(((s, found[link]) for s, found in enumerate(self.stages) if link in found), (-1, ()))
        return loads, float(self.capacity[link]), stage, theirs
