"""Laws of routing on every fabric that ships and on random graphs."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.cluster import Device, Topology, topology_from_edges
from clustersim.errors import InputError
from tests.effort import examples
from tests.shipped import topology_of

DEVICE = Device(name="toy", vendor="nobody", memory_bytes=1, memory_bytes_per_s=1.0, flops={"bf16": 1.0})
SIZES: dict[str, dict[str, Any]] = {
    "dgx-a100": {"nodes": 3},
    "dgx-h100": {"nodes": 70},
    "dgx-b200": {"nodes": 1},
    "h800-node": {"nodes": 4, "nodes_per_unit": 2, "spines": 3},
    "gb200-nvl72": {"nodes": 9},
    "mi300x-node": {"nodes": 4, "nodes_per_unit": 1},
    "l40s-node": {"nodes": 3},
    "rtx-pro-6000-node": {},
    "rtx-4090-node": {},
    "fat-tree": {"nodes": 13},
    "fat-tree-16": {"name": "fat-tree"},
    "fat-tree-16-thin": {"name": "fat-tree", "oversubscription": 4},
    "tpu-v5p": {"dims": [4, 8, 2]},
    "tpu-v6e": {"dims": [16, 5]},
}
FORWARDING = ("tpu-v5p", "tpu-v6e")


def fresh(name: str) -> Topology:
    overrides = SIZES[name]
    return topology_of(**({"name": name} | overrides))


shared = cache(fresh)


def vertices_of(topology: Topology, source: int, target: int) -> list[str]:
    """Vertices on a route; fails when its links do not join up."""
    here = topology.devices[source]
    path = [here]
    for link in topology.route(source, target):
        tail, head = topology.link_ends[link]
        assert tail == path[-1]
        path.append(head)
    assert path[-1] == topology.devices[target]
    return path


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, int, int]:
    name = draw(st.sampled_from(sorted(SIZES)))
    index = st.integers(0, len(shared(name).devices) - 1)
    return name, draw(index), draw(index)


@given(pairs())
def test_route_joins_source_and_target_without_a_loop(pair: tuple[str, int, int]) -> None:
    name, source, target = pair
    path = vertices_of(shared(name), source, target)
    assert len(set(path)) == len(path)


@given(pairs())
def test_way_back_has_as_many_hops_and_the_same_transit(pair: tuple[str, int, int]) -> None:
    name, source, target = pair
    topology = shared(name)
    assert len(topology.route(source, target)) == len(topology.route(target, source))
    there, back = topology.transit(source, target), topology.transit(target, source)
    assert there == pytest.approx(back)


@examples(20)
@given(pairs())
def test_fresh_object_has_the_same_route(pair: tuple[str, int, int]) -> None:
    name, source, target = pair
    assert fresh(name).route(source, target) == shared(name).route(source, target)


@given(pairs())
def test_nothing_passes_through_another_device_in_switched_fabrics(pair: tuple[str, int, int]) -> None:
    name, source, target = pair
    topology = shared(name)
    others = set(topology.devices) - {topology.devices[source], topology.devices[target]}
    if name not in FORWARDING:
        assert others.isdisjoint(vertices_of(topology, source, target))


@given(pairs())
def test_torus_route_is_as_long_as_the_shortest(pair: tuple[str, int, int]) -> None:
    import networkx as nx

    name, source, target = pair
    topology = shared(name)
    if name in FORWARDING:
        ends = topology.devices[source], topology.devices[target]
        assert len(topology.route(source, target)) == nx.shortest_path_length(topology.graph, *ends)


@given(st.sampled_from(sorted(SIZES)), st.data())
def test_links_and_graph_agree(name: str, data: st.DataObject) -> None:
    topology = shared(name)
    link = data.draw(st.integers(0, len(topology.link_ends) - 1))
    edge = topology.graph.edges[topology.link_ends[link]]
    assert (edge["link"], edge["capacity"]) == (link, topology.link_capacity[link])


def busiest(topology: Topology, shift: int, bytes_per_s: float) -> float:
    """Highest load of a link over its capacity when every device sends to the one ``shift`` further on."""
    count = len(topology.devices)
    load = [0.0] * len(topology.link_ends)
    for source in range(count):
        for link in topology.route(source, (source + shift) % count):
            load[link] += bytes_per_s
    return max(used / float(capacity) for used, capacity in zip(load, topology.link_capacity, strict=True))


@given(st.integers(32, 96))
def test_shift_never_blocks_a_full_fat_tree(shift: int) -> None:
    # 16 nodes, 4 on a leaf of 32 ports, 8 spines: D-mod-k gives every spine 4 of a leaf's 32 flows.
    assert busiest(shared("fat-tree-16"), shift, 50e9) == pytest.approx(1.0)


@given(st.integers(32, 96))
def test_shift_across_leaves_blocks_an_oversubscribed_fat_tree(shift: int) -> None:
    assert busiest(shared("fat-tree-16-thin"), shift, 50e9) == pytest.approx(4.0)


@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=25),
)
def test_random_graph_is_routed_as_networkx_does_or_refused(
    num_devices: int, drawn: list[tuple[int, int, int]]
) -> None:
    import networkx as nx

    edges = {(min(a, b), max(a, b)): capacity for a, b, capacity in drawn if a != b}
    names = [f"v{number}" for number in range(10)]
    links = [(names[a], names[b], 1e9 * capacity, 1e-6, "fabric") for (a, b), capacity in edges.items()]
    reference = nx.Graph((tail, head) for tail, head, *_ in links)
    reference.add_nodes_from(names[:num_devices])
    whole = all(nx.has_path(reference, names[0], names[number]) for number in range(num_devices))
    try:
        topology = topology_from_edges("r", DEVICE, names[:num_devices], links, device_transit=True)
    except InputError:
        assert not whole
        return
    assert whole
    for target in range(num_devices):
        path = vertices_of(topology, 0, target)
        assert len(path) - 1 == nx.shortest_path_length(reference, names[0], names[target])
