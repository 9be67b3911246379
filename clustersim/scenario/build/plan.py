"""From the ``plan`` of a scenario to a parallel plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from clustersim.cluster.topology import Topology
from clustersim.cost.engine import Engine
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.plan.routing import Routing
from clustersim.scenario.build.frequencies import check_frequencies, frequency_file, read_frequencies
from clustersim.scenario.document import Document, KeyPath
from clustersim.scenario.schema import PlanPart, PoolPlanPart, RoutingPart
from clustersim.units import plural


def plan_path(pool: str) -> KeyPath:
    """Return where the plan of a pool is written; without a name, that of all replicas."""
    return ("plan", pool) if pool else ("plan",)


def written_plan(document: Mapping[str, Any], pool: str) -> Any:
    """Return the plan of a pool as a document has it; without a name, that of all replicas."""
    return document["plan"][pool] if pool else document["plan"]


def build_plans(part: PlanPart, document: Document, topology: Topology | None) -> tuple[ParallelPlan, ...]:
    """Return the plan of each pool; ranks of a packed one of two are on devices that the other leaves free.

    Raises
    ------
    InputError
        With every device of a placement that the topology does not have.
    """
    if part.prefill is None or part.decode is None:
        return (build_plan(part, document, topology),)
    prefill = build_plan(part.prefill, document, topology, ("plan", "prefill"))
    taken = range(prefill.world) if prefill.placement is None else prefill.placement
    decode = build_plan(part.decode, document, topology, ("plan", "decode"), taken)
    if topology is None or max(prefill.world, decode.world) > len(topology.devices):
        return prefill, decode  # which is illegal wherever their ranks are
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
    part: PoolPlanPart,
    document: Document,
    topology: Topology | None,
    path: KeyPath = ("plan",),
    taken: Collection[int] = (),
) -> ParallelPlan:
    """Return the parallel plan; devices in its placement are looked up in the topology (if that is known).

    Parameters
    ----------
    part, document, topology
    path : tuple
        Where the plan is written.
    taken : collection of int
        Devices that ranks which are placed by the kind of their devices leave to others.

    Raises
    ------
    InputError
        With every device of the placement that the topology does not have; and where the ranks are on devices of
        several kinds.
    """
    cuts: list[Cut] | None = part.stages.cuts
    experts: Any = part.ep.placement
    plan = ParallelPlan(
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
            overlap=part.ep.overlap,
            overlap_decode_tokens=part.ep.overlap_decode_tokens,
            overlap_prefill_tokens=part.ep.overlap_prefill_tokens,
            exchange=part.ep.exchange or "all_to_all",
            exchange_by_engine=part.ep.exchange is None,
            dispatch=part.ep.dispatch,
        ),
        stages=None if cuts is None else tuple(cuts),
        placement=_placement(part.placement, document, topology, path) if isinstance(part.placement, list) else None,
        decode_overlap=part.decode_overlap,
        devices=part.devices,
    )
    if topology is None or part.placement == "packed" or plan.placement is not None:
        return plan
    return replace(plan, placement=_of_kind(part.placement, plan.world, topology, taken, document, path))


def as_the_engine(plan: ParallelPlan, engine: Engine) -> ParallelPlan:
    """Return a plan whose tokens get to experts as the engine brings them there, where the plan does not say how."""
    if not plan.ep.exchange_by_engine or plan.ep.degree == 1:
        return plan
    way = engine.experts_within if plan.has_experts_within else engine.experts_across
    return replace(plan, ep=replace(plan.ep, exchange=way)).settled()


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


def _of_kind(
    name: str, ranks: int, topology: Topology, taken: Collection[int], document: Document, plan: KeyPath
) -> tuple[int, ...]:
    """Return the first free devices of a kind."""
    known = topology.device_names()
    if name not in known:
        message = f"{topology.name} has no devices of the kind {name!r}{did_you_mean(name, ['packed', *known])}"
        raise InputError(document.problem((*plan, "placement"), message))
    free = [device for device in topology.of_kind(name) if device not in taken]
    if len(free) < ranks:
        message = (
            f"{plural(ranks, 'rank is', 'ranks are')} to be on {name}, of which {topology.name} has {len(free)} free"
        )
        raise InputError(document.problem((*plan, "placement"), message))
    return tuple(free[:ranks])


def refuse_mixed(plan: ParallelPlan, document: Document, topology: Topology, path: KeyPath) -> None:
    """Refuse a plan whose ranks are on devices of several kinds: they would wait for the slowest.

    Raises
    ------
    InputError
    """
    placed = range(min(plan.world, len(topology.devices))) if plan.placement is None else plan.placement
    names = list(dict.fromkeys(topology.seen_from(device).device.name for device in placed))
    if len(names) > 1:
        message = f"ranks of one plan are to be on devices of one kind, found {' and '.join(names)}; name one of them"
        raise InputError(document.problem((*path, "placement"), message))


def _placement(
    placement: list[Any], document: Document, topology: Topology | None, plan: KeyPath
) -> tuple[int, ...] | None:
    if topology is None:
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
