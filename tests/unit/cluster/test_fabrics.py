"""Known figures of the fabrics that ship: who talks to whom over what."""

import pytest

from clustersim.cluster import Topology
from clustersim.errors import InputError
from tests.shipped import topology_of


def hops(topology: Topology, source: str, target: str) -> list[str]:
    """Names of the vertices on a route, from source to target."""
    links = topology.route(topology.index_of(source), topology.index_of(target))
    return [source, *(topology.link_ends[link][1] for link in links)]


def bandwidth(topology: Topology, source: str, target: str) -> float:
    return topology.transit(topology.index_of(source), topology.index_of(target))[1]


@pytest.mark.parametrize(
    ("name", "inside", "between"),
    [
        ("dgx-a100", 300e9, 25e9),
        ("dgx-h100", 450e9, 50e9),
        ("dgx-h200", 450e9, 50e9),
        ("dgx-b200", 900e9, 50e9),
        ("h800-node", 200e9, 50e9),
        ("mi300x-node", 64e9, 50e9),
    ],
)
def test_node_has_the_bandwidths_of_its_data_sheet(name: str, inside: float, between: float) -> None:
    topology = topology_of(name, nodes=2)
    assert bandwidth(topology, "n0.g0", "n0.g1") == inside
    assert bandwidth(topology, "n0.g0", "n1.g0") == between
    assert topology.node_of.tolist() == [0] * 8 + [1] * 8


def test_dgx_h100_peers_are_two_hops_apart_through_the_switch() -> None:
    topology = topology_of("dgx-h100")
    assert hops(topology, "n0.g0", "n0.g1") == ["n0.g0", "n0.nvswitch", "n0.g1"]
    assert topology.transit(0, 1)[0] == pytest.approx(0.6e-6)
    assert topology.in_switch_reduction


def test_dgx_a100_does_not_reduce_in_the_switch() -> None:
    assert not topology_of("dgx-a100").in_switch_reduction


def test_rail_aligned_traffic_stays_on_its_leaf() -> None:
    topology = topology_of("dgx-h100")
    assert hops(topology, "n0.g3", "n1.g3") == ["n0.g3", "n0.nic3", "leaf3", "n1.nic3", "n1.g3"]
    assert topology.transit(3, 11)[0] == pytest.approx(2.7e-6)


def test_other_index_goes_by_both_own_nics_and_a_spine() -> None:
    path = hops(topology_of("dgx-h100"), "n0.g3", "n1.g5")
    assert path == ["n0.g3", "n0.nic3", "leaf3", "spine1", "leaf5", "n1.nic5", "n1.g5"]


def test_scalable_units_are_joined_by_spines() -> None:
    topology = topology_of("dgx-h100", nodes=33)
    path = hops(topology, "n0.g0", "n32.g0")
    assert path == ["n0.g0", "n0.nic0", "leaf0", "spine0", "leaf8", "n32.nic0", "n32.g0"]


def test_traffic_down_to_a_leaf_is_spread_evenly_over_spines() -> None:
    topology = topology_of("dgx-h100", nodes=32)
    via = [hops(topology, "n0.g0", f"n{node}.g1")[3] for node in range(1, 17)]
    assert sorted(via) == sorted(f"spine{number}" for number in range(16))


def test_leaf_has_as_much_up_as_down_unless_oversubscribed() -> None:
    for factor in (1, 4):
        topology = topology_of("dgx-h100", oversubscription=factor)
        up = [
            capacity
            for (tail, head), capacity in zip(topology.link_ends, topology.link_capacity, strict=True)
            if tail == "leaf0" and head.startswith("spine")
        ]
        assert sum(up) == pytest.approx(32 * 50e9 / factor)


def test_single_node_has_no_network() -> None:
    topology = topology_of("dgx-h100", nodes=1)
    assert set(topology.link_tier) == {"scaleup", "host"}
    assert len(topology.vertices) == 10  # eight devices, their switch and the host


def test_thousand_nodes_are_built_without_a_graph_or_routes() -> None:
    topology = topology_of("dgx-h100", nodes=1000)
    assert len(topology.devices) == 8000
    assert not topology._graphs
    assert not topology._routes
    assert hops(topology, "n0.g0", "n999.g7")[-2:] == ["n999.nic7", "n999.g7"]


def test_device_can_be_overridden() -> None:
    assert topology_of("dgx-h100", device="h200-sxm-141gb").device.name == "h200-sxm-141gb"


def test_nvl72_is_one_switch_domain_of_72() -> None:
    topology = topology_of("gb200-nvl72")
    assert len(topology.devices) == 72
    assert bandwidth(topology, "n0.g0", "n0.g71") == 900e9


