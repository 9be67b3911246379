"""Sends that meet collectives of their own replica: whether ranks do alike, an overlap by hand, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.links.sends import sends_differ
from clustersim.replay.prepared import Prepared
from clustersim.timeline.stretch import Stretch
from tests.round_numbers import DENSE, SPARSE, crossbar, deployment, lane, two_leaves

TWO_PROMPTS = [(0, 4, 1), (0, 4, 1)]
ONE_EACH = {"layers": 2, "max_batch_tokens": 4, "max_batch_requests": 4}
"""A prompt of four tokens is a step, and all that decode fit into one."""


@pytest.mark.parametrize(
    ("plan", "topology", "differ"),
    [
        (ParallelPlan(tp=2, pp=2), crossbar(4), False),
        (ParallelPlan(dp=2, tp=2, pp=2), crossbar(8), False),
        # Both all-reduces cross the link between the leaves, and so does a send of each rank.
        (ParallelPlan(tp=2, pp=2, placement=(0, 2, 1, 3)), two_leaves(2), True),
        # Ranks 0 and 1 send to the other leaf over one link.
        (ParallelPlan(tp=2, pp=2), two_leaves(2), True),
        # Rank 0 sends within its leaf, rank 1 to the other one, both over a link that its collectives use.
        (ParallelPlan(tp=2, pp=2, placement=(0, 3, 1, 2)), two_leaves(2), True),
        # Two replicas send from leaf to leaf.
        (ParallelPlan(dp=2, pp=2, placement=(0, 2, 1, 3)), two_leaves(2), True),
    ],
)
def test_whether_one_rank_sends_for_all(plan, topology, differ):
    assert sends_differ(Prepared(deployment(TWO_PROMPTS, plan=plan, topology=topology, layers=2))) == differ


def test_an_overlap_by_hand(run):
    """TP 2 × PP 2, two prompts of 4 tokens, as ``tests/golden/test_timelines_by_hand.py`` derives it for events.

    Send 0 begins at 23,200 and is on its links from 24,200. The all-reduce of the embedding of step 1 joins it at
    25,700, when 1,500 of 4,000 bytes are sent; at half the rate the others are sent at 30,700, 2,500 late, and the
    all-reduce is done at 32,200, 2,500 late too. Send 1 is on its links from 49,900, when the all-gather of step 0
    has 600 bytes left, which take until 51,100; then it has 3,400 left.
    """
    result = run(deployment(TWO_PROMPTS, plan=ParallelPlan(tp=2, pp=2), **ONE_EACH))
    assert result.obstacle == ""
    timeline = result.timeline
    for rank in (0, 1):
        assert lane(timeline, rank, "send") == [("send", 23_200, 30_700), ("send", 48_900, 54_500)]
        assert ("embedding_all_reduce", 23_700, 32_200) in lane(timeline, rank, "comm")
        assert ("o_proj_all_reduce", 34_500, 40_500) in lane(timeline, rank, "comm")
    for rank in (2, 3):
        assert ("lm_head_all_gather", 48_500, 51_100) in lane(timeline, rank, "comm")
    assert all(isinstance(found, Stretch) for found in timeline.irregular)
    assert [found.pairs[:, 1].tolist() for found in timeline.irregular] == [[600], [2_500]]


@pytest.mark.parametrize("layer", [DENSE, SPARSE])
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_full_and_folded_agree_on_round_numbers_where_much_coincides(run, layer, pp):
    arrivals = [(at * 2_300, 1 + at * 7 % 23, 1 + at % 5) for at in range(20)]
    plan = ParallelPlan(tp=2, pp=pp)
    cases = {"plan": plan, "layer": layer, **ONE_EACH, "layers": pp, "max_batch_tokens": 32}
    folded, full = (run(deployment(arrivals, mode=mode, **cases)) for mode in ("folded", "full"))
    assert folded.obstacle == ""
    assert len(folded.timeline.irregular) == len(full.timeline.irregular) > 5
    assert folded.timeline.digest == full.timeline.digest


def test_a_stretch_moves_all_that_follows(run):
    template = run(deployment([(0, 1, 1)])).timeline.templates[0]
    durations = np.full(template.num_classes, 10)
    count = len(template.instance_class)
    starts, finishes = Stretch.of([1, 5, 3, 2]).node_times(template, durations)
    lost = np.array([0, 5, 0, 2] + [0] * (count - 4))
    expected = np.cumsum(10 + lost)
    assert finishes.tolist() == expected[template.node_instance].tolist()
    assert starts.tolist() == (expected - 10 - lost)[template.node_instance].tolist()
