"""Expansion code with one mistake in it: rules of level G, the proof by execution, or both notice.

Which of them is written down in ``expansion_matrix.txt``, a golden: ``--update-golden`` rewrites it. What a proof can't
see are sizes that only cost reads (payloads, shares that are larger than needed) and the order of steps, which it takes
from its script; what the rules can't see are values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from expansion_mutations import DEPLOYMENTS, EXPANSIONS

from clustersim.cost.precision import Precision
from clustersim.model import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.comparison import Expected, expected_of
from clustersim.proof.proof import prove
from clustersim.proof.script import Script, chunked_script
from clustersim.simulation.graph_legality import check_steps
from tests.effort import is_whole
from tests.laws.mutations import mutated
from tests.laws.proof_cases import model_of
from tests.legality.timeline.golden import compare_lines, holds

MATRIX = Path(__file__).with_name("expansion_matrix.txt")

Caught = tuple[str, ...]
NOTHING: Final = "–"


@cache
def deployed(name: str) -> tuple[ModelSpec, ParallelPlan, Script, Expected]:
    model_name, plan = DEPLOYMENTS[name]
    model = model_of(model_name)
    script = chunked_script((8, 6), output_tokens=2, budget=10, vocab=model.vocab, plan=plan)
    return model, plan, script, expected_of(model, script)


def by_rules(name: str) -> Caught:
    """Return the rules that a deployment breaks at level G."""
    model, plan, _, _ = deployed(name)
    return tuple(dict.fromkeys(violation.rule for violation in check_steps(model, plan, Precision()).violations))


def by_execution(name: str) -> Caught:
    """Return the rules that a deployment breaks at level X."""
    model, plan, script, expected = deployed(name)
    proof = prove(model, plan, script, expected=expected, orders=0)
    return tuple(violation.rule for violation in proof.verdict.violations)


LEVELS: Final[dict[str, Callable[[str], Caught]]] = {"G": by_rules, "X": by_execution}


@cache
def broken_by(what: str, level: str) -> str:
    """Return the rules of a level that a mutation breaks, as the matrix has them."""
    deployed(EXPANSIONS[what].deployment)  # what one device computes, before anything is broken
    with mutated(EXPANSIONS[what].mutation):
        return " ".join(LEVELS[level](EXPANSIONS[what].deployment)) or NOTHING


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_deployment_is_legal_before_anything_is_broken(name: str) -> None:
    assert (by_rules(name), by_execution(name)) == ((), ())


def written(what: str) -> dict[str, str]:
    """Return what catches a mutation at each level, as it is written down; nothing where it is not."""
    lines = (line for line in MATRIX.read_text(encoding="utf-8").splitlines() if line.startswith(f"{what:62}  G: "))
    at_g, _, at_x = next(lines, "").partition("  G: ")[2].partition("  X: ")
    return {level: rules for level, rules in (("G", at_g.strip()), ("X", at_x)) if rules not in ("", NOTHING)}


@pytest.mark.parametrize(("at", "what"), list(enumerate(EXPANSIONS)), ids=EXPANSIONS)
def test_mutated_expansion_is_caught(at: int, what: str, request: pytest.FixtureRequest) -> None:
    """By the levels that are written down, which take turns where both see it, and all of them with ``--long=1``."""
    if is_whole():
        holds(request, MATRIX, line_of(what))
    catches = written(what)
    assert catches, f"{MATRIX.name} lacks it: pytest --update-golden {Path(__file__).name}"
    for level in catches if is_whole() else [list(catches)[at % len(catches)]]:
        assert broken_by(what, level) == catches[level]


def line_of(what: str) -> str:
    """Return what the matrix says of a mutation."""
    return f"{what:62}  G: {broken_by(what, 'G'):32}  X: {broken_by(what, 'X')}"


def test_matrix_of_mutations_and_rules_is_as_it_was(request: pytest.FixtureRequest) -> None:
    compare_lines(request, MATRIX, {what: what for what in EXPANSIONS}, line_of)