def test_nvl72_racks_are_joined_rail_by_rail() -> None:
    topology = topology_of("gb200-nvl72", nodes=2)
    assert hops(topology, "n0.g5", "n1.g9") == ["n0.g5", "n0.nic5", "leaf1", "n1.nic9", "n1.g9"]


def test_mi300x_peers_have_a_link_of_their_own() -> None:
    assert hops(topology_of("mi300x-node"), "n0.g2", "n0.g7") == ["n0.g2", "n0.g7"]


def test_pcie_peers_turn_at_their_switch_host_or_the_other_socket() -> None:
    topology = topology_of("l40s-node")
    assert hops(topology, "n0.g0", "n0.g1") == ["n0.g0", "n0.pcie0", "n0.g1"]
    assert hops(topology, "n0.g0", "n0.g2") == ["n0.g0", "n0.pcie0", "n0.host0", "n0.pcie1", "n0.g2"]
    assert "n0.host1" in hops(topology, "n0.g0", "n0.g4")
    assert bandwidth(topology, "n0.g0", "n0.g2") == 32e9
    assert bandwidth(topology, "n0.g0", "n0.g4") == 32e9  # the sockets carry 33, a slot 32


def test_pcie_nodes_share_a_nic_per_switch() -> None:
    path = hops(topology_of("l40s-node", nodes=2), "n0.g1", "n1.g0")
    assert path == ["n0.g1", "n0.pcie0", "n0.nic0", "leaf0", "n1.nic0", "n1.pcie0", "n1.g0"]


def test_rtx_4090_peers_pass_the_host_bridge() -> None:
    assert hops(topology_of("rtx-4090-node"), "n0.g0", "n0.g3") == ["n0.g0", "n0.host0", "n0.g3"]


def test_tpu_v5p_cube_has_rings_of_four() -> None:
    topology = topology_of("tpu-v5p")
    assert len(topology.link_ends) == 64 * 6
    assert hops(topology, "n0.g0", "n0.g3") == ["n0.g0", "n0.g3"]
    assert len(topology.route(0, 2 + 4 * 2 + 16 * 2)) == 6
    assert bandwidth(topology, "n0.g0", "n0.g1") == 100e9


def test_torus_goes_dimension_by_dimension() -> None:
    path = hops(topology_of("tpu-v5p"), "n0.g0", "n0.g21")
    assert path == ["n0.g0", "n0.g1", "n0.g5", "n0.g21"]


def test_ties_in_a_ring_rise_from_even_and_fall_from_odd_coordinates() -> None:
    topology = topology_of("tpu-v5p")
    assert hops(topology, "n0.g0", "n0.g2")[1] == "n0.g1"
    assert hops(topology, "n0.g1", "n0.g3")[1] == "n0.g0"


def test_small_tpu_v6e_slice_has_lines_and_the_pod_rings() -> None:
    assert len(topology_of("tpu-v6e", dims=[4, 4]).route(0, 3)) == 3
    assert len(topology_of("tpu-v6e").route(0, 15)) == 1


def test_fat_tree_puts_all_nics_of_a_rack_on_one_leaf() -> None:
    topology = topology_of("fat-tree")
    assert hops(topology, "n0.g0", "n3.g5") == ["n0.g0", "n0.nic0", "leaf0", "n3.nic5", "n3.g5"]
    assert hops(topology, "n0.g0", "n4.g5")[2:5] == ["leaf0", "spine5", "leaf1"]


def test_oversubscribed_fat_tree_has_narrow_uplinks() -> None:
    # A leaf has 4 nodes × 8 NICs × 50 GB/s down; a quarter of it up, over 8 spines: 50 GB/s each.
    assert bandwidth(topology_of("fat-tree", oversubscription=4), "n0.g0", "n4.g5") == 50e9
    assert bandwidth(topology_of("fat-tree", oversubscription=8), "n0.g0", "n4.g5") == 25e9
    assert bandwidth(topology_of("fat-tree", oversubscription=8), "n0.g0", "n3.g5") == 50e9


def test_fat_tree_without_scaleup_uses_the_host_bridge() -> None:
    absent = {"scaleup_bandwidth": None, "scaleup_latency": None, "in_switch_reduction": None}
    topology = topology_of("fat-tree", nodes=2, devices_per_node=2, nics_per_node=1, **absent)
    assert hops(topology, "n0.g0", "n0.g1") == ["n0.g0", "n0.host0", "n0.g1"]
    assert hops(topology, "n0.g1", "n1.g0")[1:4] == ["n0.host0", "n0.nic0", "leaf0"]


def test_a_topology_may_say_what_a_device_costs() -> None:
    assert topology_of("dgx-h100").device.price_per_hour is None
    assert topology_of("dgx-h100", price="2.5 USD/h").device.price_per_hour == 2.5
    with pytest.raises(InputError, match=r"topology\.price"):
        topology_of("dgx-h100", price="2.5")
