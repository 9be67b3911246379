"""Replays in which something that is ready waits: a few lines of each are other than they are, and the audit notices.

Nothing else is wrong with their timelines: all is in order, costs what it does, and comes later than it could.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from clustersim.replay.events import wiring
from clustersim.replay.events.chain import ChainPass
from clustersim.replay.events.collectives import Collectives
from clustersim.replay.events.pipeline import Pipeline
from clustersim.replay.events.stage_pass import EventPass
from clustersim.replay.events.stage_sends import StageSends
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.mutations import Mutation, mutated
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import broken, is_illegal
from tests.legality.timeline.test_link_mutations import LONG, RACKS, SHARED, WIDE
from tests.legality.timeline.test_replay_mutations import EXPERTS, FOLDED, FULL, RING, document
from tests.oracle.events.decode_run import DecodeRun
from tests.oracle.events.run import EventReplay
from tests.oracle.events.stepper import Stepper

pytestmark = pytest.mark.usefixtures("oracle")

SCENARIOS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "one stage": ({}, FULL),
    "rings": ({"plan": RING}, FULL),
    "rings with experts, folded": ({"plan": RING | {"ep": 2}, "model": EXPERTS}, FOLDED),
    "halves": ({"plan": {"tp": 2, "ep": {"degree": 2, "overlap": "two_batch"}}, "model": EXPERTS}, FULL),
    "two stages": ({"plan": {"pp": 2}}, FULL),
    "two stages, folded": ({"plan": {"pp": 2}, "serving": {"max_batch_requests": 40}}, FOLDED),
    "four stages": ({"plan": {"pp": 4}}, FULL),
    "stages of two ranks": ({"plan": {"tp": 2, "pp": 2}}, FULL),
    "stages far apart": (
        {
            "topology": RACKS | {"oversubscription": 512}, "plan": {"pp": 2, "placement": [0, 8]}, "serving": WIDE,
            "workload": LONG,
        }, FULL,
    ),
    "sends that meet collectives": (SHARED["sends"], FULL),
    "sends that meet collectives, folded": (SHARED["sends"], FOLDED),
    "replicas that share links": (SHARED["replicas"], FULL),
    "copies that meet collectives": (SHARED["swaps"], FULL),
}  # fmt: skip
IDLE: Final = {"decisions are taken a while after they are due": "RUN-3"}
"""What a rule of its own tells."""

IN_A_ROW: Final = Mutation(
    wiring, "expanded_program", "resolved.append(tuple(found))",
    "resolved.append(tuple(dict.fromkeys([*found, *([int(number[node]) - 1] if number[node] > 0 else [])])))",
)  # fmt: skip
LONGER: Final = Mutation(
    Collectives, "of", "self.network.begin(plan, payload, ns, done",
    "self.network.begin(plan, payload, ns + 1_000, done",
)  # fmt: skip
LATE: Final[dict[str, tuple[Mutation, str]]] = {
    "a kernel idles before it starts": (
        Mutation(
            EventPass, "_prepared", "now + durations[after], phase",
            "now + 1_000 + durations[after], phase",
        ), "one stage",
    ),
    "a kernel idles for a nanosecond": (
        Mutation(
            EventPass, "_prepared", "now + durations[after], phase",
            "now + 1 + durations[after], phase",
        ), "rings",
    ),
    "a collective idles before it starts": (
        Mutation(
            EventPass, "_prepared", "communicate(operator, classes[operator], group, durations[operator], ended, begun",
            "starts[operator] += 1_000; "
            "communicate(operator, classes[operator], group, durations[operator] + 1_000, ended, begun",
        ), "one stage",
    ),
    "operators wait for all before them": (IN_A_ROW, "one stage"),
    "operators of rings wait for all before them": (IN_A_ROW, "rings"),
    "operators of halves wait for all before them": (IN_A_ROW, "halves"),
    "a send begins later": (
        Mutation(StageSends, "_undisturbed", "max(free_at[rank], ready)", "max(free_at[rank], ready) + 50_000"),
        "two stages, folded",
    ),
    "a send begins a nanosecond later": (
        Mutation(StageSends, "_undisturbed", "max(free_at[rank], ready)", "max(free_at[rank], ready) + 1"),
        "two stages, folded",
    ),
    "a send takes longer": (
        Mutation(StageSends, "_undisturbed", "in_time(start + took)", "in_time(start + took + 50_000)"),
        "two stages, folded",
    ),
    "what was sent arrives later": (
        Mutation(StageSends, "_undisturbed", "last - now_ns(self.env)", "last + 50_000 - now_ns(self.env)"),
        "two stages, folded",
    ),
    "by events, a send begins later": (
        Mutation(
            StageSends, "_queue", "self.begin(stage, rank)",
            "at(self.env, 50_000, COMPLETION, lambda _: self.begin(stage, rank), None)",
        ), "stages of two ranks",
    ),
    "by events, a rank rests between two sends": (
        Mutation(
            StageSends, "_sent", "self.begin(stage, rank)",
            "at(self.env, 500, COMPLETION, lambda _: self.begin(stage, rank), None)",
        ), "stages far apart",
    ),
    "a send waits for a round instant": (
        Mutation(
            StageSends, "_undisturbed", "max(free_at[rank], ready)", "max(free_at[rank], ready) // 999 * 999 + 999",
        ), "two stages, folded",
    ),
    "a stage begins later": (
        Mutation(
            Pipeline, "_take", "self._start(stage, micro)",
            "self.queues[stage].append(micro); at(self.env, 50_000, COMPLETION, lambda _: self._start("
            "stage, self.queues[stage].popleft()) if self.busy[stage] is None and self.queues[stage] else None, None)",
        ), "two stages",
    ),
    "a stage rests between two passes": (
        Mutation(
            Pipeline, "_free", "self._start(stage, self.queues[stage].popleft())",
            "at(self.env, 500, COMPLETION, lambda _: self._start(stage, self.queues[stage].popleft()) "
            "if self.busy[stage] is None and self.queues[stage] else None, None)",
        ), "four stages",
    ),
    "a step begins a while after it was decided": (
        Mutation(
            Stepper, "_step", "self._pipeline.launch(micro)",
            "self._pipeline.busy[0] = micro; "
            "self.env.timeout(700).callbacks.append(lambda _: self._pipeline.launch(micro))",
        ), "one stage",
    ),
    "decisions are taken a while after they are due": (
        Mutation(EventReplay, "_wake", "at(self.env, 0, ", "at(self.env, 700, "), "one stage",
    ),
    "steps of a run rest": (
        Mutation(DecodeRun, "__init__", "np.cumsum(self._lengths(program))", "np.cumsum(self._lengths(program) + 9)"),
        "rings with experts, folded",
    ),
    "steps of a run rest between them": (
        Mutation(
            DecodeRun, "__init__", "self._keep(steps_before_change(pipeline, self.starts))",
            "rests = 9 * np.arange(len(self.ends)); self.starts += rests; self.ends += rests; "
            "self._keep(steps_before_change(pipeline, self.starts))",
        ), "rings with experts, folded",
    ),
    "collectives that may meet sends take longer": (LONGER, "sends that meet collectives"),
    "collectives that may meet those of another replica take longer": (LONGER, "replicas that share links"),
    "collectives that may meet copies to a host take longer": (LONGER, "copies that meet collectives"),
    "collectives of a chain that is stepped take longer": (
        Mutation(
            ChainPass, "_step", "self.communicate(segment, cls, members, length, self._stepped, started)",
            "self.communicate(segment, cls, members, length + 1_000, self._stepped, started)",
        ), "sends that meet collectives, folded",
    ),
}  # fmt: skip


@cache
def legal(case: str) -> RunResult:
    changes, run = SCENARIOS[case]
    result = simulate(scenario_of(document(**changes), **run))
    assert audit_run(result).violations == ()
    return result


@pytest.mark.parametrize("name", LATE)
def test_what_is_ready_and_waits_is_found(name: str) -> None:
    mutation, case = LATE[name]
    result = legal(case)
    with mutated(mutation):
        late = simulate(result.scenario)
    assert late.timeline.digest != result.timeline.digest
    rules = {IDLE.get(name, "RUN-2")}
    assert broken(late, rules) == rules


@pytest.mark.parametrize("by", [1, -1])
def test_a_duration_that_is_a_nanosecond_off_is_found(by: int) -> None:
    history = history_of_run(legal("rings"))
    assert history.folded is not None
    row = np.flatnonzero(history.folded.row_values > 1)
    for at in row[:: len(row) // 12].tolist():
        values = history.folded.row_values.copy()
        values[at] += by
        changed = replace(history, folded=replace(history.folded, row_values=values))
        assert is_illegal(changed, ("RUN-2",)), at
