"""How much of the links' capacity a run took: bytes by link, from the plans of collectives, sends and moves of K/V.

A replay that folds undisturbed passes never puts these bytes on links one by one; they follow from what each step
carried. Bytes are those of :class:`~clustersim.collective.price.CommPlan`: what the payload takes of a link's capacity,
the efficiency of the protocol included, so that a link that is never idle is used by 100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.cluster.fault import Fault
from clustersim.cluster.topology import Topology
from clustersim.collective.communications import CommTable
from clustersim.collective.price import CommPlan, choose
from clustersim.graph.program import StageProgram
from clustersim.plan.mesh import Mesh
from clustersim.replay.links.host_copies import host_plan
from clustersim.report.metrics.step_features import StepFeatures
from clustersim.timeline.tables import HOST, Table

Programs = Mapping[tuple[int, int], Mapping[str, StageProgram]]
"""(replica, stage) → kind of step → program."""

BUSIEST = 8
"""Links that a summary names."""


def step_bytes(
    programs: Programs, features: Mapping[tuple[int, str], StepFeatures], mesh: Mesh, comm: CommTable
) -> FloatArray:
    """Return the bytes of capacity that each link gave to collectives and sends of steps, float64 of shape (links,).

    Parameters
    ----------
    programs : Programs
    features : mapping
        (replica, kind) → what steps carried.
    mesh : Mesh
    comm : CommTable
    """
    total = np.zeros(len(comm.topology.link_capacity))
    for (replica, kind), steps in features.items():
        for stage in range(mesh.plan.pp):
            _add_stage(total, programs[replica, stage][kind], steps, mesh, comm, replica, stage)
    return total


def _add_stage(
    total: FloatArray, program: StageProgram, steps: StepFeatures, mesh: Mesh, comm: CommTable, replica: int, stage: int
) -> None:
    template, devices = program.template, mesh.stage_devices(replica, stage)
    for (cls, members), count in program.exchanged.items():
        plans = comm.plans(program.classes[cls].node.communication, tuple(devices[member] for member in members))
        _add(total, plans, _payload(program, steps, cls), count * steps.counts)
    if template.send_classes:
        after = mesh.stage_devices(replica, stage + 1)
        for local, cls in enumerate(template.send_classes):
            plans = comm.plans("send", (devices[local], after[local]))
            _add(total, plans, _payload(program, steps, cls), steps.counts)


def _payload(program: StageProgram, steps: StepFeatures, cls: int) -> FloatArray:
    chosen = program.classes[cls]
    found = steps.amount(chosen.node.amount, chosen.s)
    return np.maximum(found, steps.amount(chosen.node.least, chosen.s)) if chosen.node.least else found


def _add(total: FloatArray, plans: Sequence[CommPlan], payloads: FloatArray, times: Int64Array) -> None:
    """Add what payloads put on links, each so many times, by the plan that each of them takes."""
    sizes, of = np.unique(payloads, return_inverse=True)
    often = np.bincount(of, times, len(sizes))
    if not plans or not len(sizes):
        return
    chosen, _ = choose(plans, sizes)
    for number in np.unique(chosen).tolist():
        mine = chosen == number
        total[plans[number].links] += plans[number].load_per_byte * float((sizes[mine] * often[mine]).sum())


def move_bytes(moves: Table, device_of: Callable[[int], int], comm: CommTable) -> FloatArray:
    """Return the bytes of capacity that each link gave to moves of K/V entries, float64 of shape (links,).

    Those to and from host memory are copies over the links between a device and its host, where it has any.

    Parameters
    ----------
    moves : Table
        Of a timeline.
    device_of : callable
        Global rank → its device.
    comm : CommTable
    """
    total = np.zeros(len(comm.topology.link_capacity))
    between = np.flatnonzero((moves["from_rank"] != HOST) & (moves["to_rank"] != HOST))
    ends = np.stack([moves["from_rank"][between], moves["to_rank"][between]], axis=1)
    pairs, of = np.unique(ends, axis=0, return_inverse=True)
    for number, (source, target) in enumerate(pairs.tolist()):
        mine = between[of.ravel() == number]
        plans = comm.plans("send", (device_of(source), device_of(target)))
        _add(total, plans, moves["bytes"][mine].astype(np.float64), np.ones(len(mine), np.int64))
    for out, here, there in ((True, "from_rank", "to_rank"), (False, "to_rank", "from_rank")):
        copies = np.flatnonzero(moves[there] == HOST)
        if comm.topology.hosts is None:
            continue
        for rank in np.unique(moves[here][copies]).tolist():
            plan = host_plan(comm.topology, device_of(rank), out=out)
            total[plan.links] += plan.load_per_byte * float(moves["bytes"][copies[moves[here][copies] == rank]].sum())
    return total


def capacity_bytes(topology: Topology, faults: Sequence[Fault], start_ns: int, end_ns: int) -> FloatArray:
    """Return what each link could have carried: the integral of its capacity over [start, end).

    A link has no capacity while it has failed, and what a fault leaves of it while it is weak; where faults overlap,
    what they leave is multiplied.

    Parameters
    ----------
    topology : Topology
    faults : sequence of Fault
    start_ns, end_ns : int

    Returns
    -------
    float array of shape (links,)
    """
    lasting_s = np.full(len(topology.link_capacity), (end_ns - start_ns) / NS_PER_S)
    weak = [fault for fault in faults if fault.links]
    told = {one for fault in weak for one in (fault.at_ns, fault.until_ns) if one is not None}
    bounds = [start_ns, *sorted(one for one in told if start_ns < one < end_ns), end_ns]
    for link in sorted({link for fault in weak for link in fault.links}):
        mine = [fault for fault in weak if link in fault.links]
        left = [prod(fault.share for fault in mine if fault.covers(since)) for since in bounds[:-1]]
        lasting_s[link] = float((np.diff(bounds) * left).sum()) / NS_PER_S
    found: FloatArray = topology.link_capacity * lasting_s
    return found


def link_summary(
    topology: Topology, carried: FloatArray, elapsed_ns: int, could: FloatArray | None = None
) -> dict[str, Any]:
    """Return how far links were used: by tier, and the busiest ones.

    Utilisation is the bytes of capacity that were taken over capacity × time, of each directed link; of one that a
    fault weakened, over the integral of the capacity that it had (:func:`capacity_bytes`). ``mean`` is that over the
    links of the tier that carried anything (``used`` of ``links``), ``max`` the highest of one link. ``weakened`` has
    the links that had less, and the share of their capacity × time that there was.

    Parameters
    ----------
    topology : Topology
    carried : float array of shape (links,)
    elapsed_ns : int
    could : float array of shape (links,), optional
        What each could have carried; without it, all that it can.
    """
    whole = topology.link_capacity * (elapsed_ns / NS_PER_S)
    could = whole if could is None else could
    share = np.divide(carried, could, out=np.zeros(len(carried)), where=could > 0)
    tiers = np.array(topology.link_tier)
    by_tier = {}
    for tier in dict.fromkeys(topology.link_tier):
        mine = tiers == tier
        used = mine & (carried > 0)
        by_tier[tier] = {
            "links": int(mine.sum()),
            "used": int(used.sum()),
            "mean": float(share[used].mean()) if used.any() else 0.0,
            "max": float(share[mine].max()),
        }
    busiest = [link for link in np.argsort(-share, kind="stable")[:BUSIEST].tolist() if carried[link] > 0]
    return {
        "tiers": by_tier,
        "busiest": [
            {
                "link": " → ".join(topology.link_ends[link]),
                "tier": topology.link_tier[link],
                "bytes": float(carried[link]),
                "utilisation": float(share[link]),
            }
            for link in busiest
        ],
        "weakened": [
            {
                "link": " → ".join(topology.link_ends[link]),
                "tier": topology.link_tier[link],
                "capacity": float(could[link] / whole[link]),
                "utilisation": float(share[link]),
            }
            for link in np.flatnonzero(could < whole).tolist()
        ],
    }
