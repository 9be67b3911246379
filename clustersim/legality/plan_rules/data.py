"""DP-1: every replica is complete, each of its ranks on a device of its own, and all that a plan states are used."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from clustersim.legality.deployment import Deployment
from clustersim.legality.layout import Layout
from clustersim.legality.plan_rules.tensor import head_divisors
from clustersim.legality.repair.candidates import Fault, Finding, Repair, degree_change, degree_words
from clustersim.plan.parallel import ParallelPlan
from clustersim.units import plural


def fits(plan: ParallelPlan, num_devices: int, cluster: str = "the cluster") -> str | None:
    """Say that a plan has more ranks than there are devices; None when it has not."""
    if plan.world <= num_devices:
        return None
    degrees = f"dp {plan.dp} × pp {plan.pp} × sp {plan.sp.degree} × tp {plan.tp}"
    return f"{degrees} = {plan.world} ranks, but {cluster} has {plural(num_devices, 'device')}"


def complete(deployment: Deployment, layout: Layout) -> Finding:
    """DP-1: the replicas have all their ranks, and no two ranks share a device."""
    del layout
    return placed(deployment)


def placed(deployment: Deployment) -> Finding:
    """Judge what DP-1 says, which takes no look at what each rank holds."""
    plan = deployment.plan
    too_large = fits(plan, deployment.num_devices, deployment.cluster)
    faults = []
    if too_large is not None:
        faults.append(
            Fault(
                where=too_large_path(plan, deployment.num_devices),
                message=too_large,
                advice="use a larger topology",
                repairs=lambda: _smaller(deployment),
            )
        )
    faults += [*_stated_faults(deployment), *_placement_faults(deployment)]
    return Finding(looked_at=plan.world, faults=tuple(faults))


def _stated_faults(deployment: Deployment) -> Iterator[Fault]:
    """Yield a fault where the degrees make more or fewer ranks than the plan states to use devices."""
    plan = deployment.plan
    if plan.devices is None or plan.devices == plan.world:
        return
    degrees = f"dp {plan.dp} × pp {plan.pp} × sp {plan.sp.degree} × tp {plan.tp}"
    yield Fault(
        where="plan.devices",
        message=f"the plan states {plural(plan.devices, 'device')} and uses {plan.world}: {degrees}",
        advice="use as many as the degrees make",
        repairs=lambda: _as_stated(deployment, plan.devices or 1),
    )


def _as_stated(deployment: Deployment, stated: int) -> Iterator[Repair]:
    """Yield each degree that alone makes as many ranks as are stated, then the number that there are."""
    plan = deployment.plan
    now = {"dp": plan.dp, "pp": plan.pp, "tp": plan.tp, "sp": plan.sp.degree}
    for name, degree in now.items():
        wanted, left = divmod(stated * degree, plan.world)
        if not left:
            change = degree_change(deployment, **{name: wanted})
            yield Repair(text=degree_words(change), change=change, kind=name)
    change = (("plan.devices", plan.world),)
    yield Repair(text=f"plan.devices {plan.world}", change=change, kind="devices")


def too_large_path(plan: ParallelPlan, num_devices: int) -> str:
    """Return the degree to blame: the outermost one without which the plan would fit."""
    if plan.replica_ranks <= num_devices:
        return "plan.dp"
    if plan.stage_ranks <= num_devices:
        return "plan.pp"
    return "plan.sp" if plan.tp <= num_devices else "plan.tp"


def _smaller(deployment: Deployment) -> Iterator[Repair]:
    """Yield one smaller degree where that alone fills the cluster as well as anything; else what fills it most."""
    plan, devices = deployment.plan, deployment.num_devices
    now = {"dp": plan.dp, "pp": plan.pp, "tp": plan.tp, "sp": plan.sp.degree}
    heads = [degree for degree in head_divisors(deployment) if degree <= plan.tp]
    halves = {name: _halves(degree, devices) for name, degree in now.items()} | {"tp": heads}
    several = [dict(zip(now, degrees, strict=True)) for degrees in product(*halves.values())]
    single = []
    for name, degree in now.items():
        room = devices * degree // plan.world
        largest = [value for value in heads if value <= room][-1:] if name == "tp" else [min(degree, room)]
        single += [now | {name: value} for value in largest if value >= 1]
    fitting = [degrees for degrees in several if prod(degrees.values()) <= devices]
    most = max(prod(degrees.values()) for degrees in (*single, *fitting))
    for degrees in single:
        if prod(degrees.values()) == most or degrees["dp"] != plan.dp:
            yield _resized(deployment, now, degrees, kind="single", last_resort=False)
    largest_first = sorted(
        [*single, *fitting], key=lambda degrees: (-prod(degrees.values()), *_preference(now, degrees))
    )
    for degrees in largest_first:
        yield _resized(deployment, now, degrees, kind="several", last_resort=True)


def _halves(degree: int, most: int) -> list[int]:
    """Return a degree, its half, a quarter and so on down to 1, rounded up, of these the ones up to ``most``."""
    found = dict.fromkeys(-(-degree >> shift) for shift in range(degree.bit_length() + 1))
    return [value for value in found if value <= most]


def _preference(now: dict[str, int], degrees: dict[str, int]) -> tuple[int, int]:
    """Order equally large plans: the larger tp first, then fewer changes."""
    return -degrees["tp"], sum(degrees[name] != now[name] for name in now)


def _resized(
    deployment: Deployment, now: dict[str, int], degrees: dict[str, int], *, kind: str, last_resort: bool
) -> Repair:
    new = {name: degree for name, degree in degrees.items() if degree != now[name]}
    change = degree_change(deployment, **new)
    kind = kind if last_resort else next(iter(new))
    return Repair(text=degree_words(change), change=change, kind=kind, last_resort=last_resort)


def _placement_faults(deployment: Deployment) -> Iterator[Fault]:
    plan, devices = deployment.plan, deployment.num_devices
    if plan.placement is None:
        return

    def fault(message: str, where: str = "plan.placement") -> Fault:
        return Fault(
            where=where,
            message=message,
            advice=f"give each of the {plan.world} ranks a device of its own",
            repairs=lambda: [Repair(text="packed", change=(("plan.placement", "packed"),))],
        )

    placed = len(plan.placement)
    if placed < plan.world:
        replica, ranks = divmod(placed, plan.replica_ranks)
        yield fault(
            f"places {placed} of {plan.world} ranks, so replica {replica} has {ranks} of its {plan.replica_ranks}"
        )
    elif placed > plan.world:
        yield fault(f"places {plural(placed, 'rank')}, but the plan has {plan.world}")
    ranks_on: dict[int, list[int]] = {}
    for rank, device in enumerate(plan.placement):
        ranks_on.setdefault(device, []).append(rank)
        if not 0 <= device < devices:
            message = f"rank {rank} is on device {device}, but {deployment.cluster} has 0 … {devices - 1}"
            yield fault(message, f"plan.placement[{rank}]")
    if plan.world > devices:
        return  # then devices are bound to be taken twice
    for device, sharing in ranks_on.items():
        if len(sharing) > 1:
            message = f"ranks {', '.join(map(str, sharing))} are all on device {device}"
            yield fault(message, f"plan.placement[{sharing[1]}]")
