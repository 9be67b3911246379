"""Whether a step graph in a file is legal, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from clustersim.errors import InputError, Problem
from clustersim.graph.foreign.read import ForeignGraph
from clustersim.graph.foreign.unread_keys import is_of_plan
from clustersim.legality.check import check_plan
from clustersim.legality.check_graph import check_graph
from clustersim.legality.deployment import counted
from clustersim.legality.doubts import certain, declared_of, doubts_of, lacks_of
from clustersim.legality.graph_durations import as_priced
from clustersim.legality.graph_rules.views.reading import view_of_foreign
from clustersim.legality.merging.merge import merged
from clustersim.legality.relevance import demanded, relevant_to
from clustersim.legality.rule import Verdict, together
from clustersim.legality.unsaid import left_out
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.declared import costs_of
from clustersim.simulation.graph_legality import graph_headline, no_say

ENOUGH_BYTES: Final = 2**60
"""Memory of a device of which nothing is known."""


def check_read(found: ForeignGraph, scenario: Scenario | None = None) -> Verdict:
    """Check a graph that was read, and its plan where it names that and its model.

    It is legal only where every rule that its plan makes relevant looked at something. Durations that it states are
    compared with what its operators cost where the scenario is given that it is of.

    Raises
    ------
    InputError
        When it is of another scenario, as far as it says.
    """
    pool = None if scenario is None else _pool_of(found, scenario)
    first = _of_the_plan(found)
    if first is not None and first.violations:
        return first
    merging = merged(found)
    doubts = doubts_of(merging)
    verdict = check_graph(view_of_foreign(merging.graph), without=tuple(doubts))
    verdict = replace(verdict, violations=(*certain(found, merging, doubts), *verdict.violations))
    levels = [verdict] if first is None else [first, verdict]
    if pool is not None and found.batch is not None:
        levels.append(as_priced(found.graph, found.durations, found.batch, costs_of(pool), found.replica or 0))
    return demanded(
        together(levels), relevant_to(declared_of(merging.graph)), lambda entry: lacks_of(entry, merging.graph, doubts)
    )


def _pool_of(found: ForeignGraph, scenario: Scenario) -> Scenario:
    """Return the pool of a scenario that a graph is of."""
    said = {"plan": found.declared, "model": found.model, "precision": found.precision}
    for pool in scenario.each_pool():
        own = {"plan": pool.plan, "model": pool.model, "precision": pool.precision}
        if all(value is not None and value == own[name] for name, value in said.items()):
            return pool
    message = "states another plan, model or precision than the scenario, or none of them; give the one that it is of"
    raise InputError(Problem(path="--of", message=f"the graph {message}"))


def _of_the_plan(found: ForeignGraph) -> Verdict | None:
    plan = found.declared
    if plan is None or found.model is None:
        return None
    placed = max(plan.placement or (0,)) + 1
    return check_plan(
        plan=plan, model=found.model, num_devices=max(plan.world, placed), memory_bytes=ENOUGH_BYTES,
        precision=found.precision, cluster="a cluster that is large enough",
    )  # fmt: skip


def foreign_headline(name: str, verdict: Verdict) -> str:
    """Return the verdict on a graph from outside in one line: what was looked at, and what could not be."""
    if verdict.violations:
        return graph_headline(name, verdict)
    looked = {rule.id for rule in verdict.rules if rule.looked_at}
    missed = dict.fromkeys(rule.id for rule in verdict.rules if rule.is_missed)
    if missed:
        text = f"not checkable: {counted(len(looked), 'rule')} found nothing wrong with {name}"
        told = {rule for rules in verdict.needs.values() for rule in rules}  # each with what would do, below
        listed = "" if told >= missed.keys() else f": {', '.join(missed)}"
        return f"{text}, and {len(missed)} that should look at it can't{listed}"
    silent = dict.fromkeys(rule.id for rule in verdict.rules if rule.id not in looked)
    text = f"legal: {counted(len(looked), 'rule')} found nothing wrong with {name}"
    return f"{text}; {no_say(silent, 'plan and step')}" if silent else text


def foreign_lines(found: ForeignGraph, verdict: Verdict) -> Iterator[str]:
    """Yield what would make a graph checkable, which of its names nobody knows, and which statements it lacks."""
    for words, rules in verdict.needs.items():
        yield f"to make {', '.join(rules)} checkable: {words}"
    naming = found.naming
    for name, (left, nearest) in (naming.unknown if naming is not None else {}).items():
        near = f"the nearest known one is {nearest}" if nearest is not None else "no known one is like it"
        match = f" (patterns match it, or {left!r:.80})" if left not in ("", name) else ""
        yield f"unknown name {name!r:.80}{match}: {near}; --names FILE maps names to those of step graphs"
    for one in found.unread:
        near = f"; did you mean {one.nearest!r}?" if one.nearest is not None else ""
        near = f"; write it in 'plan', as {{\"{one.key}\": …}}" if is_of_plan(one.of, one.key) else near
        of = "the graph" if one.of == "graph" else counted(one.count, one.of)
        yield f"not read: the key {one.key!r:.80} of {of}{near}"
    if (missing := left_out_line(found)) is not None:
        yield missing
    if (unjudged := not_judged(found, verdict)) and not verdict.violations:
        structure = ", since level G judges structure; --of SCENARIO compares what they take"
        yield f"not judged: {', '.join(unjudged)} of operators{structure if 'duration_ns' in unjudged else ''}"


def violations_at(found: ForeignGraph, verdict: Verdict) -> list[Problem]:
    """Return violations as problems with the line and column of the node, or of the part of the plan, in the file."""
    asked = [
        Problem(path=one.where if one.node is None else f"nodes[{one.node}]", message=f"{one.message}; {one.fix}")
        for one in verdict.violations
    ]
    placed = found.placed(asked) if found.placed is not None else asked
    return [
        replace(at, path=one.where, message=f"{one.message}; {one.fix} [{one.rule}]")
        for at, one in zip(placed, verdict.violations, strict=True)
    ]


def not_judged(found: ForeignGraph, verdict: Verdict) -> tuple[str, ...]:
    """Return the statements of a graph that no rule looked at, though people may take them for judged."""
    looked = {one.id for one in verdict.rules if one.looked_at}
    judges = {"duration_ns": "RUN-2" in looked, "fused": False, "included": False}
    judges |= {"unit": "TP-8" in looked and None not in (found.plan, found.model)}
    return tuple(key for key, judged in judges.items() if not judged and any(key not in one for one in found.unsaid))


def left_out_line(found: ForeignGraph) -> str | None:
    """Return one line that says which statements the operators of a graph lack; None where they say all."""
    missing = [
        *(f"no {name}" for name in ("step", "plan", "model", "precision") if _declares(found, name) is None),
        *(f"no {field} of {counted(count, 'operator')}" for field, count in left_out(view_of_foreign(found)).items()),
    ]
    return f"not looked at, since the graph does not say it: {', '.join(missing)}" if missing else None


def foreign_json(found: ForeignGraph, verdict: Verdict) -> dict[str, Any]:
    """Return the verdict with what :func:`foreign_lines` says, and where in the file violations are."""
    unknown = found.naming.unknown if found.naming is not None else {}
    ids = {one.number: one.id for one in found.written}
    violations = [
        {**one.as_json(), "node": None if one.node is None else ids[one.node]}
        | {"file": at.file, "line": at.line, "column": at.column}
        for one, at in zip(verdict.violations, violations_at(found, verdict), strict=True)
    ]
    return verdict.as_json() | {
        "violations": violations,
        "unread_keys": [one.as_json() for one in found.unread],
        "unknown_names": [{"name": name, "nearest": one.nearest, "left": one.left} for name, one in unknown.items()],
        "needs": list(verdict.needs),
        "not_judged": list(not_judged(found, verdict)),
    }


def _declares(found: ForeignGraph, name: str) -> object:
    return found.batch if name == "step" else getattr(found, name)
