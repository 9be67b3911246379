"""Hand-written histories (``tests/legality/histories``): the folder is the expected answer.

``legal/`` must be legal; ``illegal/RULE/`` must break RULE and no other rule. Which rule catches which history is also
written down in ``matrix.txt``, a golden: ``--update-golden`` rewrites it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from clustersim.legality.audit import TIMELINE_RULES, check_history
from clustersim.legality.rule import Verdict
from clustersim.legality.rulebook import RULES
from tests.legality.timeline.golden import compare
from tests.legality.timeline.notation import history_in

ROOT = Path(__file__).parent.parent / "histories"
MATRIX = Path(__file__).with_name("matrix.txt")
LEGAL = sorted((ROOT / "legal").glob("*.txt"))
ILLEGAL = sorted((ROOT / "illegal").glob("*/*.txt"))


@cache
def verdict_of(path: Path) -> Verdict:
    """Return what all rules say of a history."""
    return check_history(history_in(path))


@pytest.mark.parametrize("path", LEGAL, ids=lambda path: path.stem)
def test_legal_history_is_legal(path: Path) -> None:
    verdict = verdict_of(path)
    assert verdict.violations == ()
    assert verdict.verdict == "legal"


@pytest.mark.parametrize("path", ILLEGAL, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_illegal_history_breaks_its_rule_and_no_other(path: Path) -> None:
    rule = path.parent.name
    verdict = verdict_of(path)
    assert {found.rule for found in verdict.violations} == {rule}
    assert all(found.level == "T" and found.where and found.message and found.fix for found in verdict.violations)
    assert dict.fromkeys(entry.looked_at for entry in verdict.rules if entry.id == rule) != {0: None}


@pytest.mark.parametrize("rule", TIMELINE_RULES)
def test_rule_is_necessary(rule: str) -> None:
    """Switched off, it lets illegal histories pass; on, it finds nothing in the legal ones but looks at some."""
    cases = sorted((ROOT / "illegal" / rule).glob("*.txt"))
    assert cases, f"no history breaks {rule}"
    assert all(not check_history(history_in(path), without=(rule,)).violations for path in cases)
    looked = [verdict_of(path).of(rule, "T") for path in LEGAL]
    assert "legal" in looked
    assert "not_checkable" in looked


def test_rules_are_those_that_the_rulebook_checks_on_timelines() -> None:
    assert list(TIMELINE_RULES) == [rule.id for rule in RULES if "T" in rule.levels]


def test_matrix_of_histories_and_rules_is_as_it_was(request: pytest.FixtureRequest) -> None:
    lines = [
        f"{path.parent.name:6}  {path.stem:32}  "
        + " ".join(dict.fromkeys(found.rule for found in verdict_of(path).violations))
        for path in ILLEGAL
    ]
    compare(request, MATRIX, "\n".join(lines) + "\n")
