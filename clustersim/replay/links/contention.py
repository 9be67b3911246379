"""Which communications can meet on a link: decided from the plan, the placement and the routes, before the run.

How links are then shared is :mod:`clustersim.core.flows`' to work out.
An *owner* is a set of communications that never overlap among themselves: one rank's sends over a boundary (they
queue), its copies to the host or from there, or the collectives of one stage (its streams are in order). A link with
two owners can be shared, and what uses it has to go through the network as events. A stage also disturbs itself where
two of its groups without a common rank use the same link.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

from clustersim.cluster.host import HostRouter
from clustersim.collective.communications import CommTable
from clustersim.graph.program import StageProgram
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Stages and boundaries, as (replica, stage), whose communications can meet others.

    Parameters
    ----------
    crowded : frozenset
        Stages whose collectives can meet those of another stage, or of themselves.
    watched : dict
        Of the other stages that can be disturbed: the links on which sends may appear.
    boundaries : frozenset
        Boundaries whose sends can meet anything.
    alone : frozenset of (int, int)
        Pairs of devices between which K/V entries move and meet nothing; a device sends and receives one at a time.
    copies_meet : bool
        Whether copies of K/V to host memory, or from there, can meet anything.
    shared : tuple of str
        What may meet where, for people to read.
    """

    crowded: frozenset[tuple[int, int]]
    watched: dict[tuple[int, int], tuple[int, ...]]
    boundaries: frozenset[tuple[int, int]]
    alone: frozenset[tuple[int, int]]
    copies_meet: bool
    shared: tuple[str, ...]

    @property
    def stages(self) -> frozenset[tuple[int, int]]:
        """Every stage that can be disturbed."""
        return self.crowded | frozenset(self.watched)


Owner = tuple[str, int, int, int]
MOVES: Final[Owner] = ("moves", -1, -1, -1)
"""Moves of K/V entries between replicas, all together: they always go through the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLinks:
    """What of a stage says which links it may use.

    Parameters
    ----------
    programs : tuple of StageProgram
        One per kind of step.
    devices, after : tuple of int
        Of its ranks, and of those of the next stage; none behind the last one.
    """

    programs: tuple[StageProgram, ...]
    devices: tuple[int, ...]
    after: tuple[int, ...]


def find_contention(
    stages_at: Mapping[tuple[int, int], StageLinks],
    comm: CommTable,
    moves: Iterable[tuple[int, int]] = (),
    hosts: HostRouter | None = None,
) -> Contention:
    """Find what can meet on a link.

    Parameters
    ----------
    stages_at : mapping
        (replica, stage) → what it may use.
    comm : CommTable
    moves : iterable of (int, int)
        Pairs of devices between which K/V entries may move from replica to replica.
    hosts : HostRouter or None
        Where K/V is copied to host memory: the ways there.
    """
    owners: dict[int, list[Owner]] = {}
    crowded: dict[tuple[int, int], None] = {}
    shared: dict[str, None] = {}
    for (replica, stage), found in stages_at.items():
        groups = _group_links(found.programs, found.devices, comm)
        links: set[int] = set().union(*groups.values()) if groups else set()
        for link in sorted(links):
            owners.setdefault(link, []).append(("stage", replica, stage, 0))
        for (left, left_links), (right, right_links) in combinations(groups.items(), 2):
            if not set(left) & set(right) and left_links & right_links:
                crowded[replica, stage] = None
                shared[f"groups {list(left)} and {list(right)} of stage {stage} of replica {replica} share a link"] = (
                    None
                )
        for rank, device in enumerate(found.devices if hosts is not None else ()):
            for out in (True, False):
                for link in hosts.host_path(device, out=out):  # type: ignore[union-attr]  # there are none without
                    owners.setdefault(link, []).append(("swap", replica, stage, rank))
        if found.after:
            for rank, pair in enumerate(zip(found.devices, found.after, strict=True)):
                for link in sorted(comm.links("send", pair)):
                    owners.setdefault(link, []).append(("boundary", replica, stage, rank))
    moved = _moved_over(comm, moves)
    for link in sorted(moved):
        owners.setdefault(link, []).append(MOVES)
    watched: dict[tuple[int, int], list[int]] = {}
    copies_meet = False
    boundaries: dict[tuple[int, int], None] = {}
    for link in sorted(owners):
        here = owners[link]
        if len(here) < 2:
            continue
        stages = [owner for owner in here if owner[0] == "stage"]
        for kind, replica, stage, _ in here:
            if kind == "boundary":
                boundaries[replica, stage] = None
            elif kind in ("moves", "swap"):  # what meets others is a flow in the network
                copies_meet |= kind == "swap"
            elif len(stages) > 1:
                crowded[replica, stage] = None
            else:
                watched.setdefault((replica, stage), []).append(link)
        ends = comm.topology.link_ends[link]
        shared[f"{_name(here[0])} and {_name(here[1])} can meet on {ends[0]} → {ends[1]}"] = None
    return Contention(
        crowded=frozenset(crowded),
        watched={stage: tuple(links) for stage, links in watched.items() if stage not in crowded},
        boundaries=frozenset(boundaries),
        alone=_alone(moved, {link for link, here in owners.items() if len(here) > 1}),
        copies_meet=copies_meet,
        shared=tuple(shared),
    )


Pairs = dict[tuple[int, int], None]


def _moved_over(comm: CommTable, moves: Iterable[tuple[int, int]]) -> dict[int, Pairs]:
    """Return which pairs of devices use each link."""
    found: dict[int, Pairs] = {}
    for pair in dict.fromkeys(moves):
        for link in comm.links("send", pair):
            found.setdefault(link, {})[pair] = None
    return found


def _more_than_one(pairs: Pairs) -> bool:
    """Whether pairs of devices have no end in common."""
    return min(len({pair[end] for pair in pairs}) for end in range(2)) > 1


def _alone(moved: Mapping[int, Pairs], shared: Collection[int]) -> frozenset[tuple[int, int]]:
    """Return the pairs of which each link is used by nobody else, or only by pairs with the same end, in turn."""
    meeting: set[tuple[int, int]] = set()
    for link, pairs in moved.items():
        if link in shared or _more_than_one(pairs):
            meeting |= pairs.keys()
    return frozenset(pair for pairs in moved.values() for pair in pairs if pair not in meeting)


def _group_links(
    programs: Sequence[StageProgram], devices: tuple[int, ...], comm: CommTable
) -> dict[tuple[int, ...], frozenset[int]]:
    """Return the links of every group of local ranks that any program joins."""
    found: dict[tuple[int, ...], frozenset[int]] = {}
    for program in programs:
        for op, members in program.collectives:
            links = comm.links(op, tuple(devices[m] for m in members))
            found[members] = found.get(members, frozenset()) | links
    return found


def _name(owner: Owner) -> str:
    kind, replica, stage, rank = owner
    if kind == "moves":
        return "K/V that is handed over"
    if kind == "stage":
        return f"collectives of stage {stage} of replica {replica}"
    if kind == "swap":
        return f"swaps of rank {rank} of stage {stage} of replica {replica}"
    return f"the sends of rank {rank} from stage {stage} of replica {replica}"
