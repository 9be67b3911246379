"""Plans of communications by group, and the numbers that groups of one cost share."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from clustersim.collective import ALGORITHMS, CommPlan, plan_collective
from clustersim.collective.communications import CommTable
from clustersim.scenario.parts import load_topology
from tests.round_numbers import crossbar, two_leaves


def table(topology, **algorithms):
    return CommTable(topology, algorithms, plan_collective)


def test_groups_that_cost_the_same_have_one_number():
    comm = table(crossbar(6), all_reduce="ring")
    assert comm.number("all_reduce", (0, 1)) == comm.number("all_reduce", (2, 5))


@pytest.mark.parametrize("other", [("all_reduce", (0, 1, 2)), ("all_gather", (0, 1))])
def test_groups_that_cost_something_else_have_another_number(other):
    comm = table(crossbar(6))
    assert comm.number("all_reduce", (0, 1)) != comm.number(*other)


def test_a_named_algorithm_is_the_only_candidate():
    assert [plan.algorithm for plan in table(crossbar(4), all_reduce="one_shot").plans("all_reduce", (0, 1, 2, 3))] == [
        "one_shot"
    ]


@pytest.mark.parametrize("payload", [1.0, 1e3, 1e5, 1e8])
def test_a_payload_takes_the_plan_that_is_fastest_for_it(payload):
    comm = table(crossbar(4))
    group = (0, 1, 2, 3)
    fits = [plan for plan in comm.plans("all_reduce", group) if payload <= plan.max_payload_bytes]
    fastest = min(fits, key=lambda plan: float(plan.seconds(payload)))
    assert comm.chosen("all_reduce", group, payload).algorithm == fastest.algorithm
    assert comm.seconds(comm.number("all_reduce", group), payload) == float(fastest.seconds(payload))


def test_small_and_large_payloads_take_different_plans():
    # One step that moves 3 tensors per link, or six steps that move 1.5.
    comm = table(crossbar(4))
    small, large = (comm.chosen("all_reduce", (0, 1, 2, 3), payload) for payload in (10.0, 1e7))
    assert small.algorithm == "one_shot"
    assert large.algorithm != "one_shot"


def test_links_are_those_of_every_candidate():
    topology = two_leaves(2)
    names = {topology.link_ends[link] for link in table(topology).links("send", (0, 2))}
    assert names == {("g0", "leaf0"), ("leaf0", "leaf1"), ("leaf1", "g2")}


@pytest.mark.parametrize("name", ["dgx-h100", "l40s-node", "mi300x-node", "gb200-nvl72", "fat-tree"])
@pytest.mark.parametrize("op", list(ALGORITHMS))
def test_plans_of_a_node_are_those_of_its_copies_moved(name, op):
    topology = load_topology(name, ("nodes=4",))
    size = len(topology.devices) // 4
    comm = table(topology)
    for group in ((2 * size, 2 * size + 1), (3 * size + 1, 3 * size + 3, 3 * size, 3 * size + 2), (0, 1)):
        members = group[:2] if op == "send" else group
        moved, made = comm.plans(op, members), plan_collective(topology, op, members)
        for one, other in zip(moved, made, strict=True):
            for field in fields(CommPlan):
                assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


def test_a_group_over_several_nodes_is_not_moved():
    topology = load_topology("dgx-h100", ("nodes=3",))
    assert topology.in_first_copy((8, 9)) == ((0, 1), topology.copied[1])
    assert topology.in_first_copy((8, 16)) == ((8, 16), 0)
    assert topology.in_first_copy((16, 24)) == ((16, 24), 0)
    assert crossbar(4).in_first_copy((2, 3)) == ((2, 3), 0)
