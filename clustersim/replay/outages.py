"""Which replicas faults take down, and when: those with a rank on a failed device, or that may use a failed link.

Routes don't change, so a replica whose collectives or sends may use a failed link is down as long as the link is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from clustersim.clock import NS_PER_S
from clustersim.cluster.fault import Fault
from clustersim.collective.communications import CommTable
from clustersim.graph.program import StageProgram
from clustersim.plan.mesh import Mesh
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A replica that is down in [at, until), because of what ``cause`` names; ``until_ns`` None: for good."""

    replica: int
    at_ns: int
    until_ns: int | None
    loses: bool
    cause: str = "something"

    @property
    def words(self) -> str:
        """What failed when."""
        return f"{self.cause}, which replica {self.replica} needs, failed at {self.at_ns / NS_PER_S:g} s"

    def why_lost(self, *, at_once: bool) -> str:
        """Return why a request is lost that was at the replica, or that waited for one to come back."""
        return f"{self.words}, and {'what it served was lost' if at_once else 'nothing took it over'}"


ALL_FAILED: Final = "every replica has failed, and none comes back"
NO_DECODERS: Final = "every decode replica has failed, and none comes back"
"""Why a request is rejected then."""


def outages(
    faults: Sequence[Fault], mesh: Mesh, links_of: Callable[[int], frozenset[int]], first_replica: int = 0
) -> tuple[Outage, ...]:
    """Return the outages of all replicas of a mesh, in order of replicas and instants.

    Parameters
    ----------
    faults : sequence of Fault
    mesh : Mesh
    links_of : callable
        Replica → every link that it may use; asked for links that fail only.
    first_replica : int
        Number of the first one.
    """
    found = []
    for fault in faults:
        if not fault.fails:
            continue
        for replica in range(mesh.plan.dp):
            ranks = {device for stage in range(mesh.plan.pp) for device in mesh.stage_devices(replica, stage)}
            uses = links_of(first_replica + replica) if fault.links else frozenset[int]()
            hit = not ranks.isdisjoint(fault.devices) or not uses.isdisjoint(fault.links)
            if hit:
                found.append(
                    Outage(
                        replica=first_replica + replica,
                        at_ns=fault.at_ns,
                        until_ns=fault.until_ns,
                        loses=fault.loses,
                        cause=fault.name,
                    )
                )
    return merged(found)


def merged(found: Sequence[Outage]) -> tuple[Outage, ...]:
    """Return outages of which no two of a replica overlap or touch; what is lost depends on what fails first."""
    whole: list[Outage] = []
    for outage in sorted(found, key=lambda one: (one.replica, one.at_ns, not one.loses)):
        last = whole[-1] if whole else None
        if last is None or last.replica != outage.replica or _ends_before(last, outage.at_ns):
            whole.append(outage)
        elif last.until_ns is not None and (outage.until_ns is None or outage.until_ns > last.until_ns):
            whole[-1] = replace(last, until_ns=outage.until_ns)
    return tuple(whole)


def _ends_before(outage: Outage, instant: int) -> bool:
    return outage.until_ns is not None and outage.until_ns < instant


def links_of_stage(
    mesh: Mesh, programs: Sequence[StageProgram], comm: CommTable, replica: int, stage: int
) -> frozenset[int]:
    """Return every link that the collectives of a stage, or its sends to the next one, may use."""
    devices = mesh.stage_devices(replica, stage)
    groups = {(op, members) for program in programs for op, members in program.collectives}
    found: set[int] = set()
    for op, members in groups:
        found |= comm.links(op, tuple(devices[member] for member in members))
    if stage + 1 < mesh.plan.pp:
        for pair in zip(devices, mesh.stage_devices(replica, stage + 1), strict=True):
            found |= comm.links("send", pair)
    return frozenset(found)
