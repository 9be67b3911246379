"""What a plan promises: durations, loads, and the choice between plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collective_topologies import crossbar, device, pairs_on_rails

from clustersim.collective import ALGORITHMS, CommPlan, choose, plan_collective
from clustersim.collective.constants import family
from clustersim.collective.price import cheapest
from clustersim.compiled import Objects
from clustersim.core.flows import WHOLE, enter, share
from clustersim.errors import InputError
from clustersim.replay.links.paths import make_flows, places_of


def plan(**changes: object) -> CommPlan:
    values: dict[str, object] = {
        "kind": "all_reduce",
        "algorithm": "toy",
        "group": (0, 1),
        "alpha_s": 1.0,
        "own_seconds_per_byte": 0.0,
        "ramp_s": 0.0,
        "ramp_half_s": 1.0,
        "links": np.array([0]),
        "load_per_byte": np.array([1.0]),
        "seconds_per_byte": 0.5,
    }
    return CommPlan(**(values | changes))  # type: ignore[arg-type]


def test_seconds_is_alpha_and_bytes():
    assert list(plan().seconds([0.0, 2.0, 10.0])) == [1.0, 2.0, 6.0]


def test_seconds_of_one_payload_is_one_number():
    assert float(plan().seconds(4)) == 3.0


def test_alpha_grows_with_the_transfer_until_its_ramp_is_lost():
    # Transfers of 0, 1 and 3 s lose 0, a half and three quarters of 8 s.
    ramped = plan(ramp_s=8.0)
    assert list(ramped.alpha([0.0, 2.0, 6.0])) == [1.0, 5.0, 7.0]
    assert list(ramped.seconds([0.0, 2.0, 6.0])) == [1.0, 6.0, 10.0]


def test_choose_takes_the_fastest_at_each_size_and_the_first_on_a_tie():
    quick, wide = plan(alpha_s=1.0, seconds_per_byte=1.0), plan(alpha_s=3.0, seconds_per_byte=0.5)
    chosen, seconds = choose([quick, wide], [0.0, 4.0, 10.0])
    assert [cheapest([quick, wide], one) for one in (0.0, 4.0, 10.0)] == [*zip(chosen, seconds, strict=True)]
    assert list(chosen) == [0, 0, 1]
    assert list(seconds) == [1.0, 5.0, 8.0]


def test_choose_keeps_to_what_buffers_hold_unless_nothing_else_is_there():
    small, large = plan(alpha_s=0.0, max_payload_bytes=4.0), plan(alpha_s=9.0)
    assert list(choose([small, large], [4.0, 5.0])[0]) == [0, 1]
    assert list(choose([small], [5.0])[1]) == [2.5]
    assert [cheapest([small, large], one)[0] for one in (4.0, 5.0)] == [0, 1]
    assert cheapest([small], 5.0) == (0, 2.5)


@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_a_group_of_one_takes_no_time_and_no_link(kind):
    topology = crossbar(2, ring={"base_s": 1.0}, send={"base_s": 1.0})
    if kind == "send":
        pytest.skip("send has two ends")
    (alone,) = plan_collective(topology, kind, (1,))
    assert float(alone.seconds(1e9)) == 0.0
    assert len(alone.links) == 0


@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_fluid_network_and_closed_form_agree_when_nothing_else_runs(kind):
    topology = pairs_on_rails(2, ring={"efficiency": 0.7}, direct={"network_efficiency": 0.9})
    group = (0, 3) if kind == "send" else (0, 1, 2, 3)
    for candidate in plan_collective(topology, kind, group):
        _, weights = places_of([candidate], topology.link_capacity)
        assert max(weights) == WHOLE  # it needs all of its slowest link: so it carries its bytes in this time
        fluid_s = float(candidate.alpha(12345.0)) + 12345.0 * candidate.seconds_per_byte
        assert fluid_s == pytest.approx(float(candidate.seconds(12345.0)), rel=1e-14)


def test_two_transfers_over_one_link_take_twice_as_long():
    topology = crossbar(3)
    first, second = (plan_collective(topology, "send", (source, 2))[0] for source in (0, 1))
    n = make_flows(
        Objects(), len(topology.link_ends), [places_of([one], topology.link_capacity) for one in (first, second)]
    )
    for f in (0, 1):
        enter(n, f, 0, 1000)
    share(n, 0)
    assert [path.due for path in n.paths] == [2000, 2000]


def test_efficiency_is_in_the_load():
    half = plan_collective(crossbar(2, send={"efficiency": 0.5}), "send", (0, 1))[0]
    assert list(half.load_per_byte) == [2.0, 2.0]
    assert half.seconds_per_byte == 2e-9


def test_alpha_of_a_direct_exchange_counts_peers_and_its_slowest_route():
    # 2 s, three peers of 0.5 s, and one step: 7 s between nodes (4 s inside).
    topology = pairs_on_rails(2, direct={"base_s": 2.0, "peer_s": 0.5, "step_s": 4.0, "network_step_s": 7.0})
    over_nodes, inside = (plan_collective(topology, "all_to_all", group)[0] for group in ((0, 1, 2, 3), (0, 1)))
    assert over_nodes.alpha_s == 2.0 + 1.5 + 7.0
    assert inside.alpha_s == 2.0 + 0.5 + 4.0


def test_sends_between_nodes_have_the_network_s_efficiency():
    topology = pairs_on_rails(2, send={"network_efficiency": 0.5})
    assert set(plan_collective(topology, "send", (0, 2))[0].load_per_byte) == {2.0}
    assert set(plan_collective(topology, "send", (0, 1))[0].load_per_byte) == {1.0}


def test_tree_has_the_constants_of_the_ring_and_a_little_less_bandwidth():
    toy = device(ring={"base_s": 3.0, "efficiency": 0.5, "network_efficiency": 0.25})
    toy = replace(toy, collectives={name: toy.collectives[name] for name in toy.collectives if name != "tree"})
    tree = family(toy, "tree")
    assert (tree.base_s, tree.efficiency, tree.network_efficiency) == (3.0, 0.5 * 0.92, 0.25 * 0.92)


def test_one_shot_keeps_no_part_to_copy():
    topology = crossbar(2, one_shot={"own_s_per_byte": 1.0}, two_shot={"own_s_per_byte": 1.0})
    for candidate in plan_collective(topology, "all_reduce", (0, 1)):
        assert float(candidate.alpha(1.0)) == 0.0


def test_a_rank_copies_the_part_that_it_keeps():
    topology = crossbar(4, ring={"own_s_per_byte": 4e-9})
    gather, reduce = (plan_collective(topology, kind, (0, 1, 2, 3), "ring")[0] for kind in ("all_gather", "all_reduce"))
    assert float(gather.alpha(1e9)) == pytest.approx(1.0)  # a quarter of 1 GB
    assert float(reduce.alpha(1e9)) == 0.0


@pytest.mark.parametrize(
    ("kind", "group", "algorithm", "message"),
    [
        ("all_reduse", (0, 1), "auto", "unknown collective 'all_reduse'; did you mean 'all_reduce'?"),
        ("all_reduce", (0, 1), "rings", "unknown algorithm 'rings' for all_reduce; did you mean 'ring'?"),
        ("all_reduce", (), "auto", "a collective needs a group of one device or more"),
        ("all_reduce", (0, 0), "auto", "the group (0, 0) names a device twice"),
        ("all_reduce", (0, 7), "auto", "crossbar has devices 0 to 3, but not [7]"),
        ("send", (0, 1, 2), "auto", "send has one source and one target, but the group is (0, 1, 2)"),
        (
            "all_to_all",
            (0, 1),
            "hierarchical",
            "algorithm 'hierarchical' for all_to_all over 2 devices needs two scale-up domains or more with two "
            "members or more each; use one of auto, direct, pairwise",
        ),
        (
            "all_reduce",
            (0, 1, 2),
            "halving_doubling",
            "algorithm 'halving_doubling' for all_reduce over 3 devices needs a power of two; use one of auto, "
            "one_shot, two_shot, tree, ring",
        ),
    ],
)
def test_plan_collective_says_what_is_wrong_and_what_would_do(kind, group, algorithm, message):
    with pytest.raises(InputError) as caught:
        plan_collective(crossbar(4), kind, group, algorithm)
    assert [problem.message for problem in caught.value.problems] == [message]


def test_plan_collective_tells_all_mistakes_of_a_call_at_once():
    with pytest.raises(InputError) as caught:
        plan_collective(crossbar(4), "reduce", (9, 9))
    assert len(caught.value.problems) == 3


def test_a_misspelt_constant_of_a_device_is_an_error():
    with pytest.raises(InputError, match=r"toy: collectives\.ring\.step: unknown constant; did you mean 'step_s'"):
        plan_collective(crossbar(2, ring={"step": 1.0}), "all_gather", (0, 1))
