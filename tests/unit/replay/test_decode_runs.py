"""Decode runs: how many steps are one run, told by the rows of steps. A decode step takes 6.6 µs and 10 ns per key."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay import core_replicas
from clustersim.replay.replay import replay
from tests.round_numbers import RoundCost, deployment, step_ends


def runs(given):
    """Steps of each run."""
    result = replay(given)
    assert result.obstacle == ""
    return result.timeline.steps["count"].tolist()


def test_decode_steps_until_a_member_finishes_are_one_run():
    # 2 prompts of 2 tokens in one step; 3 decode steps of both, then 4 of the longer one.
    assert runs(deployment([(0, 2, 4), (0, 2, 8)])) == [1, 3, 4]


def test_a_run_ends_with_the_step_that_an_arrival_falls_into():
    ends = step_ends(replay(deployment([(0, 2, 10)])).timeline)
    # Steps 1 … 9 decode; one arrives in step 4, and is computed beside the next token.
    assert runs(deployment([(0, 2, 10), (ends[3] + 1, 2, 1)])) == [1, 4, 1, 4]


def test_an_arrival_at_the_end_of_a_step_is_in_time_for_the_next():
    ends = step_ends(replay(deployment([(0, 2, 10)])).timeline)
    assert runs(deployment([(0, 2, 10), (ends[3], 2, 1)])) == [1, 3, 1, 5]


def test_a_run_ends_before_the_step_that_lacks_a_block():
    # 4 blocks of 4 tokens, 2 sequences of 2 + 8: each has a block until it has 4 tokens and a second until it has 8,
    # so 6 decode steps. The later one gives way, the earlier one takes its last token, and then it is its turn.
    assert runs(deployment([(0, 2, 8), (0, 2, 8)], kv_blocks=4))[:2] == [1, 6]


@pytest.mark.parametrize("most", [1, 5])
def test_a_run_has_at_most_so_many_steps_and_the_timeline_is_the_same(monkeypatch, most):
    given = deployment([(0, 2, 12)])
    whole = replay(given).timeline
    monkeypatch.setattr(core_replicas, "MAX_RUN", most)
    assert max(runs(given)) == most
    assert replay(given).timeline.digest == whole.digest


def test_a_horizon_keeps_the_steps_of_a_run_that_have_ended():
    ends = step_ends(replay(deployment([(0, 2, 10)])).timeline)
    assert runs(deployment([(0, 2, 10)], horizon_ns=ends[5])) == [1, 5]
    assert runs(deployment([(0, 2, 10)], horizon_ns=ends[5] - 1)) == [1, 4]


@pytest.mark.parametrize("plan", [ParallelPlan(), ParallelPlan(pp=2)], ids=["one stage", "two stages"])
@pytest.mark.parametrize("horizon_ns", [None, 5 * 10**18])
def test_instants_after_146_years_are_instants_too(plan, horizon_ns):
    late = (1 << 62) + 7
    runs = [
        replay(deployment([(0, 4, 3), (late, 4, 3)], mode=mode, plan=plan, layers=2, horizon_ns=horizon_ns))
        for mode in ("full", "folded")
    ]
    assert runs[0].timeline.digest == runs[1].timeline.digest
    assert runs[1].arrived_ns.tolist() == [0, late]


def test_steps_after_the_horizon_are_not_priced():
    class Ageing(RoundCost):  # attention over more than 9 keys takes longer than is allowed
        def seconds(self, op, shape):
            seconds = super().seconds(op, shape)
            return np.where(np.asarray(shape["keys"]) > 9, 1e6, seconds) if op == "attention_decode" else seconds

    result = replay(deployment([(0, 4, 40)], cost=Ageing(), horizon_ns=20_000))
    assert result.obstacle == ""
    assert result.timeline.num_steps == 2
    with pytest.raises(InputError, match="less than a day"):
        replay(deployment([(0, 4, 40)], cost=Ageing()))
