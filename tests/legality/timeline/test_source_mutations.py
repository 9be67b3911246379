"""The source of the replay with one text changed, and the audit that notices; without it the scenario is legal.

Each change certainly does something: the record of its scenario has another digest.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest

from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.source_mutations import Change, changed
from tests.legality.timeline.test_start_mutations import CROWDS

SCENARIOS: Final[dict[str, dict[str, Any]]] = {
    "by layer": CROWDS["by layer, from stages"],
}
HAND_OVERS: Final = "replay.pools.hand_overs"
CHANGES: Final = (
    Change(
        HAND_OVERS, "self._open(replica, sequence, sequence.computed)", "self._open(replica, sequence, 0)", "by layer"
    ),
    Change(HAND_OVERS, "for layer in transfer.passed:", "for layer in reversed(transfer.passed):", "by layer"),
)


@cache
def legal(name: str) -> RunResult:
    return simulate(scenario_of(SCENARIOS[name]))


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_unchanged_replay_is_legal(name: str) -> None:
    assert audit_run(legal(name)).violations == ()


@pytest.mark.parametrize(
    "change", CHANGES, ids=[f"{one.module.rpartition('.')[2]}: {one.new.strip()[:70]}" for one in CHANGES]
)
def test_a_change_of_the_source_is_found(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, change)
    result = simulate(scenario_of(SCENARIOS[change.scenario]))
    assert result.timeline.digest != legal(change.scenario).timeline.digest
    assert audit_run(result).verdict == "illegal"
