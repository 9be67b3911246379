"""What a history lacks is not checkable: it breaks no rule, and stops none."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from clustersim.legality.audit import check_history
from clustersim.legality.history import Declared, History
from tests.legality.timeline.notation import history_in

ROOT = Path(__file__).parent.parent / "histories"
DECLARED_BY_FACTS = ("taken_over_after_a_hand_over",)
"""Histories in which a fact declares that a sequence goes on elsewhere: without it DP-2 is right to object."""
TABLES = ("requests", "steps", "chunks", "decodes", "facts", "spans", "routes", "held", "flows", "other")


def test_empty_history_is_not_checkable() -> None:
    verdict = check_history(History(pools=(Declared(),)))
    assert verdict.verdict == "not_checkable"
    assert {rule.looked_at for rule in verdict.rules} == {0}


@pytest.mark.parametrize("path", sorted((ROOT / "legal").glob("*.txt")), ids=lambda path: path.stem)
def test_legal_history_stays_legal_when_tables_lack(path: Path) -> None:
    history = history_in(path)
    there = [name for name in TABLES if getattr(history, name) is not None]
    for lacking in (*combinations(there, 1), *combinations(there, 2)):
        if "facts" in lacking and path.stem in DECLARED_BY_FACTS:
            continue
        verdict = check_history(replace(history, **dict.fromkeys(lacking)))
        assert verdict.violations == (), lacking


@pytest.mark.parametrize("path", sorted(ROOT.glob("**/*.txt")), ids=lambda path: f"{path.parent.name} {path.stem}")
def test_history_can_be_checked_when_a_table_is_empty(path: Path) -> None:
    history = history_in(path)
    for name in ("steps", "chunks", "decodes", "facts"):
        table = getattr(history, name)
        if table is not None:
            emptied = replace(history, **{name: {column: values[:0] for column, values in table.items()}})
            assert {rule.level for rule in check_history(emptied).rules} == {"T"}, name
