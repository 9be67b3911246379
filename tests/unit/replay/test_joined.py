"""Operators that are joined: a third of the events or fewer, and every operator starts and ends as it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clustersim.clock import Int64Array
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan
from clustersim.replay.events.clock import Clock
from clustersim.replay.events.joined import joined
from clustersim.replay.events.pass_program import EventProgram, expanded_program
from clustersim.replay.events.stage_pass import EventPass
from clustersim.replay.events.wiring import StageWiring
from clustersim.replay.prepared import Prepared
from tests.round_numbers import SPARSE, deployment

WIDE = ParallelPlan(dp=2, ep=ExpertPlan(degree=2, scope="global"))
RING = ParallelPlan(sp=SequencePlan(degree=2, scheme="ring"))


def ran(program: EventProgram, durations: list[int], slower: int) -> tuple[Int64Array, Int64Array]:
    """Run a pass whose communications take ``slower`` times as long as they should."""
    env = Clock(initial_time=0)

    def communicate(
        operator: int, cls: int, members: Any, ns: int, done: Callable[[int], None], begun: int | None = None
    ) -> None:
        env.timeout(ns * slower).callbacks.append(lambda _: done(operator))  # type: ignore[union-attr]

    run = EventPass(env, program, durations, communicate, lambda ranks: None, lambda: None)
    run.begin()
    env.run()
    return run.node_times()


@pytest.mark.parametrize("kind", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize(("plan", "fewer"), [(WIDE, 2.0), (RING, 1.5)])
@pytest.mark.parametrize("slower", [1, 3])
def test_joined_operators_run_when_each_of_them_would(plan: ParallelPlan, fewer: float, kind: str, slower: int) -> None:
    pool = Prepared(deployment([(0, 8, 2)], plan=plan, layer=SPARSE)).pools[0]
    program = pool.programs[0, 0][kind]  # type: ignore[index]
    wiring = StageWiring(
        programs=pool.programs[0, 0], devices=pool.stage_devices(0, 0), as_events=True, send_as_events=True,
        full=False, watched=None, shapes={}, pricer=pool.input.pricer, prices=None,
    )  # fmt: skip
    short, long = wiring.shape(kind), expanded_program(program)  # type: ignore[arg-type]
    assert isinstance(short, EventProgram)
    assert len(long.indegree) > fewer * len(short.indegree)
    dice = np.random.default_rng(7)
    durations = dice.integers(1, 50, program.template.num_classes).tolist()
    for one, other in zip(ran(short, durations, slower), ran(long, durations, slower), strict=True):
        assert one.tolist() == other.tolist()


def test_an_operator_whose_end_somebody_waits_for_ends_its_row() -> None:
    row = EventProgram(
        indegree=[0, 1, 1], successors=[(1,), (2,), ()], cls=[0, 0, 0], members=[None] * 3, exits={},
        node_of=np.arange(3),
    )  # fmt: skip
    assert len(joined(row, [0, 0, 0]).indegree) == 1
    told = joined(row, [0, 0, 0], {1})
    assert told.node_of.tolist() == [0, 0, 1]
    assert told.works is not None
    assert told.works.first.tolist() == [0, 2]
