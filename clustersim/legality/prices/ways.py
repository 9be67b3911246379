"""The algorithms of each kind of collective: the constants that they take, and where they can be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clustersim.legality.prices.algorithms import (
    box,
    bucket,
    direct,
    halving,
    in_switch,
    onwards,
    pair_after_pair,
    ring,
    to_first,
    tree,
    two_level,
    two_level_all_to_all,
    two_shot,
)
from clustersim.legality.prices.sent import Members, Sent


def _one_domain(group: Members) -> bool:
    return len(group.domains) == 1


def _tiers(group: Members) -> set[str]:
    first, topology = group.all[0], group.topology
    return {topology.link_tier[link] for one in group.all[1:] for link in topology.route(first, one)}


def _reads(group: Members) -> bool:
    """Custom all-reduces read each other's memory: inside one domain, and on PCIe only of two devices."""
    tiers = _tiers(group)
    return _one_domain(group) and "ici" not in tiers and (len(group.all) == 2 or "pcie" not in tiers)


def _reads_twice(group: Members) -> bool:
    """Two devices have nothing to share out: a second shot is for more of them, which PCIe has no custom one for."""
    return _reads(group) and len(group.all) > 2


def _has_rails(group: Members) -> bool:
    return group.even and len(group.domains) > 1 and len(group.domains[0]) > 1


def _has_switch(group: Members) -> bool:
    topology, first = group.topology, group.all[0]
    routes = [topology.route(first, one) for one in group.all[1:]]
    return (
        topology.in_switch_reduction and _one_domain(group) and all(len(route) == 2 for route in routes)
        and len({route[0] for route in routes}) == 1
    )  # fmt: skip


def _has_box(group: Members) -> bool:
    return _one_domain(group) and _tiers(group) == {"ici"} and box(group) is not None


def _always(group: Members) -> bool:
    return True


def _by_name(group: Members) -> bool:
    return False


Way = tuple[str, Callable[[Members], Sent], Callable[[Members], bool]]
"""Family of its constants; what is sent; whether it is chosen among where no algorithm is named."""
Share = tuple[float, float]
"""Of a payload: so much, and so much over the number of members."""


def _reducing(laps: int, up: Share, down: Share) -> dict[str, Way]:
    return {
        "ring": ("ring", lambda group: ring(group, laps), _always),
        "in_switch": ("in_switch", lambda group: in_switch(group, _of(group, up), _of(group, down)), _has_switch),
        "hierarchical": ("ring", lambda group: two_level(group, laps), _has_rails),
        "torus": ("ring", lambda group: bucket(group, laps), _has_box),
        "halving_doubling": ("ring", lambda group: halving(group, laps), _by_name),
    }


def _of(group: Members, share: Share) -> float:
    return share[0] + share[1] / len(group.all)


_SHARED: Final[Way] = ("direct", lambda group: direct(group, 1.0 / len(group.all)), _by_name)
WAYS: Final[dict[str, dict[str, Way]]] = {
    "all_reduce": {
        "one_shot": ("one_shot", lambda group: direct(group, 1.0), _reads),
        "two_shot": ("two_shot", two_shot, _reads_twice),
        "tree": ("tree", tree, lambda group: not _one_domain(group)),
        **_reducing(2, up=(1.0, 1.0), down=(1.0, 1.0)),
    },
    "all_gather": {**_reducing(1, up=(0.0, 1.0), down=(1.0, 0.0)), "direct": _SHARED},
    "reduce_scatter": {**_reducing(1, up=(1.0, 0.0), down=(0.0, 1.0)), "direct": _SHARED},
    "all_to_all": {
        "direct": ("direct", lambda group: direct(group, 1.0 / len(group.all)), _always),
        "hierarchical": ("direct", two_level_all_to_all, _has_rails),
        "pairwise": ("send", pair_after_pair, _by_name),
    },
    "gather": {"direct": ("direct", to_first, _always)},
    "ring_shift": {"direct": ("send", onwards, _always)},
}
"""Kind of collective → its algorithms."""
