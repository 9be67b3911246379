"""Level G: every mutation of RULES.md is caught by its rule and by no other; each rule is necessary."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from graph_cases_small import CASES, one, view_of
from graph_mistakes import MISTAKES, Mistake
from graph_mutations import MUTATIONS, Mutation
from single_changes import view_of as view_in_full

from clustersim.legality.check_graph import GRAPH_CHECKS, GraphCheck, check_graph
from clustersim.legality.graph_rules import data
from clustersim.legality.rulebook import RULES
from tests.effort import each_in_one, is_whole, some
from tests.legality.timeline.golden import compare, holds

LEVEL_G = [rule.id for rule in RULES if "G" in rule.levels]
EXPANDED = [one for rule in LEVEL_G for one in some([one for one in MUTATIONS if one.rule == rule])]
"""Mutations of each rule: their templates are judged in any case."""
BESIDE = each_in_one({str(at): [one.beside] for at, one in enumerate(MISTAKES)})
NEIGHBOURS = [one for at, one in enumerate(MISTAKES) if BESIDE[str(at)]]
"""Mistakes with what stands beside them, each of these in the first graph that has it."""
MATRIX = Path(__file__).with_name("graph_matrix.txt")
"""A line per mutation, which holds itself to its own rule; and one per mistake, which holds itself to its line."""


def broken(mutation: Mutation, in_full: bool) -> list[str]:
    """Return the rules that a mutation breaks: of all with ``--long=1``, else of its own."""
    verdict = check_graph(mutation.change(view_of(mutation.case, in_full)), asked(mutation.rule))
    return list(dict.fromkeys(violation.rule for violation in verdict.violations))


def asked(rule: str) -> dict[str, GraphCheck]:
    """Return the rules that are asked of a graph that one of them is to catch: with ``--long=1`` all, else that one."""
    return dict(GRAPH_CHECKS) if is_whole() else {rule: GRAPH_CHECKS[rule]}


@cache
def broken_by(mistake: Mistake, rule: str = "") -> list[str]:
    """Return the rules that a mistake breaks; in a plain pytest a ``rule`` alone, where one is named."""
    verdict = check_graph(mistake.change(view_in_full(mistake.graph)), asked(rule) if rule else GRAPH_CHECKS)
    return list(dict.fromkeys(violation.rule for violation in verdict.violations))


def line_of(mistake: Mistake) -> str:
    """Return what the matrix says of a mistake."""
    return f"{mistake!s:96}  {' '.join(broken_by(mistake))}"


def test_every_rule_of_level_g_is_checked() -> None:
    assert sorted(GRAPH_CHECKS) == sorted(LEVEL_G)


@pytest.mark.parametrize("in_full", [False, True], ids=["template", "expanded"])
@pytest.mark.parametrize("case", CASES)
def test_legal_graphs_are_legal(case: str, in_full: bool) -> None:
    assert check_graph(view_of(case, in_full)).violations == ()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mutation_breaks_its_rule_and_no_other(mutation: Mutation) -> None:
    assert broken(mutation, in_full=False) == [mutation.rule]


@pytest.mark.parametrize("mutation", EXPANDED, ids=str)
def test_the_expanded_graph_has_the_verdict_of_the_template(mutation: Mutation) -> None:
    assert broken(mutation, in_full=True) == [mutation.rule]


@pytest.mark.parametrize("rule", LEVEL_G)
def test_each_rule_is_necessary(rule: str) -> None:
    """With the rule switched off, an illegal graph passes."""
    others = {name: check for name, check in GRAPH_CHECKS.items() if name != rule}
    mutation = next(mutation for mutation in MUTATIONS if mutation.rule == rule)
    assert check_graph(mutation.change(view_of(mutation.case)), others).verdict == "legal"


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_caught(mistake: Mistake, request: pytest.FixtureRequest) -> None:
    if is_whole() or request.config.getoption("--update-golden"):
        assert broken_by(mistake) != []
        holds(request, MATRIX, line_of(mistake))
    else:
        lines = (
            line for line in MATRIX.read_text(encoding="utf-8").splitlines() if line.startswith(f"{mistake!s:96}  ")
        )
        rule = next(lines, "").rpartition("  ")[2].split(" ")[0]
        assert rule in GRAPH_CHECKS, f"{MATRIX.name} lacks it: pytest --update-golden {Path(__file__).name}"
        assert broken_by(mistake, rule) == [rule]


@pytest.mark.parametrize("mistake", NEIGHBOURS, ids=lambda mistake: f"{mistake.graph}: {mistake.beside}")
def test_what_stands_beside_a_mistake_is_legal(mistake: Mistake) -> None:
    assert check_graph(mistake.neighbour(view_in_full(mistake.graph))).violations == ()


def test_matrix_of_mutations_and_rules_is_as_it_was(request: pytest.FixtureRequest) -> None:
    lines = [f"{one.rule:6}  {one.what:72}  {one.rule}" for one in MUTATIONS]
    if request.config.getoption("--update-golden"):
        more = [line_of(one) for one in MISTAKES]
    else:
        stored = {line.split("  ")[0]: line for line in MATRIX.read_text(encoding="utf-8").splitlines()}
        more = [stored.get(str(one), f"{one} is new") for one in MISTAKES]
    compare(request, MATRIX, "\n".join(sorted(lines) + sorted(more)) + "\n")


def test_a_template_shows_two_of_the_layers_that_are_alike() -> None:
    assert view_of("dense").layer_names == (0, 1, 5, 6)
    assert view_of("dense", in_full=True).layer_names == tuple(range(10))


@pytest.mark.parametrize("case", CASES)
def test_rules_say_what_they_looked_at(case: str) -> None:
    spec, plan = CASES[case]
    verdict = check_graph(view_of(case))
    silent = {entry.id for entry in verdict.rules if not entry.looked_at}
    assert ("SP-2" in silent) == (plan.sp.degree == 1)
    assert ("PP-5" in silent) == (plan.pp == 1)
    assert ("DP-3" in silent) == (plan.dp == 1)
    assert ("EP-7" in silent) == (plan.ep.degree == 1)
    assert ("EP-4" in silent) == (not hasattr(spec.layers[0].ffn, "top_k"))
    assert not silent & {"PH-1", "PH-2", "PH-3", "PH-5", "KV-1", "KV-2", "KV-4", "KV-5", "TP-8", "RUN-1", "PP-4"}


def test_a_violation_names_place_witness_and_what_would_be_legal() -> None:
    mutation = next(m for m in MUTATIONS if m.what == "an all-reduce is dropped")
    (found,) = check_graph(mutation.change(view_of("dense"))).violations
    assert found.as_json() == {
        "rule": "TP-2",
        "level": "G",
        "where": "decode step 2, stage 0, layer 1, rank 0, attention_add",
        "message": "attention_add reads a partial sum of o_proj as if it were whole (and so at 1 more place)",
        "fix": "put an all-reduce behind partial sums, an all-gather behind slices, and nothing behind what is whole",
    }


@pytest.mark.parametrize(("name", "scope", "legal"), [
    ("dispatch", "global", True), ("dispatch", "replica", False), ("expert_up", "global", False),
])  # fmt: skip
def test_only_dispatch_and_combine_may_join_replicas_and_only_if_the_plan_says_so(
    name: str, scope: str, legal: bool
) -> None:
    view = view_of("spread")
    assert view.plan is not None
    plan = replace(view.plan, dp=2, ep=replace(view.plan.ep, scope=scope))
    node = one(view, name, step=0, layer=0)
    joined = replace(
        view,
        plan=plan,
        member_node=np.append(view.member_node, node),
        member_rank=np.append(view.member_rank, plan.replica_ranks),
        member_position=np.append(view.member_position, node),
    )
    assert (data.keeps_apart(joined).faults == ()) == legal
