"""What ranks did with their time: literals on round numbers, and equality with a count over unfolded spans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.clock import FloatArray
from clustersim.cost.protocol import Shape
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan
from clustersim.replay.replay import replay
from clustersim.timeline.intervals import union
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.usage import usage_of
from tests.plain_usage import assert_plain
from tests.round_numbers import SPARSE, RoundCost, deployment, two_leaves
from tests.unit.timeline.test_moves import BACK, HAND_OVER, SWAP, frozen

COMPUTE, COMM, SEND, RECV, HOST = (STREAMS.index(name) for name in ("compute", "comm", "send", "recv", "host"))
MODES = pytest.mark.parametrize("mode", ["full", "folded"])
RING = SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="dp")
MANY = [(0, 8, 5), (0, 5, 9), (3_000, 12, 4), (60_000, 7, 6)]


def intervals(*pairs):
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return union(columns[:, 0], columns[:, 1])


@pytest.mark.parametrize(
    ("mine", "others", "outside"),
    [
        ([(0, 10)], [], 10),
        ([(0, 10)], [(2, 4), (3, 5), (9, 20)], 6),
        ([(0, 10), (20, 30)], [(5, 25)], 10),
        ([(0, 10), (5, 12), (7, 7)], [(0, 12)], 0),
        ([], [(0, 12)], 0),
    ],
)
def test_outside_is_what_no_other_interval_covers(mine, others, outside):
    assert intervals(*mine).outside(intervals(*others)) == outside


@MODES
def test_one_device_computes_all_but_the_host_time(mode):
    """A prompt of 4 tokens: 2 µs at the ends, of which the host has 0.8, 4.6 µs of the layer, and 10 pairs."""
    usage = usage_of(replay(deployment([(0, 4, 1)], mode=mode)).timeline, 1)
    assert usage.busy_ns[0, [COMPUTE, COMM, HOST]].tolist() == [5_900, 0, 800]
    assert usage.held_ns.tolist() == [[6_700]]
    assert usage.in_flight_ns.tolist() == [6_700]
    assert usage.exposed_ns.tolist() == [0]


@MODES
def test_a_send_is_exposed_where_its_rank_has_nothing_else_to_do(mode):
    """One prompt through two stages: 5,200 + 4 × 1,000 bytes + 1 µs on the way + the second stage."""
    timeline = replay(deployment([(0, 4, 1)], mode=mode, plan=ParallelPlan(pp=2), layers=2)).timeline
    usage = usage_of(timeline, 1)
    assert usage.busy_ns[:, [SEND, RECV]].tolist() == [[5_000, 0], [0, 5_000]]
    assert usage.exposed_ns.tolist() == [5_000, 5_000]
    assert usage.in_flight_ns[0] == usage.held_ns.sum() + 5_000 == timeline.end_ns


@pytest.mark.parametrize(
    "options",
    [
        {"plan": ParallelPlan(tp=2)},
        {"plan": ParallelPlan(tp=2, pp=2), "layers": 2},
        {"plan": ParallelPlan(dp=2, pp=2), "layers": 2, "topology": two_leaves(2)},
        {"plan": ParallelPlan(sp=RING), "layers": 20},
        {"plan": ParallelPlan(sp=RING, pp=2, tp=2), "layers": 2},
        {"plan": ParallelPlan(sp=replace(RING, scheme="all_gather")), "layers": 20},
        {"plan": ParallelPlan(tp=2, dp=2, placement=(0, 2, 1, 3)), "topology": two_leaves(2), "layers": 2},
        {"plan": ParallelPlan(tp=2, ep=ExpertPlan(degree=2)), "layer": SPARSE},
        {"plan": ParallelPlan(pp=2), "layers": 2, "kv_blocks": 7},
    ],
    ids=["tp", "tp pp", "dp pp", "ring", "ring pp tp", "all_gather", "contention", "experts", "preemption"],
)
@MODES
def test_folded_sums_are_those_of_the_spans(mode, options):
    given = deployment(MANY, mode=mode, **options)
    timeline = replay(given).timeline
    assert_plain(usage_of(timeline, given.entry.plan.dp), timeline, given.entry.plan.dp)
    for seed in range(20 if given.entry.plan.sp == RING and mode == "folded" else 0):
        wild = replay(deployment(MANY[seed % 3 :], cost=Wild(seed), **options)).timeline
        assert_plain(usage_of(wild, 1), wild, 1)


class Wild(RoundCost):
    """Operators that take up to a hundred times as long or as short, each kind its own time."""

    def __init__(self, seed: int) -> None:
        self._rng, self._times = np.random.default_rng(seed), dict[str, float]()

    def seconds(self, op: str, shape: Shape) -> FloatArray:
        """Return the device time of ``op`` in seconds."""
        return super().seconds(op, shape) * self._times.setdefault(op, 10 ** self._rng.uniform(-2, 2))


def test_moves_count_on_both_ranks_that_they_join():
    timeline = frozen(HAND_OVER, SWAP, BACK)
    assert_plain(usage_of(timeline, 2), timeline, 2)
