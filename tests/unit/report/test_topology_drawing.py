"""Where the picture of a cluster draws nodes, devices, switches and links."""

from __future__ import annotations

from typing import Any

from clustersim.report.figures.topology import topology_drawing


def load_of(nodes: int, devices: int) -> dict[str, Any]:
    """Return links between devices, the switch of their node and a leaf, all used, and links of an idle tier."""
    kinds, links = {}, []
    for node in range(nodes):
        names = [f"n{node}.g{device}" for device in range(devices)]
        kinds |= dict.fromkeys(names, "device") | {f"n{node}.nvswitch": "switch", f"n{node}.nic0": "nic"}
        pairs = [(name, f"n{node}.nvswitch", "scaleup") for name in names]
        pairs += [(names[0], f"n{node}.nic0", "pcie"), (f"n{node}.nic0", "leaf0", "nic"), ("leaf0", "spine0", "fabric")]
        for tail, head, tier in pairs:
            for ends in ((tail, head), (head, tail)):
                links.append([len(links), *ends, tier, 1e9, tier != "fabric"])
    return {"failing": [], "links": links, "kinds": kinds | {"leaf0": "leaf", "spine0": "spine"}}


def test_devices_are_in_the_box_of_their_node_and_switches_above_them() -> None:
    drawing = topology_drawing(load_of(2, 8))
    for name, (kind, x, y) in drawing.vertices.items():
        if kind == "leaf":
            assert y > max(top for *_, top in drawing.boxes.values())
        else:
            left, right, bottom, top = drawing.boxes[name.split(".")[0]]
            assert left < x < right
            assert bottom < y < top
    (_, end, _, _), (begin, _, _, _) = drawing.boxes["n0"], drawing.boxes["n1"]
    assert end < begin
    assert len({(x, y) for _, x, y in drawing.vertices.values()}) == len(drawing.vertices)


def test_every_link_that_may_be_used_is_drawn_once_and_idle_tiers_are_not() -> None:
    load = load_of(2, 8)
    drawing = topology_drawing(load)
    drawn = [link for edge in drawing.edges for side in ("there", "back") for link in edge[side]]
    assert sorted(drawn) == [number for number, *_, used in load["links"] if used]
    assert "spine0" not in drawing.vertices
    assert all(len(edge["there"]) == len(edge["back"]) == 1 for edge in drawing.edges)


def test_a_node_of_many_is_one_mark_with_all_of_its_links() -> None:
    drawing = topology_drawing(load_of(16, 8))
    assert drawing.boxes == {}
    assert [name for name, (kind, _, _) in drawing.vertices.items() if kind == "node"] == [f"n{n}" for n in range(16)]
    inside = next(edge for edge in drawing.edges if edge["ends"] == ["n3", "n3"])
    assert len(inside["there"]) == 18
    assert "128 devices" in drawing.words


def test_devices_that_fail_are_marked_where_they_are() -> None:
    for nodes, name in ((2, "n1.g3"), (16, "n1")):
        failing = [[["n1.g3"], 5, None, "device n1.g3 down"]]
        drawing = topology_drawing(load_of(nodes, 8) | {"failing": failing})
        _, x, y = drawing.vertices[name]
        assert drawing.failing == [[x, y, 5, None, "device n1.g3 down"]]


def test_a_torus_is_drawn_plane_by_plane() -> None:
    """4 × 4 × 2 devices; rings of two are one link."""
    names = [f"n0.g{number}" for number in range(32)]
    links = [
        [number, names[one], names[one - at + (at + step) % size], "ici", 1e9, True]
        for number, (one, step, size, at) in enumerate(
            (one, step, step * length, one % (step * length))
            for one in range(32)
            for step, length in ((1, 4), (4, 4), (16, 2))
        )
    ]
    drawing = topology_drawing({"failing": [], "links": links, "kinds": dict.fromkeys(names, "device")})
    for number, name in enumerate(names):
        assert drawing.vertices[name][1:] == (number % 4 + number // 16 * 5, -(number // 4 % 4))
