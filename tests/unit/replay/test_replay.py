"""What a replay as a whole does: jumps, progress, and what it says when it cannot go on."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from clustersim.errors import InputError, StallError
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.core_replicas import MAX_RUN
from clustersim.replay.replay import replay
from tests.round_numbers import ALGORITHMS, deployment, step_ends, two_leaves


def test_a_run_longer_than_the_longest_jump_is_several(run):
    # 6,000 tokens: a prefill of one token, then decodes of 2, 3, … keys, 10 ns each.
    timeline = run(deployment([(0, 1, 6_000)], kv_blocks=2_000)).timeline
    assert timeline.steps["count"].tolist() == [1, MAX_RUN, 6_000 - 1 - MAX_RUN]
    assert step_ends(timeline)[-1] == 6_610 + sum(6_600 + 10 * keys for keys in range(2, 6_001))


def test_a_run_of_one_sequence_is_cut_where_another_one_arrives(run):
    timeline = run(deployment([(0, 1, 9), (50_000, 1, 1)])).timeline
    # Decodes of 2, 3, … keys end at 13,230, 19,860, 26,500, 33,150, 39,810, 46,480, 53,160; the eighth is shared.
    assert timeline.steps["count"].tolist() == [1, 7, 1]
    assert timeline.steps["start_ns"].tolist() == [0, 6_610, 53_160]


PLANS = {"one stage": ParallelPlan(), "two stages": ParallelPlan(pp=2), "two ranks": ParallelPlan(tp=2)}


@pytest.mark.parametrize("mode", ["full", "folded"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("left_ns", [5_000, 100_000])
def test_steps_that_end_later_than_64_bits_can_tell_are_an_error_of_the_input(plan, mode, left_ns):
    arrivals = [(2**63 - left_ns, 4, 1_000)]
    with pytest.raises(InputError, match="simulated time exceeds 292 years"):
        replay(deployment(arrivals, plan=PLANS[plan], layers=2, mode=mode))


def test_an_overflow_that_is_none_of_time_is_not_told_as_one(monkeypatch):
    monkeypatch.setattr("clustersim.replay.shares.core_part", lambda *_: array("b").append(300))
    with pytest.raises(OverflowError, match="signed char"):
        replay(deployment([(0, 4, 2)]))


def test_what_waits_for_room_does_not_cut_runs(run):
    # Request 1 waits for request 0 to end; what arrives meanwhile waits behind it.
    arrivals = [(0, 1, 100), (1_000, 1, 1), *((10_000 * i, 1, 1) for i in range(1, 20))]
    timeline = run(deployment(arrivals, max_batch_requests=1)).timeline
    assert timeline.steps["count"].tolist()[:2] == [1, 99]


def test_replicas_placed_alike_share_templates(run):
    plan = ParallelPlan(dp=2, tp=4)
    assert len(run(deployment([(0, 4, 2)], plan=plan)).timeline.templates) == 3


def test_replicas_whose_collectives_cost_differently_have_templates_of_their_own(run):
    # Ranks 0 … 3 are on one switch; of 4 … 7 two are on either. When all read from all, the link between the
    # switches carries 2 · 2 tensors, and those of the devices 3.
    algorithms = ALGORITHMS | {"all_reduce": "one_shot"}
    plan = ParallelPlan(dp=2, tp=4)
    given = deployment([(0, 1, 1), (0, 1, 1)], plan=plan, topology=two_leaves(6), algorithms=algorithms)
    timeline = run(given).timeline
    assert len(timeline.templates) == 2 * 3
    spans = timeline.unfold()
    reduces = spans.name == spans.names.index("o_proj_all_reduce")
    assert (spans.end_ns - spans.start_ns)[reduces].tolist() == [1_000 + 3 * 1_000] * 4 + [1_000 + 4 * 1_000] * 4


def test_progress_is_told_when_requests_end():
    seen = []
    replay(deployment([(0, 4, 1), (0, 9_999, 1), (50_000, 4, 1)]), lambda *told: seen.append(told))
    assert seen == [(56_700, 3, 3)]  # of those that the log has when it is handed on


@pytest.mark.parametrize("mode", ["full", "folded"])
def test_a_stall_says_who_waits_for_what(monkeypatch, mode):
    monkeypatch.setattr("clustersim.core.steps.schedule", lambda s, r, base: False)
    with pytest.raises(StallError) as caught:
        replay(deployment([(0, 4, 1), (7, 9, 1)], mode=mode))
    assert str(caught.value).splitlines() == [
        "nothing can happen any more, but 2 requests are unfinished",
        "  replica 0: 2 waiting, 0 running, 1000 of 1000 K/V blocks free",
        "  request 0 waits for 1 K/V blocks and a place in the batch",
    ]


def test_a_stall_says_which_operators_wait(monkeypatch):
    monkeypatch.setattr("clustersim.replay.links.sharing_by_events.Network.begin", lambda *_, **__: None)
    with pytest.raises(StallError) as caught:
        replay(deployment([(0, 4, 1)], mode="full", plan=ParallelPlan(tp=2)))
    assert str(caught.value).splitlines() == [
        "nothing can happen any more, but 1 request is unfinished",
        "  replica 0: 0 waiting, 1 running, 999 of 1000 K/V blocks free",
        "  replica 0 stage 0 is inside step 0; 31 operators wait for others",
    ]


def test_a_replay_of_no_request_is_empty(run):
    result = run(deployment([]))
    assert result.timeline.num_spans == result.timeline.num_steps == 0
    assert result.replica.tolist() == []


def test_the_same_input_gives_the_same_timeline_again():
    given = deployment([(0, 30, 40), (900, 5, 70), (1_000, 64, 9)], kv_blocks=30, plan=ParallelPlan(dp=2))
    one, other = replay(given).timeline, replay(given).timeline
    assert one.digest == other.digest
    assert np.array_equal(one.unfold().start_ns, other.unfold().start_ns)
