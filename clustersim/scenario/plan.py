"""From the ``plan`` of a scenario to a parallel plan."""

from __future__ import annotations

from typing import Any

from clustersim.cluster.topology import Topology
from clustersim.errors import InputError, Problem
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.scenario.document import Document
from clustersim.scenario.schema import PlanPart


def build_plan(part: PlanPart, document: Document, topology: Topology | None) -> ParallelPlan:
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
        ),
        stages=None if cuts is None else tuple(cuts),
        placement=_placement(part.placement, document, topology),
        decode_overlap=part.decode_overlap,
    )


def _placement(placement: Any, document: Document, topology: Topology | None) -> tuple[int, ...] | None:
    if placement == "packed" or topology is None:
        return None
    problems: list[Problem] = []
    found: list[int] = []
    last = len(topology.devices) - 1
    for rank, name in enumerate(placement):
        path = ("plan", "placement", rank)
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
