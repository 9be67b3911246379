"""Replicas that come back late or never, wherever the router looks at loads: ``late_replicas`` says what is tried."""

from __future__ import annotations

import pytest

from clustersim.errors import ClustersimError
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.effort import is_long, some
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import is_illegal
from tests.legality.timeline.late_replicas import MISTAKES, SCENARIOS, Mistake

pytestmark = pytest.mark.usefixtures("oracle")

PAIRS = [(name, shown) for name, (_, shown) in MISTAKES.items()]


@pytest.mark.parametrize("scenario", some(list(SCENARIOS)))
def test_what_fails_and_comes_back_as_declared_is_legal(scenario: str) -> None:
    assert audit_run(simulate(scenario_of(SCENARIOS[scenario]))).violations == ()


def judged(mistake: Mistake, scenario: str) -> tuple[bool, str]:
    """Return whether a replay with a mistake is illegal, and the digest of what it recorded."""
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        result = simulate(scenario_of(SCENARIOS[scenario]))
    return is_illegal(result, ("RUN-3", "RUN-4")), result.timeline.digest


@pytest.mark.parametrize(("name", "scenario"), PAIRS)
def test_a_mistake_about_who_lives_is_found(name: str, scenario: str) -> None:
    assert judged(MISTAKES[name][0], scenario)[0]


@pytest.mark.skipif(not is_long(), reason="for --long: each mistake in each scenario")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_mistake_that_is_not_found_changes_nothing(scenario: str) -> None:
    digest = simulate(scenario_of(SCENARIOS[scenario])).timeline.digest
    for name, (mistake, _) in MISTAKES.items():
        try:
            illegal, found = judged(mistake, scenario)
        except (ClustersimError, IndexError, ValueError):  # it records nothing
            continue
        assert illegal or found == digest, name
