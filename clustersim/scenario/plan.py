"""From the ``plan`` of a scenario to a parallel plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clustersim.cluster.topology import Topology
from clustersim.errors import InputError, Problem
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.plan.routing import Routing
from clustersim.scenario.document import Document, KeyPath
from clustersim.scenario.frequencies import check_frequencies, frequency_file, read_frequencies
from clustersim.scenario.schema import PlanPart, PoolPlanPart, RoutingPart


def build_pool_plans(part: PlanPart, document: Document, topology: Topology | None) -> tuple[ParallelPlan, ...]:
    """Return the plans of the prefill and of the decode pool; ranks of a packed pool are on devices that are free.

    Raises
    ------
    InputError
        With every device of a placement that the topology does not have.
    """
    assert part.prefill is not None
    assert part.decode is not None
    prefill = build_plan(part.prefill, document, topology, ("plan", "prefill"))
    decode = build_plan(part.decode, document, topology, ("plan", "decode"))
    if topology is None:
        return prefill, decode
    if decode.placement is None:
        return prefill, replace(decode, placement=_after(prefill, decode.world, len(topology.devices)))
    if prefill.placement is None and set(decode.placement) & set(range(prefill.world)):
        prefill = replace(prefill, placement=_after(decode, prefill.world, len(topology.devices)))
    return prefill, decode


def _after(placed: ParallelPlan, ranks: int, devices: int) -> tuple[int, ...]:
    """Return the first devices that a pool leaves free; beyond those of the cluster where there are too few."""
    taken = set(range(placed.world) if placed.placement is None else placed.placement)
    return tuple([device for device in range(devices + ranks + len(taken)) if device not in taken][:ranks])


def build_plan(
    part: PoolPlanPart, document: Document, topology: Topology | None, path: KeyPath = ("plan",)
) -> ParallelPlan:
    """Return the parallel plan; devices in its placement are looked up in the topology (if that is known).

    Raises
    ------
    InputError
        With every device of the placement that the topology does not have.
    """
    cuts: list[Cut] | None = part.stages.cuts
    experts: Any = part.ep.placement
    return ParallelPlan(
        dp=part.dp,
        pp=part.pp,
        tp=part.tp.degree,
        split=TensorSplit(**part.tp.model_dump(exclude={"degree"})),
        sp=SequencePlan(**part.sp.model_dump()),
        ep=ExpertPlan(
            degree=part.ep.degree,
            scope=part.ep.scope,
            placement=tuple(experts) if isinstance(experts, list) else experts,
            routing=_routing(part.ep.routing, document, (*path, "ep", "routing")),
            redundant=part.ep.redundant,
        ),
        stages=None if cuts is None else tuple(cuts),
        placement=_placement(part.placement, document, topology, path),
        decode_overlap=part.decode_overlap,
    )


def _routing(part: RoutingPart, document: Document, path: KeyPath) -> Routing | None:
    if part.file is not None:
        return Routing(frequencies=read_frequencies(frequency_file(document, (*path, "file"), part.file)))
    return Routing(zipf=part.zipf) if part.zipf else None


def check_visits(plan: ParallelPlan, part: PoolPlanPart, path: KeyPath, model: ModelSpec, document: Document) -> None:
    """Refuse frequencies that are not those of the model's experts.

    Raises
    ------
    InputError
    """
    routing = plan.ep.routing
    if routing is not None and routing.frequencies is not None:
        file = frequency_file(document, (*path, "ep", "routing", "file"), part.ep.routing.file or "")
        check_frequencies(routing.frequencies, model, file)


def _placement(placement: Any, document: Document, topology: Topology | None, plan: KeyPath) -> tuple[int, ...] | None:
    if placement == "packed" or topology is None:
        return None
    problems: list[Problem] = []
    found: list[int] = []
    last = len(topology.devices) - 1
    for rank, name in enumerate(placement):
        path = (*plan, "placement", rank)
        if isinstance(name, int):
            found.append(name)
            if not 0 <= name <= last:
                problems.append(document.problem(path, f"{topology.name} has devices 0 to {last}, not {name}"))
            continue
        try:
            found.append(topology.index_of(name))
        except InputError as error:
            problems += [document.problem(path, problem.message) for problem in error.problems]
    if problems:
        raise InputError(problems)
    return tuple(found)
