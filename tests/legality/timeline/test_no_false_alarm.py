"""No false alarm: what either replay records of any scenario is legal, and every rule finds something to look at.

``pytest tests/legality/timeline/test_no_false_alarm.py --long`` hunts for longer.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given

from clustersim.legality.audit import TIMELINE_RULES
from clustersim.scenario import load
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.effort import examples
from tests.laws.random_scenarios import documents, scenario_of

ROOT: Final = Path(__file__).parents[3]
NEED_MORE = {"TP-9", "EP-2", "EP-3", "DP-4"}
"""Rules that need another run, or routes: one run records neither."""


def test_what_both_replays_record_is_legal() -> None:
    looked: Counter[str] = Counter()

    @examples(60)
    @given(documents())
    def legal(document: dict[str, Any]) -> None:
        for replay in ("folded", "full"):
            verdict = audit_run(simulate(scenario_of(document, replay=replay)))
            assert verdict.violations == ()
            looked.update(rule.id for rule in verdict.rules if rule.looked_at)

    legal()
    assert {rule for rule in TIMELINE_RULES if not looked[rule]} == NEED_MORE


@pytest.mark.parametrize("name", ["failing-node", "failing-decode"])
def test_a_failure_after_the_horizon_cuts_nothing_off(name: str) -> None:
    scenario = load(str(ROOT / "scenarios" / f"{name}.yaml"), ("expect={}", "run.horizon=3 s"))
    assert scenario.faults
    assert audit_run(simulate(scenario)).violations == ()


def test_many_passes_are_judged_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load(str(ROOT / "scenarios" / "quickstart.yaml"), ("expect={}", "workload.trace.requests=4"))
    ran = simulate(scenario)
    monkeypatch.setattr("clustersim.timeline.passes.BLOCK_STEPS", 64)
    assert audit_run(ran).violations == ()
