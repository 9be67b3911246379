"""Whether the step graphs that a scenario's plan expands to are legal, and graphs from outside.

A short story of three sequences is expanded that has every kind of step and every way from one to the next: a prompt
and a part of another, the rest of that one beside a decode, two decodes; another micro-batch; another replica.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from clustersim.cost.precision import Precision
from clustersim.errors import InputError, Problem
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.condense import Condensed, condensed, whole
from clustersim.graph.expand import blueprint_of
from clustersim.graph.foreign import ForeignGraph, read_graph
from clustersim.graph.stepgraph import expand
from clustersim.graph.steps import ChainedStep, DecodeToken, chain
from clustersim.legality.check import check_plan
from clustersim.legality.check_graph import GRAPH_CHECKS, check_graph
from clustersim.legality.deployment import counted
from clustersim.legality.graph_reading import view_of_chain, view_of_foreign, windows
from clustersim.legality.graph_view import GraphView
from clustersim.legality.rule import LookedAt, Verdict, Violation, together
from clustersim.legality.shards import MOST_SEGMENTS
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.scenario import Scenario

ENOUGH_BYTES: Final = 2**60
"""Memory of a device of which nothing is known."""

MOST_NUMBERED: Final = 2**20
"""More layers, stages or ranks are a slip of the pen."""

NOT_CHECKABLE: Final = Verdict(
    violations=(), rules=tuple(LookedAt(id=rule, level="G", looked_at=0) for rule in GRAPH_CHECKS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContents:
    """What one step of the story carries."""

    chunks: tuple[Chunk, ...] = ()
    decodes: tuple[DecodeToken, ...] = ()
    lane: int = 0
    replica: int = 0


def story(plan: ParallelPlan) -> tuple[StepContents, ...]:
    """Return the steps; prompts are of lengths that no number of segments divides."""
    sp = plan.sp.degree
    long, part, rest = 4 * sp + 3, 2 * sp + 3, 2 * sp + 1
    other = sp - 1 if plan.sp.decode == "dp" else 0
    first = [DecodeToken(request=0, position=long + t) for t in range(3)]
    second = [DecodeToken(request=1, position=part + rest + t, owner=other) for t in range(2)]
    steps = [
        StepContents(
            chunks=(Chunk(request=0, start=0, count=long), Chunk(request=1, start=0, count=part, owner=other))
        ),
        StepContents(chunks=(Chunk(request=1, start=part, count=rest, owner=other),), decodes=(first[0],)),
        StepContents(decodes=(first[1], second[0])),
        StepContents(decodes=(first[2], second[1])),
        StepContents(decodes=(DecodeToken(request=2, position=5),), lane=1),
    ]
    if plan.dp > 1:
        steps.append(StepContents(decodes=(DecodeToken(request=3, position=5),), replica=1))
    return tuple(steps)


def batch_of(step: StepContents, plan: ParallelPlan, model: ModelSpec) -> StepBatch:
    """Return what the simulator makes of a step's contents."""

    def attended(s: int, window: int | None) -> int:
        seen = [token.position + 1 for token in step.decodes if token.owner == s]
        return sum(seen if window is None else [min(window, one) for one in seen])

    ranks = range(plan.sp.degree)
    return StepBatch(
        chunks=step.chunks,
        decode_sequences=tuple(sum(token.owner == s for token in step.decodes) for s in ranks),
        decode_keys=tuple(attended(s, None) for s in ranks),
        windowed_keys={window: tuple(attended(s, window) for s in ranks) for window in windows(model)},
    )


def graph_view(
    model: ModelSpec,
    plan: ParallelPlan,
    precision: Precision,
    *,
    in_full: bool = False,
    steps: Sequence[StepContents] | None = None,
) -> GraphView:
    """Expand the story under a plan.

    Parameters
    ----------
    model, plan, precision
    in_full : bool
        Every layer and stage, rather than those that show something new.
    steps : sequence of StepContents, optional
        Other steps than those of :func:`story`.
    """
    blueprints = {kind: blueprint_of(model, plan, precision, kind) for kind in STEP_KINDS}
    kept: Condensed = whole(model, plan) if in_full else condensed(model, plan)
    if not all(kept.shows_all(blueprint) for blueprint in blueprints.values()):
        kept = whole(model, plan)
    graphs = {kind: expand(kept.blueprint(blueprint), kept.plan) for kind, blueprint in blueprints.items()}
    chained = []
    for step in story(plan) if steps is None else steps:
        batch = batch_of(step, plan, model)
        chained.append(
            ChainedStep(
                graph=graphs[batch.kind], batch=batch, decodes=step.decodes, lane=step.lane, replica=step.replica
            )
        )
    return view_of_chain(chain(chained, kept.plan), kept, model, plan, precision)


def check_steps(model: ModelSpec, plan: ParallelPlan, precision: Precision) -> Verdict:
    """Check the step graphs of a legal plan against every rule of level G."""
    if plan.ep.scope == "global" and plan.dp > 1:
        return NOT_CHECKABLE  # experts of all replicas are not in the graph of one
    return check_graph(graph_view(model, plan, precision))


