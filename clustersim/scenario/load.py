"""Load a scenario: read the file, apply ``--set``, validate, build every part, resolve, digest.

Problems of all parts are reported together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from clustersim.clock import to_ns
from clustersim.cluster.device import Device
from clustersim.cluster.topology import Topology
from clustersim.collective.algorithms import ALGORITHMS
from clustersim.cost.engine import Engine
from clustersim.cost.precision import Precision
from clustersim.cost.roofline import RooflineCost
from clustersim.cost.unsaid import Place
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.model.architecture import ModelSpec
from clustersim.model.weights import absent_modules
from clustersim.plan.built import unbuilt
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.build.engines import build_engine, refuse_kernels
from clustersim.scenario.build.faults import build_faults, other_problems
from clustersim.scenario.build.plan import (
    as_the_engine,
    build_plans,
    check_visits,
    plan_path,
    refuse_mixed,
    written_plan,
)
from clustersim.scenario.build.references import build_model
from clustersim.scenario.build.serving import as_the_engine_decides, build_pool_serving
from clustersim.scenario.build.swaps import check_swaps
from clustersim.scenario.build.topologies import build_cluster
from clustersim.scenario.build.workloads import build_workload
from clustersim.scenario.checks import cross_findings
from clustersim.scenario.document import Document, KeyPath, dotted, read_mapping
from clustersim.scenario.expect import expectations
from clustersim.scenario.files import absolute_files, find_cost_table
from clustersim.scenario.lookup import find_scenario
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.parts import KeptParts
from clustersim.scenario.resolve import digest, named_files, with_defaults
from clustersim.scenario.scenario import Pool, RunConfig, Scenario, seen_by
from clustersim.scenario.schema import DEFAULT_ENGINE, SHORTHANDS, PrecisionPart, ScenarioPart
from clustersim.scenario.validate import in_order, validate
from clustersim.serving.config import ServingConfig
from clustersim.serving.user_class import code_allowed

Value = TypeVar("Value")
TELLING: Final = tuple(key for key in ScenarioPart.model_fields if key != "name")
"""Keys by which a file is recognised as a scenario."""


def load(
    path_or_name: str | Path,
    overrides: Sequence[str] = (),
    *,
    allow_code: bool | None = None,
    named: Sequence[str] = (),
) -> Scenario:
    """Load a scenario.

    Parameters
    ----------
    path_or_name : str or Path
        A YAML file, or the name of one that ships with clustersim.
    overrides : sequence of str
        Changes such as ``plan.tp=8``; see :mod:`clustersim.scenario.overrides`.
    allow_code : bool, optional
        Whether a scheduler or router in a Python file of its own may run; without, whether ``CLUSTERSIM_ALLOW_CODE``
        is 1. Where it may not, the scenario can be checked, and not simulated.
    named : sequence of str, optional
        What errors call each override; ``--set #2`` by default.

    Raises
    ------
    InputError
        With every problem of the scenario and of the files that it names, in order of position.
    """
    file = path_or_name if isinstance(path_or_name, Path) else find_scenario(path_or_name)
    document = apply_overrides(read_mapping(file, "scenario", TELLING), overrides, SHORTHANDS, named)
    document.data.setdefault("name", file.stem)
    return build_scenario(document, allow_code=code_allowed(allow_code))


def build_scenario(document: Document, *, allow_code: bool = False, kept: KeptParts | None = None) -> Scenario:
    """Build a scenario from its document; see :func:`load`.

    Parameters
    ----------
    document : Document
    allow_code : bool
    kept : KeptParts, optional
        Parts of earlier scenarios, and of this one for later ones.
    """
    kept = KeptParts() if kept is None else kept
    try:
        part = validate(document)
    except InputError as error:
        raise InputError(in_order([*error.problems, *_parts_problems(document, error.problems)])) from None
    _default_engine(document.data)
    problems: list[Problem] = []

    def attempt(build: Callable[[], Value]) -> Value | None:
        try:
            return build()
        except InputError as error:
            problems.extend(error.problems)
            return None

    def part_of(build: Callable[[Document, KeyPath], Value], *path: str) -> Value | None:
        return attempt(lambda: kept.built(document, path, lambda: build(document, path)))

    cluster, model = part_of(build_cluster, "topology"), part_of(build_model, "model")
    engine = part_of(build_engine, "serving", "engine")
    workload = attempt(lambda: build_workload(part.workload, document))
    precision = attempt(lambda: _precision(part.precision, document, None if model is None else model[0]))
    topology = None if cluster is None else cluster[0]
    plans = attempt(lambda: build_plans(part.plan, document, topology)) or ()
    if engine is not None:
        plans = tuple(as_the_engine(plan, engine[0]) for plan in plans)
    if engine is not None and topology is not None:
        attempt(partial(refuse_kernels, document, ("serving", "engine"), engine[0], topology))
    if engine is not None and model is not None and topology is not None and plans:
        part = _decided(part, plans, engine[0], model[0], topology)
    servings = attempt(lambda: _servings(part, document, allow_code)) or ()
    for (name, written), plan in zip(part.plan.pools.items(), plans, strict=False):
        path = plan_path(name)
        if model is not None:
            attempt(partial(check_visits, plan, written, path, model[0], document))
            problems += _unbuilt(model[0], plan, path, document)
        if topology is not None:
            attempt(partial(refuse_mixed, plan, document, topology, path))
        if topology is not None and precision is not None:
            attempt(partial(_check_peaks, seen_by(topology, plan).device, precision, document))
    expect = attempt(lambda: expectations(part, document))
    faults = attempt(lambda: () if cluster is None else build_faults(part.faults, document, cluster[0]))
    if topology is not None and servings:
        attempt(lambda: check_swaps(servings[0], topology, document))
    cost_table = attempt(lambda: find_cost_table(part, document))
    attempt(lambda: _check_collectives(part, document))
    if problems:
        raise InputError(in_order(problems))
    assert cluster is not None
    assert model is not None
    assert engine is not None
    assert workload is not None
    assert precision is not None
    assert expect is not None
    assert faults is not None
    resolved = with_defaults(part, document.data)
    resolved["topology"], resolved["model"] = cluster[1], model[1]
    resolved["serving"]["engine"] = engine[1]
    resolved["precision"]["weights"] = (
        {"default": precision.weights, **dict(precision.modules)} if precision.modules else precision.weights
    )
    for name, plan in zip(part.plan.pools, plans, strict=True):
        exchange = plan.ep.exchange if plan.ep.degree > 1 else None
        written_plan(resolved, name)["ep"]["exchange"] = exchange
    if len(plans) > 1:
        resolved["plan"] = {name: resolved["plan"][name] for name in part.plan.pools}
    if findings := cross_findings(resolved):  # where an engine decides what does not go with what is said
        raise InputError(in_order([document.problem(path, message) for path, message in findings]))
    files = named_files(absolute_files(resolved, document, kept))
    return Scenario(
        name=part.name,
        seed=part.seed,
        topology=seen_by(cluster[0].with_limits(engine[0].all_reduce), plans[0]),
        model=model[0],
        precision=precision,
        pools=tuple(
            Pool(name=name, plan=plan, serving=serving, is_placed=written.placement != "packed")
            for (name, written), plan, serving in zip(part.plan.pools.items(), plans, servings, strict=True)
        ),
        engine=engine[0],
        workload=workload,
        run=RunConfig(
            replay=part.run.replay,
            horizon_ns=None if part.run.horizon is None else to_ns(part.run.horizon),
        ),
        targets=resolved.get("targets", {}),
        expect=expect,
        faults=faults,
        cost_table=cost_table,
        collectives=part.collectives,
        left_out=tuple(part.left_out),
        digest=digest(resolved, files),
        document=resolved,
        files=files,
        origin=document,
    )


def _unbuilt(model: ModelSpec, plan: ParallelPlan, path: KeyPath, document: Document) -> list[Problem]:
    """Return, at its place, what of a plan no step graph can be expanded for."""
    one = unbuilt(plan, model)
    return [] if one is None else [document.problem((*path, *one.path.split(".")[1:]), one.message)]


def _decided(
    part: ScenarioPart, plans: Sequence[ParallelPlan], engine: Engine, model: ModelSpec, topology: Topology
) -> ScenarioPart:
    """Return a scenario with what its engine decides of ``serving``."""
    places = {
        name: Place(
            device=seen_by(topology, plan).device, positions=model.max_positions, pool=name, ranks=plan.world // plan.dp
        )
        for name, plan in zip(part.plan.pools, plans, strict=True)
    }
    return part.model_copy(update={"serving": as_the_engine_decides(part.serving, engine, places)})


def _servings(part: ScenarioPart, document: Document, allow_code: bool) -> tuple[ServingConfig, ...]:
    return tuple(build_pool_serving(part.serving, name, document, allow_code=allow_code) for name in part.plan.pools)


def _parts_problems(document: Document, known: Sequence[Problem]) -> list[Problem]:
    """Return what is wrong with the parts that are looked up by name, those left out whose own keys are wrong."""
    found: list[Problem] = []
    topologies: list[Topology] = []
    builders: dict[KeyPath, Callable[[], object]] = {
        ("topology",): lambda: topologies.append(build_cluster(document)[0]),
        ("model",): lambda: build_model(document, ("model",)),
        ("serving", "engine"): lambda: build_engine(document, ("serving", "engine")),
    }
    for path, build in builders.items():
        wrong = any(problem.path.startswith(dotted(path)) or problem.path == path[0] for problem in known)
        if path in document.marks and not wrong:
            try:
                build()
            except InputError as error:
                found += error.problems
    for topology in topologies:
        found += other_problems(document, topology, known)
    return found


def _default_engine(data: dict[str, Any]) -> None:
    """Write the engine that is taken where none is named, so that it is looked up like any other."""
    serving = data.get("serving") or {}
    serving.setdefault("engine", DEFAULT_ENGINE)
    data["serving"] = serving


def _precision(part: PrecisionPart, document: Document, model: ModelSpec | None) -> Precision:
    modules = dict(part.weights or {})
    own = "bf16" if model is None else model.default_weight_dtype
    absent = {} if model is None else absent_modules(model)
    problems = [Problem(path=f"precision.weights.{one}", message=absent[one]) for one in modules if one in absent]
    try:
        found = Precision(
            weights=modules.pop("default", own),
            modules=tuple(modules.items()),
            activations=part.activations,
            kv_cache=part.kv_cache,
            multiply=part.multiply,
        )
    except InputError as error:
        problems = [*error.problems, *problems]
    if problems:
        raise InputError(document.placed(problems))
    return found


def _check_peaks(device: Device, precision: Precision, document: Document) -> None:
    """Refuse a number format that the device can't multiply."""
    try:
        RooflineCost(device, precision)
    except InputError as error:
        raise InputError(document.placed(error.problems)) from None


def _check_collectives(part: ScenarioPart, document: Document) -> None:
    problems: list[Problem] = []
    for kind, algorithm in part.collectives.items():
        path: KeyPath = ("collectives", kind)
        if kind not in ALGORITHMS:
            message = f"no collective {kind!r}{did_you_mean(kind, list(ALGORITHMS))}"
            problems.append(document.problem(path, message, key=True))
        elif algorithm != "auto" and algorithm not in ALGORITHMS[kind]:
            hint = did_you_mean(algorithm, ["auto", *ALGORITHMS[kind]])
            problems.append(document.problem(path, f"no algorithm {algorithm!r} of {kind}{hint}"))
    if problems:
        raise InputError(problems)
