"""Expansion code with one mistake in it: rules of level G, the proof by execution, or both notice.

Which of them is written down in ``expansion_matrix.txt``, a golden: ``--update-golden`` rewrites it. What a proof can't
see are sizes that only cost reads (payloads, shares that are larger than needed) and the order of steps, which it takes
from its script; what the rules can't see are values.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from expansion_mutations import DEPLOYMENTS, EXPANSIONS

from clustersim.cost.precision import Precision
from clustersim.model import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.comparison import Expected, expected_of
from clustersim.proof.proof import prove
from clustersim.proof.script import Script, chunked_script
from clustersim.simulation.graph_legality import check_steps
from tests.laws.lane_mutations import mutated
from tests.laws.proof_cases import model_of
from tests.legality.timeline.golden import compare_lines, holds

MATRIX = Path(__file__).with_name("expansion_matrix.txt")

Caught = tuple[str, ...]


@cache
def deployed(name: str) -> tuple[ModelSpec, ParallelPlan, Script, Expected]:
    model_name, plan = DEPLOYMENTS[name]
    model = model_of(model_name)
    script = chunked_script((8, 6), output_tokens=2, budget=10, vocab=model.vocab, plan=plan)
    return model, plan, script, expected_of(model, script)


def broken(name: str) -> tuple[Caught, Caught]:
    """Return the rules that a deployment breaks, at level G and at level X."""
    model, plan, script, expected = deployed(name)
    rules = [violation.rule for violation in check_steps(model, plan, Precision()).violations]
    proof = prove(model, plan, script, expected=expected, orders=0)
    return tuple(dict.fromkeys(rules)), tuple(violation.rule for violation in proof.verdict.violations)


@cache
def broken_by(what: str) -> tuple[Caught, Caught]:
    deployed(EXPANSIONS[what].deployment)  # what one device computes, before anything is broken
    with mutated(EXPANSIONS[what].mutation):
        return broken(EXPANSIONS[what].deployment)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_deployment_is_legal_before_anything_is_broken(name: str) -> None:
    assert broken(name) == ((), ())


@pytest.mark.parametrize("what", EXPANSIONS)
def test_mutated_expansion_is_caught(what: str, request: pytest.FixtureRequest) -> None:
    by_rules, by_execution = broken_by(what)
    assert by_rules or by_execution
    holds(request, MATRIX, line_of(what))


def line_of(what: str) -> str:
    """Return what the matrix says of a mutation."""
    by_rules, by_execution = broken_by(what)
    return f"{what:62}  G: {' '.join(by_rules) or '–':32}  X: {' '.join(by_execution) or '–'}"


def test_matrix_of_mutations_and_rules_is_as_it_was(request: pytest.FixtureRequest) -> None:
    compare_lines(request, MATRIX, {what: what for what in EXPANSIONS}, line_of)
