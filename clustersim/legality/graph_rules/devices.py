"""RUN-1, what a graph says of its devices: each rank is on one, and no two are on the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clustersim.legality.finding import NOTHING, Fault, Finding
from clustersim.legality.graph_rules.views.graph import GraphView

FIX: Final = "list a device of its own for every rank, or leave the devices out"


def on_devices(view: GraphView) -> Finding:
    """Judge the list of devices of a graph, by rank: of one replica, or of all."""
    if view.devices is None:
        return NOTHING
    messages = [*_miscounted(view, view.devices), *_missing(view.devices), *_shared(view.devices)]
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
