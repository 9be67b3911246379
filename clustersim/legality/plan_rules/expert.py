"""EP-1, EP-6 and EP-8: every expert lives on one EP rank, TP inside it stays in one group, and all ranks exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clustersim.legality.deployment import Deployment
from clustersim.legality.exchange import FIX, apart, words
from clustersim.legality.layout import Layout
from clustersim.legality.repair.candidates import Fault, Finding, Repair, degree_change, degree_repairs
from clustersim.units import plural


def covers(deployment: Deployment, layout: Layout) -> Finding:
    """EP-1: EP touches MoE modules only, experts divide by ep, and each lives on one EP rank (or more, as declared)."""
    ep, moes = deployment.plan.ep, deployment.moes
    if ep.degree == 1 and not isinstance(ep.placement, tuple) and not ep.redundant:
        return Finding(looked_at=0)
    if not moes:
        fault = Fault(
            where="plan.ep",
            message=f"expert parallelism needs experts, and {deployment.model.name} is dense",
            advice="use 1",
            repairs=lambda: [Repair(text="1", change=degree_change(deployment, ep=1))],
        )
        return Finding(looked_at=len(deployment.model.layers), faults=(fault,))
    faults = list(_degree_faults(deployment))
    if not faults:
        for moe in moes:
            faults += list(_placement_faults(deployment, moe.num_experts))
            faults += list(_copy_faults(deployment, moe.num_experts))
    return Finding(looked_at=sum(moe.num_experts for moe in moes), faults=tuple(faults))


def _degree_faults(deployment: Deployment) -> Iterator[Fault]:
    plan, ep = deployment.plan, deployment.plan.ep.degree
    experts = tuple(dict.fromkeys(moe.num_experts for moe in deployment.moes))

    def repairs() -> Iterable[Repair]:
        return degree_repairs(deployment, "ep", deployment.expert_degrees, ep)

    for count in experts:
        if count % ep:
            yield Fault(
                where="plan.ep",
                message=f"{ep} does not divide {count} experts ({deployment.model.name})",
                advice="use 1",
                repairs=repairs,
            )
    if deployment.expert_ranks % ep:
        whole = f"dp {plan.dp} × " if plan.ep.scope == "global" else ""
        yield Fault(
            where="plan.ep",
            message=f"{ep} does not divide the {deployment.expert_ranks} ranks that experts are spread over "
            f"({whole}sp {plan.sp.degree} × tp {plan.tp})",
            advice="use 1",
            repairs=repairs,
        )


def _placement_faults(deployment: Deployment, num_experts: int) -> Iterator[Fault]:
    placement, ep = deployment.plan.ep.placement, deployment.plan.ep.degree
    if not isinstance(placement, tuple):
        return

    def fault(message: str, where: str = "plan.ep.placement") -> Fault:
        names = ("contiguous", "strided")
        return Fault(
            where=where,
            message=message,
            advice="give every expert one EP rank, and every EP rank as many experts",
            repairs=lambda: [Repair(text=name, change=(("plan.ep.placement", name),)) for name in names],
        )

    if len(placement) < num_experts:
        yield fault(
            f"places {plural(len(placement), 'expert')}, so experts {len(placement)} … {num_experts - 1} are nowhere"
        )
    elif len(placement) > num_experts:
        yield fault(f"places {len(placement)} experts, but {deployment.model.name} has {num_experts}")
    outside = [expert for expert, rank in enumerate(placement) if not 0 <= rank < ep]
    for expert in outside:
        where = f"plan.ep.placement[{expert}]"
        yield fault(f"expert {expert} is on EP rank {placement[expert]}, but there are ranks 0 … {ep - 1}", where)
    counts = [placement.count(rank) for rank in range(ep)]
    if not outside and len(placement) == num_experts and len(set(counts)) > 1:
        most, least = counts.index(max(counts)), counts.index(min(counts))
        yield fault(
            f"EP rank {most} has {max(counts)} experts and EP rank {least} has {min(counts)}; each must have "
            f"{num_experts // ep}"
        )


def _copy_faults(deployment: Deployment, num_experts: int) -> Iterator[Fault]:
    """Redundant copies: as many on every EP rank, and never two of one expert on the same."""
    copies, ep = deployment.plan.ep.redundant, deployment.plan.ep.degree
    if not copies:
        return
    most = num_experts * (ep - 1)
    below = copies // ep * ep
    near = {0, min(below, most), min(below + ep, most)}

    def fault(message: str) -> Fault:
        return Fault(
            where="plan.ep.redundant",
            message=message,
            advice="use 0",
            repairs=lambda: [
                Repair(text=str(value), change=(("plan.ep.redundant", value),), distance=abs(value - copies))
                for value in sorted(near)
            ],
        )

    if copies % ep:
        yield fault(f"{copies} copies of experts do not spread evenly over {ep} EP ranks")
    elif copies > most:
        yield fault(
            f"{copies} copies are more than {most}: with those every one of {num_experts} experts is on each rank"
        )


def groups(deployment: Deployment, layout: Layout) -> Finding:
    """EP-6: the ranks that share an expert are one group, and all ranks have the same map of experts."""
    plan, share = deployment.plan, deployment.expert_tp
    if plan.ep.degree == 1 or not deployment.moes:
        return Finding(looked_at=0)
    faults = []
    if deployment.expert_ranks % plan.ep.degree == 0 and _straddles(share, plan.tp, plan.sp.degree * plan.tp):
        faults.append(
            Fault(
                where="plan.ep",
                message=f"each expert is shared by {deployment.expert_ranks} / {plan.ep.degree} = {share} ranks, which "
                f"cut across TP groups of {plan.tp} (sp {plan.sp.degree}, {plan.ep.scope})",
                advice="use 1",
                repairs=lambda: degree_repairs(deployment, "ep", deployment.expert_degrees, plan.ep.degree),
            )
        )
    for num_experts, maps in layout.expert_maps.items():
        odd = next((rank for rank, own in enumerate(maps) if own != maps[0]), None)
        if odd is not None:
            pairs = enumerate(zip(maps[0], maps[odd], strict=False))
            expert = next((expert for expert, (one, other) in pairs if one != other), len(maps[0]))
            message = f"ranks 0 and {odd} of a stage disagree about where expert {expert} of {num_experts} lives"
            faults.append(Fault(where="plan.ep.placement", message=message, advice="give all ranks the same map"))
    looked_at = sum(len(maps) for maps in layout.expert_maps.values())
    return Finding(looked_at=looked_at, faults=tuple(faults))


def exchanges(deployment: Deployment, layout: Layout) -> Finding:
    """EP-8: what brings tokens to experts and back is taken by all ranks that these are spread over."""
    ranks, faults = range(deployment.expert_ranks), []
    stays = (
        () if deployment.plan.ep.sends else (Repair(text="all_to_all", change=(("plan.ep.exchange", "all_to_all"),)),)
    )
    for name, taken in layout.exchanges.items():
        lone = {} if [sorted(group) for group in taken] == [[*ranks]] else apart(ranks, [taken])
        for rank in tuple(lone)[:1]:
            own = next((group for group in taken if rank in group), (rank,))
            message = f"the {name} {words(own, rank, lone[rank], ranks)}"
            faults.append(Fault(where="plan.ep.exchange", message=message, advice=FIX, repairs=lambda: stays))
    return Finding(looked_at=sum(map(len, layout.exchanges.values())), faults=tuple(faults))


def _straddles(share: int, tp: int, stage_ranks: int) -> bool:
    """Whether groups of ``share`` consecutive ranks cut TP groups, or leave the stage of a replica."""
    return bool(tp % share and share % tp) or bool(stage_ranks % share)
