"""Replay code with one mistake about faults in it, and the rule that notices; without it the same run is legal."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.replay.fleet import Fleet
from clustersim.replay.given import Prepared
from clustersim.replay.replica import Replica
from clustersim.run.audit import audit_run
from clustersim.run.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.test_replay_mutations import document

Patch = pytest.MonkeyPatch


def keeps_its_cache(patch: Patch) -> None:
    """A replica comes back with the blocks that it had cached when it failed."""
    restart, fresh = Fleet.restart, Prepared.new_scheduler

    def remembers(self: Fleet, replica: Replica) -> Any:
        pool = replica.scheduler.pool

        def new_scheduler(prepared: Prepared) -> Any:
            found = fresh(prepared)
            found.pool = found.caching = pool
            return found

        patch.setattr(Prepared, "new_scheduler", new_scheduler)
        return restart(self, replica)

    patch.setattr(Fleet, "restart", remembers)


CACHED = document(
    serving={"prefix_caching": True},
    workload={"shared_prefixes": {"groups": 1, "tokens": 24}},
    faults=[{"device": 0, "at": "1.2 ms", "until": "1.5 ms"}],
)
MISTAKES = [(keeps_its_cache, CACHED, "KV-5")]


@pytest.mark.parametrize(("mistake", "given", "rule"), MISTAKES, ids=[one[0].__name__ for one in MISTAKES])
def test_a_mistake_about_faults_is_caught(mistake: Any, given: Any, rule: str) -> None:
    scenario = scenario_of(given)
    assert audit_run(simulate(scenario)).violations == ()
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        assert rule in {violation.rule for violation in audit_run(simulate(scenario)).violations}
