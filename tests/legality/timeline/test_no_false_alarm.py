"""No false alarm: what either replay records of any scenario is legal, and every rule finds something to look at.

``CLUSTERSIM_AUDIT_EXAMPLES=1000 pytest tests/legality/timeline/test_no_false_alarm.py`` hunts for longer.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings

from clustersim.legality.audit import TIMELINE_RULES
from clustersim.run.audit import audit_run
from clustersim.run.simulate import simulate
from tests.laws.random_scenarios import documents, scenario_of

EXAMPLES = int(os.environ.get("CLUSTERSIM_AUDIT_EXAMPLES", "60"))
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
NEED_MORE = {"TP-9", "EP-2", "EP-3", "DP-4"}
"""Rules that need another run, or routes: one run records neither."""


def test_what_both_replays_record_is_legal() -> None:
    looked: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
    @given(documents())
    def legal(document: dict[str, Any]) -> None:
        for replay in ("folded", "full"):
            verdict = audit_run(simulate(scenario_of(document, replay=replay)))
            assert verdict.violations == ()
            looked.update(rule.id for rule in verdict.rules if rule.looked_at)

    legal()
    assert {rule for rule in TIMELINE_RULES if not looked[rule]} == NEED_MORE
