"""RUN-1, what a graph says of its devices: each rank is on one, no two on the same, and each where the plan places it.

A placement lists devices by number. Where the graph names all devices of its topology, by number, that is held to the
names; else to devices that are numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clustersim.legality.finding import NOTHING, Fault, Finding
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.plan.parallel import ParallelPlan

FIX: Final = "list a device of its own for every rank, the one that plan.placement has, or leave the devices out"


def on_devices(view: GraphView) -> Finding:
    """Judge the list of devices of a graph, by rank: of one replica, or of all."""
    if view.devices is None:
        return NOTHING
    messages = [*_miscounted(view, view.devices), *_missing(view.devices), *_shared(view.devices)]
    messages = messages or list(_elsewhere(view, view.plan, view.devices))
    faults = tuple(Fault(where="devices", message=message, fix=FIX) for message in messages)
    return Finding(looked_at=0, faults=faults)


def _miscounted(view: GraphView, devices: tuple[str | None, ...]) -> Iterator[str]:
    plan, said = view.plan, len(devices)
    if said < view.num_ranks:
        yield f"it lists {said}, so that rank {said} has none"
    elif plan is not None and said not in (plan.replica_ranks, plan.world):
        yield f"it lists {said}, where the plan has {plan.replica_ranks} ranks"


def _missing(devices: tuple[str | None, ...]) -> Iterator[str]:
    if None in devices:
        yield f"rank {devices.index(None)} has none"


def _shared(devices: tuple[str | None, ...]) -> Iterator[str]:
    named = [(rank, device) for rank, device in enumerate(devices) if device is not None]
    first: dict[str, int] = {}
    twice = [(first[device], rank, device) for rank, device in named if first.setdefault(device, rank) != rank]
    if twice:
        one, other, device = twice[0]
        more = f" (and {len(twice) - 1:,} more share one)" if len(twice) > 1 else ""
        yield f"ranks {one} and {other} are both on {device:.60}{more}"


def _elsewhere(view: GraphView, plan: ParallelPlan | None, devices: tuple[str | None, ...]) -> Iterator[str]:
    """Yield the first rank of a replica that is not where the plan has it; of an unknown replica, none may fit."""
    if plan is None or (view.topology is None and (plan.placement is None or not _are_numbers(devices))):
        return
    placement = plan.placement or range(plan.world)
    names = view.topology
    if names is not None and (strange := [device for device in devices if device not in names]):
        yield f"{strange[0]!r:.60} is none of the {len(names):,} devices of the topology"
        return
    if max(placement) >= (most := len(names) if names is not None else 1 << 62):
        yield f"the plan places a rank on device {max(placement)}, and the topology has {most:,}"
        return
    wanted = [names[number] if names is not None else str(number) for number in placement]
    whole = len(devices) == plan.world
    replicas = range(1) if whole else range(plan.dp) if view.whose is None else (view.whose,)
    parts = [wanted[replica * len(devices) : (replica + 1) * len(devices)] for replica in replicas]
    if list(devices) not in parts:
        rank = next(rank for rank, device in enumerate(devices) if device != parts[0][rank])
        yield f"rank {rank} is on {devices[rank]!r:.60}, where the plan places it on {parts[0][rank]!r:.60}"


def _are_numbers(devices: tuple[str | None, ...]) -> bool:
    return all(device is not None and device.isdecimal() for device in devices)