def check_scenario_steps(scenario: Scenario) -> Verdict:
    """Check the step graphs of a scenario whose plan is legal."""
    return check_steps(scenario.model, scenario.plan, scenario.precision)


def check_foreign(path: Path) -> Verdict:
    """Check a step graph in a JSON file that clustersim or another program wrote.

    Where it names its plan and its model, the plan is checked first, as of a cluster that is large enough.

    Raises
    ------
    InputError
        When the file can't be read, is no graph of format 1, or contradicts itself.
    """
    try:
        found = read_graph(_document(path), str(path))
    except OverflowError:
        raise InputError(Problem(file=str(path), path="nodes", message="a number is too large")) from None
    problems = [replace(problem, file=str(path)) for problem in contradictions(found)]
    if problems:
        raise InputError(problems)
    if found.plan is None or found.model is None:
        return check_graph(view_of_foreign(found))
    placed = max(found.plan.placement or (0,)) + 1
    first = check_plan(
        plan=found.plan, model=found.model, num_devices=max(found.plan.world, placed), memory_bytes=ENOUGH_BYTES,
        precision=found.precision, cluster="a cluster that is large enough",
    )  # fmt: skip
    return first if first.verdict == "illegal" else together([first, check_graph(view_of_foreign(found))])


def contradictions(found: ForeignGraph) -> Iterator[Problem]:
    """Yield what of a graph from outside does not go together with its own plan, step or model."""
    plan, batch, model, graph = found.plan, found.batch, found.model, found.graph
    ranks = max(max(group) for group in graph.groups)
    for name, largest in (("layer", int(graph.layer.max())), ("stage", int(graph.stage.max())), ("rank", ranks)):
        if largest >= MOST_NUMBERED:
            yield Problem(path="nodes", message=f"{name} {largest} is too large; number them from 0")
    if model is not None and int(graph.layer.max()) >= len(model.layers):
        yield Problem(path="nodes", message=f"layer {graph.layer.max()}, but the model has {len(model.layers)} layers")
    if batch is not None and not len(batch.decode_sequences) == len(batch.decode_keys) > 0:
        yield Problem(path="step", message="expected as many decode_sequences as decode_keys, one per SP rank")
    if plan is None:
        return
    degrees = {"dp": plan.dp, "pp": plan.pp, "tp": plan.tp, "sp.degree": plan.sp.degree, "ep.degree": plan.ep.degree}
    zeros = [name for name, degree in degrees.items() if degree < 1]
    yield from (Problem(path=f"plan.{name}", message="a degree must be at least 1") for name in zeros)
    if plan.sp.degree > MOST_SEGMENTS:
        yield Problem(path="plan.sp.degree", message=f"{plan.sp.degree} is too large; use at most {MOST_SEGMENTS}")
    ranks = plan.stage_ranks * (plan.dp if plan.ep.scope == "global" else 1)
    if not zeros and ranks % plan.ep.degree:
        yield Problem(path="plan.ep.degree", message=f"{plan.ep.degree} does not divide the {ranks} ranks of experts")
    if int(graph.stage.max()) >= plan.pp:
        yield Problem(path="nodes", message=f"stage {graph.stage.max()}, but the plan has {plan.pp} stages")
    if batch is None:
        return
    owners = [chunk.owner for chunk in batch.chunks]
    if max(owners, default=0) >= plan.sp.degree or any(
        len(counts) > plan.sp.degree
        for counts in (batch.decode_sequences, batch.decode_keys, *batch.windowed_keys.values())
    ):
        yield Problem(path="step", message=f"more SP ranks than the plan has ({plan.sp.degree})")


def _document(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(Problem(file=str(path), message=f"can't be read: {error}")) from None
    except RecursionError:
        raise InputError(Problem(file=str(path), message="nested too deeply for a graph")) from None
    except json.JSONDecodeError as error:
        raise InputError(
            Problem(file=str(path), line=error.lineno, column=error.colno, message=f"no JSON: {error.msg}")
        ) from None
    if not isinstance(found, Mapping):
        raise InputError(Problem(file=str(path), message="expected an object with nodes and edges"))
    return found


def graph_headline(name: str, verdict: Verdict) -> str:
    """Return the verdict on step graphs in one line; ``name`` says whose."""
    if verdict.violations:
        broken = dict.fromkeys(violation.rule for violation in verdict.violations)
        places = counted(len(verdict.violations), "place")
        return f"illegal: {name} breaks {counted(len(broken), 'rule')} at {places}"
    seen = {rule.id: 0 for rule in verdict.rules}
    for rule in verdict.rules:
        seen[rule.id] += rule.looked_at
    silent = [rule for rule, looked_at in seen.items() if not looked_at]
    looked = len(seen) - len(silent)
    if not looked:
        return f"not checkable: {name} has nothing for any rule to look at"
    text = f"legal: {counted(looked, 'rule')} found nothing wrong with {name}"
    return f"{text}; nothing to look at for {', '.join(silent)}" if silent else text


def violation_line(violation: Violation) -> str:
    """Return a violation in a graph as one line."""
    return f"{violation.where}: {violation.message}; {violation.fix} [{violation.rule}]"
