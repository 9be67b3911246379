"""Lanes that depend on one another: what is handed on when, and what the heaps hold."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices import decodes
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.input import ReplayInput
from clustersim.replay.lanes import intake
from clustersim.replay.lanes.build import LaneBuilder
from clustersim.replay.lanes.clocks import shared_clock
from clustersim.replay.lanes.clocks.run import LaneReplay
from clustersim.replay.prepared import Prepared
from clustersim.replay.replay import replay
from clustersim.serving.decision import ARRIVED
from tests.round_numbers import deployment


def inputs(concurrency: int | None = None, every_ns: int = 1_000) -> ReplayInput:
    rng = np.random.default_rng(3)
    arrivals = [(every_ns * i, int(rng.integers(1, 40)), int(rng.integers(1, 30))) for i in range(200)]
    return deployment(arrivals, plan=ParallelPlan(dp=4), router="least_outstanding", concurrency=concurrency)


@pytest.mark.parametrize("concurrency", [None, 7])
def test_when_lanes_hand_on_what_they_have_makes_no_difference(monkeypatch, concurrency):
    at_the_end = replay(inputs(concurrency)).timeline
    monkeypatch.setattr(shared_clock, "RECORD_RUNS", 3)
    monkeypatch.setattr(intake, "BLOCK", 5)
    now_and_then = replay(inputs(concurrency)).timeline
    assert now_and_then.digest == at_the_end.digest
    assert now_and_then.num_spans == at_the_end.num_spans


@pytest.mark.parametrize("concurrency", [None, 7])
def test_hardly_a_step_is_priced_that_is_not_taken(monkeypatch, concurrency):
    priced = 0
    made = decodes.decode_price

    def counting(*args, **options):
        ns = made(*args, **options)

        def counted(keys):
            nonlocal priced
            priced += 1
            return ns(keys)

        return counted

    monkeypatch.setattr(decodes, "decode_price", counting)
    rows = replay(inputs(concurrency, every_ns=30_000)).timeline.steps
    taken = int(rows["count"][rows["kind"] == STEP_KINDS.index("decode")].sum())
    assert taken > 500
    assert taken <= priced <= 1.1 * taken


def test_a_request_arrives_in_the_table_before_it_is_decided_on(monkeypatch):
    monkeypatch.setattr(shared_clock, "RECORD_RUNS", 3)
    facts = replay(inputs()).timeline.facts
    first: dict[int, int] = {}
    for kind, request in zip(facts["kind"].tolist(), facts["request"].tolist(), strict=True):
        first.setdefault(request, kind)
    assert set(first.values()) == {ARRIVED}
    assert len(first) == 200


def test_loads_that_no_longer_count_do_not_pile_up():
    run = LaneReplay(LaneBuilder(Prepared(inputs())), None).intake
    driver = shared_clock.SharedClock(run)
    longest = 0
    for step in range(1_000):
        driver._weigh(step, step % 4)
        longest = max(longest, len(driver.loads))
    assert longest <= 8 * 4 + 1
