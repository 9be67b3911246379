"""The examples that ``clustersim rules`` shows are what tested cases yield, word for word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from graph_cases_small import view_of
from graph_mutations import MUTATIONS
from plan_mutations import PLAN_RULE, verdict_of

from clustersim.legality.audit import check_history
from clustersim.legality.check_graph import check_graph
from clustersim.legality.rule import Violation
from clustersim.legality.rulebook import RULES, examples
from tests.legality.timeline.golden import compare
from tests.legality.timeline.notation import history_in

HISTORIES = Path(__file__).parent / "histories" / "illegal"
FILE = Path(examples.__file__).with_name(examples.FILE)


def cases(rule: str, level: str) -> Iterator[Violation]:
    """Yield the violations of a rule in the tested cases of a level."""
    if level == "P":
        verdicts = (verdict_of(name) for name, broken in PLAN_RULE.items() if broken == rule)
    elif level == "G":
        verdicts = (check_graph(one.change(view_of(one.case))) for one in MUTATIONS if one.rule == rule)
    else:
        verdicts = (check_history(history_in(path)) for path in sorted((HISTORIES / rule).glob("*.txt")))
    for verdict in verdicts:
        yield from (found for found in verdict.violations if (found.rule, found.level) == (rule, level))


def kept(rule: str, level: str) -> dict[str, str]:
    """Return the example of a rule at a level as it is, where a case still yields it, or the first that one does."""
    known = [one.as_json() for one in examples.examples_of(rule) if one.level == level]
    first = None
    for found in cases(rule, level):
        first = first or found.as_json()
        if found.as_json() in known:
            return found.as_json()
    assert first is not None, f"no tested case breaks {rule} at level {level}"
    return first


def test_the_examples_are_violations_that_tested_cases_yield(request: pytest.FixtureRequest) -> None:
    found = {
        rule.id: [kept(rule.id, level) for level in rule.levels if level != "X"]  # of X they tell the same story
        for rule in RULES
    }
    plain = {rule: [{key: one[key] for key in ("level", "where", "message", "fix")} for one in each]
             for rule, each in found.items()}  # fmt: skip
    compare(request, FILE, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_every_rule_has_an_example_with_place_message_and_what_would_be_legal(rule: str) -> None:
    found = examples.examples_of(rule)
    assert found
    assert all(one.where and one.message and one.fix for one in found)
