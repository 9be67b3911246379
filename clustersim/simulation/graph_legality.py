"""Whether the step graphs that a scenario's plan expands to are legal.

A short story of three sequences is expanded that has every kind of step and every way from one to the next: a prompt
and a part of another, the rest of that one beside a decode, two decodes; another micro-batch; another replica.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from clustersim.cost.precision import Precision
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.condense import Condensed, condensed, whole
from clustersim.graph.expand import blueprint_of
from clustersim.graph.passes.two_batch import two_batch_blueprints
from clustersim.graph.stepgraph import expand
from clustersim.graph.steps import ChainedStep, DecodeToken, chain
from clustersim.legality.check_graph import GRAPH_CHECKS, check_graph
from clustersim.legality.deployment import counted
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.legality.graph_rules.views.reading import view_of_chain, windows
from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.simulation.halves import (
    StepContents,
    halves_of,
    two_batch_lockstep_story,
    two_batch_story,
    two_halves,
    with_crossing,
)

_NO_GRAPHS: Final = "replicas that share experts can't be expanded where they have stages or split prompts"
NOT_CHECKABLE: Final = Verdict(
    violations=(),
    rules=tuple(LookedAt(id=rule, level="G", looked_at=0, lacks=(_NO_GRAPHS,)) for rule in GRAPH_CHECKS),
)


def story(plan: ParallelPlan) -> tuple[StepContents, ...]:
    """Return the steps; prompts are of lengths that no number of segments divides."""
    if plan.is_two_batch:
        return two_batch_story(plan)
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


def lockstep_story(plan: ParallelPlan) -> tuple[StepContents, ...]:
    """Return steps of replicas in lockstep: the first and the last have requests, the others idle (dummy batches).

    Parameters
    ----------
    plan : ParallelPlan
        Of all replicas as one (``ParallelPlan.lockstep``).
    """
    if plan.is_two_batch:
        return two_batch_lockstep_story(plan)
    last = plan.sp.degree - 1
    long, part, rest = 11, 6, 4
    first = [DecodeToken(request=0, position=long + t) for t in range(3)]
    second = [DecodeToken(request=1, position=part + rest + t, owner=last) for t in range(2)]
    steps = [
        StepContents(chunks=(Chunk(request=0, start=0, count=long), Chunk(request=1, start=0, count=part, owner=last))),
        StepContents(chunks=(Chunk(request=1, start=part, count=rest, owner=last),), decodes=(first[0],)),
        StepContents(decodes=(first[1], second[0])),
        StepContents(decodes=(first[2], second[1])),
    ]
    return tuple(_with_dummies(step, number, last) for number, step in enumerate(steps))


def _with_dummies(step: StepContents, number: int, last: int) -> StepContents:
    """Let each idle replica bring one token of a sequence of its own: of a prompt where all others prefill."""
    idle = range(1, last)
    if not step.decodes:
        dummies = tuple(Chunk(request=1 + s, start=number, count=1, owner=s) for s in idle)
        return replace(step, chunks=step.chunks + dummies)
    tokens = tuple(DecodeToken(request=1 + s, position=number, owner=s) for s in idle)
    return replace(step, decodes=step.decodes + tokens)


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
    if not all(kept.shows_all(blueprint, len(model.layers)) for blueprint in blueprints.values()):
        kept = whole(model, plan)
    kinds = {kind: kept.blueprint(blueprint) for kind, blueprint in blueprints.items()}
    graphs = {blueprint.name: expand(blueprint, kept.plan) for blueprint in kinds.values()}
    if plan.is_two_batch:
        graphs |= {name: expand(both, kept.plan) for name, both in two_batch_blueprints(kinds).items()}
    chained = []
    for step in story(plan) if steps is None else steps:
        batch = batch_of(step, plan, model)
        halves = halves_of(step, plan)
        if halves:
            chained += two_halves(halves, [batch_of(half, plan, model) for half in halves], graphs)
            continue
        chained.append(
            ChainedStep(
                graph=graphs[batch.kind], batch=batch, decodes=step.decodes, lane=step.lane, replica=step.replica
            )
        )
    return view_of_chain(with_crossing(chain(chained, kept.plan), graphs), kept, model, plan, precision)


def check_steps(model: ModelSpec, plan: ParallelPlan, precision: Precision) -> Verdict:
    """Check the step graphs of a legal plan against every rule of level G."""
    if not plan.is_lockstep:
        return check_graph(graph_view(model, plan, precision))
    if plan.pp > 1 or plan.sp.degree > 1:
        return NOT_CHECKABLE
    together = plan.lockstep
    return check_graph(graph_view(model, together, precision, steps=lockstep_story(together)))


def graph_headline(name: str, verdict: Verdict) -> str:
    """Return the verdict on step graphs in one line; ``name`` says whose."""
    if verdict.violations:
        broken = dict.fromkeys(violation.rule for violation in verdict.violations)
        places = counted(len(verdict.violations), "place")
        return f"illegal: {counted(len(broken), 'rule')} broken at {places} in {name}"
    seen = {rule.id: 0 for rule in verdict.rules}
    for rule in verdict.rules:
        seen[rule.id] += rule.looked_at
    silent = [rule for rule, looked_at in seen.items() if not looked_at]
    looked = len(seen) - len(silent)
    if not looked:
        reasons = dict.fromkeys(word for rule in verdict.rules for word in rule.lacks)
        return (
            f"not checkable: {'; '.join(reasons)}, so nothing says that {name} are legal"
            if reasons
            else (f"not checkable: {name} has nothing that any rule looks at")
        )
    text = f"legal: {counted(looked, 'rule')} found nothing wrong with {name}"
    return f"{text}; {no_say(silent)}" if silent else text


def no_say(rules: Collection[str], of: str = "plan") -> str:
    """Say that rules are about what a plan does not have."""
    return f"{len(rules)} {'has' if len(rules) == 1 else 'have'} no say in such a {of}: {', '.join(rules)}"


def violation_line(violation: Violation) -> str:
    """Return a violation in a graph as one line."""
    return f"{violation.where}: {violation.message}; {violation.fix} [{violation.rule}]"
