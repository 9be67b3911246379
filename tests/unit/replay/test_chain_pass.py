"""A chain of work, collective, work that a foreign send may meet: 1 µs, 1 + 2 µs, 1 µs when it is alone.

::

    0        1,000    2,000             4,000    5,000
    |--work--|---α----|----2,000 bytes---|--work--|
"""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.collective import plan_collective
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.events.chain import ChainPass, ChainShape, chain_shape
from clustersim.replay.events.clock import Clock
from clustersim.replay.instant import COMPLETION, at
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.prepared import Prepared
from tests.round_numbers import crossbar, deployment

SHAPE = ChainShape(
    instance_class=np.array([0, 1, 0]), first=np.array([0, 1, 2]), members=[None, (0, 1), None], cls=[-1, 1, -1]
)
BY_CLASS = np.array([1000, 3000])


class Toy:
    """The chain on g0 and g1 of a crossbar; foreign sends go from g0 to g2."""

    def __init__(self, *, watches: bool = True, shape: ChainShape = SHAPE) -> None:
        self.topology = crossbar(3)
        self.env = Clock(initial_time=0)
        self.network = Network(self.env, self.topology.link_capacity)
        (self.plan,) = plan_collective(self.topology, "ring_shift", (0, 1))
        watched = tuple(self.plan.links.tolist()) if watches else None
        self.ended: list[int] = []
        self.begun: list[tuple[int, int]] = []
        self.run = ChainPass(
            self.env, self.network, shape, BY_CLASS, watched, self.communicate, lambda: self.ended.append(self.env.now)
        )

    def communicate(self, segment, cls, members, duration, done, started):
        assert (cls, members, duration) == (1, (0, 1), 3000)
        self.begun.append((self.env.now, started))
        self.network.begin(self.plan, 2000, duration, done, segment, started)

    def foreign(self, enters, size):
        """A send that enters its links at ``enters``."""
        (plan,) = plan_collective(self.topology, "send", (0, 2))

        def begin(_):
            self.network.begin(plan, size, 1000 + size, lambda _: None, None, foreign=True)

        at(self.env, enters - 1000, COMPLETION, begin)

    def times(self, start=0):
        at(self.env, start, COMPLETION, lambda _: self.run.begin())
        self.env.run()
        starts, ends = self.run.instance_times()
        assert self.ended == [ends[-1]]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))


def test_alone_the_chain_is_one_event():
    toy = Toy()
    assert toy.times(start=100) == [(100, 1100), (1100, 4100), (4100, 5100)]
    assert toy.begun == []
    assert not toy.run.stretched


def test_a_pass_that_cannot_watch_steps_and_takes_as_long():
    toy = Toy(watches=False)
    assert toy.times() == [(0, 1000), (1000, 4000), (4000, 5000)]
    assert toy.begun == [(1000, 1000)]
    assert not toy.run.stretched


def test_a_foreign_flow_that_is_there_before_the_collective_stretches_it():
    # From 1,500 the send has the link to itself and moves 500 of 3,000 bytes; from 2,000 each has half of it: the
    # collective's 2,000 bytes take until 6,000, and the send has 500 left.
    toy = Toy()
    toy.foreign(1500, 3000)
    assert toy.times() == [(0, 1000), (1000, 6000), (6000, 7000)]
    assert toy.run.stretched


def test_a_foreign_flow_that_enters_during_the_collective_halves_what_is_left():
    # At 3,000 the collective has 1,000 of 2,000 bytes left.
    toy = Toy()
    toy.foreign(3000, 3000)
    assert toy.times() == [(0, 1000), (1000, 5000), (5000, 6000)]
    assert toy.begun == [(3000, 1000)]


def test_a_foreign_flow_that_leaves_during_the_collective_gives_its_share_back():
    # From 3,000 to 3,800 both move 400 bytes; the collective has 600 left.
    toy = Toy()
    toy.foreign(3000, 400)
    assert toy.times() == [(0, 1000), (1000, 4400), (4400, 5400)]


@pytest.mark.parametrize("enters", [1000, 4000, 4500])
def test_a_foreign_flow_beside_the_bytes_of_the_collective_changes_nothing(enters):
    # There until 2,000, when the collective's α ends; or from its end on; or only during the last work.
    toy = Toy()
    toy.foreign(enters, 1000)
    assert toy.times() == [(0, 1000), (1000, 4000), (4000, 5000)]
    assert not toy.run.stretched


def test_two_foreign_flows_leave_a_third_each():
    # All from 2,000: 2,000 bytes at a third.
    toy = Toy()
    toy.foreign(2000, 5000)
    (plan,) = plan_collective(toy.topology, "send", (0, 2))
    at(
        toy.env, 1000, COMPLETION,
        lambda _: toy.network.begin(plan, 5000, 6000, lambda _: None, None, foreign=True),
    )  # fmt: skip
    assert toy.times() == [(0, 1000), (1000, 8000), (8000, 9000)]


def test_a_pass_is_closed_again_when_the_foreign_flow_has_left_and_reopened_by_the_next():
    # Two collectives. The first send is there from 1,000 and done at 3,000; the first collective, with 1,000 of its
    # 2,000 bytes left then, ends at 4,000. The second one has 1,000 bytes left at 6,000, when the next send comes:
    # at 7,000 that is done, and 500 bytes are left.
    collectives = ChainShape(
        instance_class=np.array([1, 1]), first=np.array([0, 1]), members=[(0, 1), (0, 1)], cls=[1, 1]
    )
    toy = Toy(shape=collectives)
    toy.foreign(1000, 1000)
    toy.foreign(6000, 500)
    assert toy.times() == [(0, 4000), (4000, 7500)]
    assert toy.begun == [(1000, 0), (6000, 4000)]


def test_a_pass_that_has_ended_watches_no_longer():
    toy = Toy()
    toy.foreign(6000, 1000)
    toy.times()
    assert not any(toy.network.watchers.values())


def test_chain_shape_cuts_at_collectives():
    given = deployment([], plan=ParallelPlan(tp=2))
    program = Prepared(given).pools[0].programs[0, 0]["decode"]
    shape = chain_shape(program)
    # Two operators, then the all-reduce of the embedding; five up to each all-reduce of the layer; the add, the norm
    # and the LM head before its all-gather; and the sampling.
    assert [members is not None for members in shape.members] == [False, True] * 4 + [False]
    assert np.diff([*shape.first, len(shape.instance_class)]).tolist() == [2, 1, 5, 1, 5, 1, 3, 1, 1]
