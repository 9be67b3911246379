"""Which stages and boundaries can be disturbed, and so are not folded."""

from __future__ import annotations

import pytest

from clustersim.plan.parallel import ParallelPlan, SequencePlan
from clustersim.replay.replay import replay
from tests.round_numbers import crossbar, deployment, two_leaves


def contention(topology, **plan):
    return replay(deployment([], plan=ParallelPlan(**plan), topology=topology, layers=4)).contention


def test_one_stage_alone_is_undisturbed():
    found = contention(crossbar(4), tp=4)
    assert not found.stages
    assert not found.boundaries
    assert found.shared == ()


def test_replicas_on_one_switch_do_not_meet():
    assert not contention(crossbar(4), dp=2, tp=2).stages


def test_replicas_whose_collectives_cross_one_link_meet_there():
    found = contention(two_leaves(2), dp=2, tp=2, placement=(0, 2, 1, 3))
    assert found.crowded == {(0, 0), (1, 0)}
    assert found.shared == (
        "collectives of stage 0 of replica 0 and collectives of stage 0 of replica 1 can meet on leaf0 → leaf1",
        "collectives of stage 0 of replica 0 and collectives of stage 0 of replica 1 can meet on leaf1 → leaf0",
    )


def test_sends_meet_the_collectives_of_their_own_stage_and_of_the_next_one():
    # A sender's link up carries its part of the all-reduces, a receiver's link down that of the next stage.
    found = contention(crossbar(4), tp=2, pp=2)
    assert not found.crowded
    assert set(found.watched) == {(0, 0), (0, 1)}
    assert found.boundaries == {(0, 0)}


def test_sends_of_single_ranks_on_one_switch_meet_nothing():
    found = contention(crossbar(3), pp=3)
    assert not found.stages
    assert not found.boundaries


def test_sends_of_two_replicas_meet_on_the_link_that_both_cross():
    found = contention(two_leaves(2), dp=2, pp=2, placement=(0, 2, 1, 3))
    assert not found.stages
    assert found.boundaries == {(0, 0), (1, 0)}


def test_groups_of_one_stage_meet_where_their_ranks_are_apart():
    # The TP groups of both SP ranks cross the link between the leaves, at the same time.
    ring = SequencePlan(degree=2, scheme="ring", partition="contiguous", decode="dp")
    found = contention(two_leaves(2), tp=2, sp=ring, placement=(0, 2, 1, 3))
    assert found.crowded == {(0, 0)}
    assert "groups [0, 1] and [2, 3] of stage 0 of replica 0 share a link" in found.shared


@pytest.mark.parametrize(("placement", "meets"), [((0, 1, 2, 3), False), ((0, 2, 1, 3), True)])
def test_it_is_the_placement_that_decides(placement, meets):
    assert bool(contention(two_leaves(2), dp=2, tp=2, placement=placement).stages) == meets
