"""Replay code with one mistake about faults in it, and the rule that notices; without it the same run is legal."""

from __future__ import annotations

from typing import Any

import pytest

from clustersim.replay.events.slow_chain import SlowChain
from clustersim.replay.events.stage_sends import StageSends
from clustersim.replay.slowdown import Slowdown, Slowdowns
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.test_replay_mutations import document
from tests.oracle.events.replica import Replica
from tests.oracle.replay.admission import Admission
from tests.oracle.replay.fleet import Fleet

pytestmark = pytest.mark.usefixtures("oracle")

Patch = pytest.MonkeyPatch


def keeps_its_cache(patch: Patch) -> None:
    """A replica comes back with the blocks that it had cached when it failed."""
    restart, fresh = Fleet.restart, Fleet.new_scheduler

    def remembers(self: Fleet, replica: Replica) -> Any:
        pool = replica.scheduler.pool

        def new_scheduler(fleet: Fleet, index: int) -> Any:
            found = fresh(fleet, index)
            found.pool = found.caching = pool
            return found

        patch.setattr(Fleet, "new_scheduler", new_scheduler)
        return restart(self, replica)

    patch.setattr(Fleet, "restart", remembers)


def sends_at_full_speed(patch: Patch) -> None:
    """A send over a weak link takes no longer than over a link as it should be."""
    cost = StageSends.cost

    def unaware(self: StageSends, stage: int, rank: int, micro: Any) -> Any:
        slowdown = micro.slowdowns.pop(stage, None)
        found = cost(self, stage, rank, micro)
        if slowdown is not None:
            micro.slowdowns[stage] = slowdown
        return found

    patch.setattr(StageSends, "cost", unaware)


def collects_at_full_speed(patch: Patch) -> None:
    """A collective over a weak link takes no longer than over a link as it should be."""
    patch.setattr(Slowdown, "communication", lambda self, plan, payload, duration: (plan, duration))


def collects_too_slowly(patch: Patch) -> None:
    """A collective over a weak link takes longer by half as much again as the link explains."""
    communication = Slowdown.communication

    def slower(self: Slowdown, plan: Any, payload: float, duration: int) -> Any:
        weak, took = communication(self, plan, payload, duration)
        return weak, took + (took - duration) // 2

    patch.setattr(Slowdown, "communication", slower)


def collects_once_at_full_speed(patch: Patch) -> None:
    """One collective of a chain over a weak link takes no longer than over a link as it should be."""
    weak = SlowChain._weak

    def but_the_last(self: SlowChain, *given: Any) -> Any:
        found = weak(self, *given)
        found[-1] = 0
        return found

    patch.setattr(SlowChain, "_weak", but_the_last)


def works_for_the_others(patch: Patch) -> None:
    """Ranks beside a slow one end their kernels when it does."""
    of_rank = SlowChain._of_rank
    patch.setattr(SlowChain, "_of_rank", lambda self, rank: of_rank(self, max(self.slowdown.slow)))


def runs_at_full_speed(patch: Patch) -> None:
    """The kernels of a slow device take no longer than those of others."""
    patch.setattr(Slowdown, "kernel_ns", lambda self, rank, duration: duration)


def does_not_know_of_slowness(patch: Patch) -> None:
    """Passes on a slow device are those of one as it should be."""
    patch.setattr(Slowdowns, "of", lambda self, stage, now: None)


def works_while_it_is_down(patch: Patch) -> None:
    """A replica that has failed goes on with what comes next."""
    restart = Fleet.restart

    def lives_on(self: Fleet, replica: Replica) -> Any:
        found = restart(self, replica)
        replica.alive = True
        return found

    patch.setattr(Fleet, "restart", lives_on)


def loses_silently(patch: Patch) -> None:
    """What is lost has no reason."""
    change = Admission.change

    def silent(self: Admission, now: int) -> None:
        change(self, now)
        self.reasons.clear()

    patch.setattr(Admission, "change", silent)


LINK = ["n0.g0", "n0.nvswitch"]
PIPELINED = {"pp": 2, "tp": 1}
WEAK_IN_GROUP = document(plan={"tp": 2}, faults=[{"link": LINK, "at": "0 s", "factor": 0.01}])
WEAK = document(plan=PIPELINED, faults=[{"link": LINK, "at": "0 s", "factor": 0.01}])
STRAGGLER = document(plan={"tp": 2}, faults=[{"device": 1, "at": "0 s", "slowdown": 3.0}])
DOWN = document(faults=[{"device": 0, "at": "1.2 ms", "until": "2.5 ms"}])
LOST = document(faults=[{"device": 0, "at": "1.2 ms", "until": "2.5 ms", "lose": "lose"}])
CACHED = document(
    serving={"prefix_caching": True},
    workload={"shared_prefixes": {"groups": 1, "tokens": 24}},
    faults=[{"device": 0, "at": "1.2 ms", "until": "1.5 ms"}],
)
MISTAKES = [
    (keeps_its_cache, CACHED, "KV-5"),
    (sends_at_full_speed, WEAK, "RUN-2"),
    (collects_at_full_speed, WEAK_IN_GROUP, "RUN-2"),
    (collects_too_slowly, WEAK_IN_GROUP, "RUN-2"),
    (collects_once_at_full_speed, WEAK_IN_GROUP, "RUN-2"),
    (works_for_the_others, STRAGGLER, "RUN-2"),
    (runs_at_full_speed, STRAGGLER, "RUN-2"),
    (does_not_know_of_slowness, STRAGGLER, "RUN-2"),
    (works_while_it_is_down, DOWN, "RUN-3"),
    (loses_silently, LOST, "RUN-4"),
]


@pytest.mark.parametrize(("mistake", "given", "rule"), MISTAKES, ids=[one[0].__name__ for one in MISTAKES])
def test_a_mistake_about_faults_is_caught(mistake: Any, given: Any, rule: str) -> None:
    scenario = scenario_of(given)
    assert audit_run(simulate(scenario)).violations == ()
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        assert rule in broken(simulate(scenario), (rule,))
