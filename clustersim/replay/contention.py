"""Which communications can meet on a link: decided from the plan, the placement and the routes, before the run.

An *owner* is a set of communications that never overlap among themselves: one rank's sends over a boundary (they
queue), or the collectives of one stage (its streams are in order). A link with two owners can be shared, and what
uses it has to go through the network as events. A stage also disturbs itself where two of its groups without a
common rank use the same link.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from clustersim.graph.program import StageProgram
from clustersim.plan.mesh import Mesh
from clustersim.replay.comm import CommTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Stages and boundaries, as (replica, stage), whose communications can meet others.

    ``shared`` says of each the other owners that it may meet, for people to read.
    """

    stages: frozenset[tuple[int, int]]
    boundaries: frozenset[tuple[int, int]]
    shared: tuple[str, ...]


def find_contention(mesh: Mesh, programs: dict[tuple[int, int], list[StageProgram]], comm: CommTable) -> Contention:
    """Find what can meet on a link.

    Parameters
    ----------
    mesh : Mesh
    programs : dict
        (replica, stage) → its programs, one per kind of step.
    comm : CommTable
    """
    owners: dict[int, list[tuple[str, int, int, int]]] = {}
    selfish: dict[tuple[int, int], str] = {}
    for (replica, stage), found in programs.items():
        devices = mesh.stage_devices(replica, stage)
        groups = _group_links(found, devices, comm)
        links: set[int] = set().union(*groups.values()) if groups else set()
        for link in sorted(links):
            owners.setdefault(link, []).append(("stage", replica, stage, 0))
        for (left, left_links), (right, right_links) in combinations(groups.items(), 2):
            if not set(left) & set(right) and left_links & right_links:
                selfish[replica, stage] = f"its own groups {list(left)} and {list(right)} share a link"
        if stage + 1 < mesh.plan.pp:
            after = mesh.stage_devices(replica, stage + 1)
            for rank, pair in enumerate(zip(devices, after, strict=True)):
                for link in sorted(comm.links("send", pair)):
                    owners.setdefault(link, []).append(("boundary", replica, stage, rank))
    stages: dict[tuple[int, int], None] = dict.fromkeys(selfish)
    boundaries: dict[tuple[int, int], None] = {}
    shared = {f"stage {s} of replica {r}: {why}": None for (r, s), why in selfish.items()}
    for link in sorted(owners):
        if len(owners[link]) < 2:
            continue
        for kind, replica, stage, _ in owners[link]:
            (stages if kind == "stage" else boundaries)[replica, stage] = None
        a, b = owners[link][:2]
        ends = comm.topology.link_ends[link]
        shared[f"{_name(a)} and {_name(b)} can meet on {ends[0]} → {ends[1]}"] = None
    return Contention(stages=frozenset(stages), boundaries=frozenset(boundaries), shared=tuple(shared))


def _group_links(
    programs: list[StageProgram], devices: tuple[int, ...], comm: CommTable
) -> dict[tuple[int, ...], frozenset[int]]:
    """Return the links of every group of local ranks that any program joins."""
    found: dict[tuple[int, ...], frozenset[int]] = {}
    for program in programs:
        template = program.template
        for members, symbol in dict.fromkeys(zip(template.members, template.node_symbol.tolist(), strict=True)):
            if len(members) > 1:
                op = template.symbols[symbol][1]
                links = comm.links(op, tuple(devices[m] for m in members))
                found[members] = found.get(members, frozenset()) | links
    return found


def _name(owner: tuple[str, int, int, int]) -> str:
    kind, replica, stage, rank = owner
    if kind == "stage":
        return f"collectives of stage {stage} of replica {replica}"
    return f"the sends of rank {rank} from stage {stage} of replica {replica}"
