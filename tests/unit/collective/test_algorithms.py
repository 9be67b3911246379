"""Loads of each algorithm on networks where they can be counted, and which algorithms fit which group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from collective_topologies import GB_S, crossbar, device, mesh, pairs_on_rails, torus

from clustersim.cluster.topology import Topology, topology_from_edges
from clustersim.collective import plan_collective
from clustersim.collective.constants import family
from clustersim.collective.group import group_of
from clustersim.collective.ring import ring_orders
from clustersim.collective.tree import two_trees


def loads(topology: Topology, kind: str, algorithm: str, group: tuple[int, ...]) -> dict[tuple[str, str], float]:
    """Load per payload byte by (tail, head) of the link."""
    (plan,) = plan_collective(topology, kind, group, algorithm)
    ends = [topology.link_ends[link] for link in plan.links]
    return dict(zip(ends, plan.load_per_byte.tolist(), strict=True))


def names(topology: Topology, kind: str, count: int) -> list[str]:
    return [plan.algorithm for plan in plan_collective(topology, kind, tuple(range(count)))]


@pytest.mark.parametrize(
    ("kind", "algorithm", "up", "down"),
    [
        ("all_reduce", "ring", 1.5, 1.5),
        ("all_reduce", "halving_doubling", 1.5, 1.5),
        ("all_reduce", "two_shot", 1.5, 1.5),
        ("all_reduce", "one_shot", 3.0, 3.0),
        ("all_reduce", "in_switch", 1.25, 1.25),
        ("all_gather", "ring", 0.75, 0.75),
        ("all_gather", "direct", 0.75, 0.75),
        ("all_gather", "halving_doubling", 0.75, 0.75),
        ("all_gather", "in_switch", 0.25, 1.0),
        ("reduce_scatter", "ring", 0.75, 0.75),
        ("reduce_scatter", "in_switch", 1.0, 0.25),
        ("all_to_all", "direct", 0.75, 0.75),
        ("all_to_all", "pairwise", 0.75, 0.75),
        ("ring_shift", "direct", 1.0, 1.0),
    ],
)
def test_every_device_of_four_on_a_switch_carries(kind, algorithm, up, down):
    found = loads(crossbar(4, reduces=True), kind, algorithm, (0, 1, 2, 3))
    assert found == pytest.approx(
        {("g0", "switch"): up, ("g1", "switch"): up, ("g2", "switch"): up, ("g3", "switch"): up}
        | {("switch", "g0"): down, ("switch", "g1"): down, ("switch", "g2"): down, ("switch", "g3"): down}
    )


def test_gather_loads_the_owners_link_with_all_but_its_own_part():
    assert loads(crossbar(4), "gather", "direct", (2, 0, 1, 3)) == {
        ("g0", "switch"): 0.25,
        ("g1", "switch"): 0.25,
        ("g3", "switch"): 0.25,
        ("switch", "g2"): 0.75,
    }


def test_broadcast_ring_starts_at_the_root_and_does_not_return():
    found = loads(crossbar(3), "broadcast", "ring", (1, 0, 2))
    assert sorted(found) == [("g1", "switch"), ("g2", "switch"), ("switch", "g0"), ("switch", "g2")]
    assert set(found.values()) == {1.0}


def test_broadcast_in_switch_writes_once_and_all_read():
    found = loads(crossbar(3, reduces=True), "broadcast", "in_switch", (1, 0, 2))
    assert found == {("g1", "switch"): 1.0, **{("switch", f"g{i}"): 1.0 for i in range(3)}}


def test_ring_shift_follows_the_order_of_the_ranks():
    # 0 → 2 → 1 → 3 → 0 on a mesh: each hop has the link of its own.
    assert sorted(loads(mesh(4), "ring_shift", "direct", (0, 2, 1, 3))) == [
        ("g0", "g2"),
        ("g1", "g3"),
        ("g2", "g1"),
        ("g3", "g0"),
    ]


def test_rings_over_nodes_use_every_nic_equally_and_stay_on_rails():
    topology = pairs_on_rails(2)
    found = loads(topology, "all_reduce", "ring", (0, 1, 2, 3))
    nics = {f"n{n}.g{i}" for n in range(2) for i in range(2)}
    # Two laps of 3/4 of the payload, a half of it on each of two rings, each with one hop into either node.
    assert {found[nic, f"leaf{nic[-1]}"] for nic in nics} == {0.75}
    assert not any("spine" in end for ends in found for end in ends)


def test_ring_order_is_by_node_whatever_the_order_of_the_ranks():
    group = group_of(pairs_on_rails(2), (3, 0, 2, 1))
    assert ring_orders(group) == [(0, 1, 3, 2), (1, 0, 2, 3)]


def test_uneven_nodes_are_one_ring():
    assert ring_orders(group_of(pairs_on_rails(2), (0, 1, 2))) == [(0, 1, 2)]


def test_rings_on_a_mesh_have_links_of_their_own():
    # n = 8: strides 1, 3, 5, 7, so 4 of the 7 links that leave each device carry a quarter each.
    found = loads(mesh(8), "all_gather", "ring", tuple(range(8)))
    assert len(found) == 4 * 8
    assert set(found.values()) == {7 / 8 / 4}


def test_two_level_all_reduce_moves_a_node_s_part_once_over_each_nic():
    # Between 2 nodes: 2 × 1/2 of the half that each of 2 rails owns; inside: the same on the switch.
    found = loads(pairs_on_rails(2), "all_reduce", "hierarchical", (0, 1, 2, 3))
    assert found["n0.g0", "leaf0"] == 0.5
    assert found["n0.g0", "n0.switch"] == 1.0
    assert found["n0.switch", "n0.g1"] == 1.0


@pytest.mark.parametrize(("kind", "nic", "inside"), [("all_gather", 0.25, 0.5), ("all_to_all", 0.5, 0.5)])
def test_two_level_loads(kind, nic, inside):
    found = loads(pairs_on_rails(2), kind, "hierarchical", (0, 1, 2, 3))
    assert found["n1.g1", "leaf1"] == nic
    assert found["n1.g1", "n1.switch"] == inside
    assert not any("spine" in end for ends in found for end in ends)


def test_direct_all_to_all_over_nodes_crosses_rails():
    found = loads(pairs_on_rails(2), "all_to_all", "direct", (0, 1, 2, 3))
    assert found["n0.g0", "leaf0"] == 0.5
    assert found["leaf0", "spine"] == 0.5  # a quarter each of both members of rail 0


def test_tree_sends_each_half_up_and_down_over_every_nic():
    # One chain inside each node (1/2 per channel up and down), two trees of two heads: 1/4 per tree and channel.
    found = loads(pairs_on_rails(2), "all_reduce", "tree", (0, 1, 2, 3))
    assert found["n0.g0", "leaf0"] == 0.5 == found["leaf0", "n0.g0"]
    assert found["n0.g0", "n0.switch"] == 1.0


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13, 16, 31])
def test_two_trees_reach_all_and_no_member_is_inner_in_both_but_the_roots(count):
    for parents in two_trees(count):
        assert parents.count(-1) == 1
        for member in range(count):
            depth, here = 0, member
            while parents[here] >= 0:
                here, depth = parents[here], depth + 1
            assert depth <= count.bit_length()
            assert parents.count(member) <= 2
    inner = [{up for up in parents if up >= 0} for parents in two_trees(count)]
    both = inner[0] & inner[1]
    assert both <= {0, 1}


def test_bucket_algorithm_uses_every_link_of_a_torus_alike():
    # Reduce-scatter of 1 over 16: each of 4 ports sends a quarter of 15/16.
    found = loads(torus(4, 4), "reduce_scatter", "torus", tuple(range(16)))
    assert len(found) == 64
    assert list(found.values()) == pytest.approx([15 / 64] * 64)


def test_box_of_a_torus_is_found_from_its_links():
    topology = torus(4, 4)
    assert group_of(topology, tuple(range(16))).grid() == (4, 4)
    assert group_of(topology, (0, 1, 4, 5)).grid() == (2, 2)
    assert group_of(topology, (0, 1, 2, 3)).grid() is None
    assert group_of(topology, (0, 1, 4, 6)).grid() is None


@pytest.mark.parametrize(
    ("topology", "count", "expected"),
    [
        (crossbar(4), 4, ["one_shot", "two_shot", "ring"]),
        (crossbar(4, reduces=True), 4, ["one_shot", "two_shot", "ring", "in_switch"]),
        (pairs_on_rails(2), 4, ["tree", "ring", "hierarchical"]),
        (pairs_on_rails(2), 3, ["tree", "ring"]),
        (torus(4, 4), 16, ["ring", "torus"]),
        (torus(4, 4), 3, ["ring"]),
    ],
)
def test_auto_offers_what_libraries_would_run_there(topology, count, expected):
    assert names(topology, "all_reduce", count) == expected


def test_auto_offers_custom_all_reduces_over_pcie_to_two_devices_only():
    topology = crossbar(4, tier="pcie")
    assert names(topology, "all_reduce", 2) == ["one_shot", "ring"]
    assert names(topology, "all_reduce", 3) == ["ring"]


def test_in_switch_needs_all_members_on_one_switch():
    # g0 reaches g1 over one switch and g2 over another.
    links = [("g0", "s0"), ("g1", "s0"), ("g0", "s1"), ("g2", "s1"), ("g1", "s2"), ("g2", "s2")]
    edges = [(a, b, GB_S, 0.0, "scaleup") for a, b in links]
    topology = topology_from_edges("planes", device(), ["g0", "g1", "g2"], edges, in_switch_reduction=True)
    assert "in_switch" in names(topology, "all_reduce", 2)
    assert "in_switch" not in names(topology, "all_reduce", 3)


def test_domains_are_by_node_even_where_indices_alternate():
    edges = [(f"g{i}", f"s{i % 2}", GB_S, 0.0, "scaleup") for i in range(4)]
    edges.append(("s0", "s1", GB_S, 0.0, "fabric"))
    topology = topology_from_edges("alternating", device(), [f"g{i}" for i in range(4)], edges, node_of=[0, 1, 0, 1])
    assert group_of(topology, (0, 1, 2, 3)).domains == ((0, 2), (1, 3))


def test_auto_never_offers_a_custom_all_reduce_whose_buffers_hold_nothing():
    topology = crossbar(4, one_shot={"max_payload_bytes": 0.0}, two_shot={"max_payload_bytes": 0.0})
    assert names(topology, "all_reduce", 4) == ["ring"]


def test_two_shots_have_the_buffers_of_one_where_a_device_says_nothing_of_them():
    toy = device(one_shot={"max_payload_bytes": 0.0})
    toy = replace(toy, collectives={name: toy.collectives[name] for name in toy.collectives if name != "two_shot"})
    assert family(toy, "two_shot").max_payload_bytes == 0.0
    assert family(replace(toy, collectives={}), "two_shot").max_payload_bytes == 8 * 2**20


def test_an_engine_limits_its_own_all_reduces_by_how_many_ranks_there_are():
    """As TensorRT-LLM 0.14: one shot up to 1 MB of four ranks and 500 kB of eight, no two shots."""
    limits = (("one_shot", ((4, 1e6), (8, 5e5))), ("two_shot", ()))
    limited = crossbar(9).with_limits(limits)
    assert limited is not None
    largest = {
        ranks: {
            plan.algorithm: plan.max_payload_bytes
            for plan in plan_collective(limited, "all_reduce", tuple(range(ranks)))
        }
        for ranks in (2, 4, 8, 9)
    }
    assert {ranks: of.get("one_shot") for ranks, of in largest.items()} == {2: 1e6, 4: 1e6, 8: 5e5, 9: None}
    assert all("two_shot" not in of for of in largest.values())
    assert crossbar(9).with_limits(()).device.custom_limits == {}


def test_what_is_out_of_reach_stays_so_whatever_an_engine_allows():
    apart = replace(device().without_peer_access(), custom_limits={"one_shot": ((8, 1e6),)})
    assert family(apart, "one_shot", 4).max_payload_bytes == 0.0


def test_devices_that_do_not_reach_each_other_have_no_custom_all_reduce():
    apart = replace(device(), collectives_apart={"ring": {"efficiency": 0.2}}).without_peer_access()
    assert family(apart, "ring").efficiency == 0.2
    assert {family(apart, name).max_payload_bytes for name in ("one_shot", "two_shot")} == {0.0}
