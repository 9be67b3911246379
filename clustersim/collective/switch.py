"""NVLink SHARP: the scale-up switch adds what devices send it and copies what it sends them.

Loads per payload byte on each device's link to (up) and from (down) the switch, with n devices:

============== ========= ========= =======================================================================
kind           up        down      because
============== ========= ========= =======================================================================
reduce_scatter 1         1/n       a rank reads its part; the switch fetches it from all n and adds
all_gather     1/n       1         a rank writes its part once; the switch copies it to all n
all_reduce     1 + 1/n   1 + 1/n   both, one after the other, pipelined
broadcast      1 (root)  1         the root writes once
============== ========= ========= =======================================================================

Source: Klenk et al., An in-network architecture for accelerating shared-memory multiprocessor collectives,
ISCA 2020; NCCL's NVLS algorithm; PTX ``multimem.ld_reduce`` and ``multimem.st``.
"""

from __future__ import annotations

from clustersim.collective.group import Group
from clustersim.collective.traffic import Traffic


def shares_switch(group: Group) -> bool:
    """Tell whether all members hang on one switch that reduces."""
    topology = group.topology
    if not topology.in_switch_reduction or not group.is_one_domain or len(group.ranked) < 2:
        return False
    first = group.ranked[0]
    routes = [topology.route(first, member) for member in group.ranked[1:]]
    return all(len(route) == 2 for route in routes) and len({route[0] for route in routes}) == 1


def in_switch(group: Group, up: float, down: float) -> Traffic:
    """Return the traffic with ``up`` bytes to and ``down`` from the switch per device and payload byte."""
    loads = [load for member in group.ranked for load in zip(_links(group, member), (up, down), strict=True)]
    return Traffic(switch_loads=loads, steps=[(2, [(group.ranked[0], group.ranked[1])])])


def broadcast_in_switch(group: Group) -> Traffic:
    """The first of the given order writes once, and the switch copies it to all."""
    root = group.given[0]
    loads = [(_links(group, root)[0], 1.0)]
    loads += [(_links(group, member)[1], 1.0) for member in group.ranked]
    return Traffic(switch_loads=loads, steps=[(1, [(root, group.given[1])])])


def _links(group: Group, member: int) -> tuple[int, int]:
    """Return the link from ``member`` to the switch and the one back."""
    other = group.ranked[0] if member != group.ranked[0] else group.ranked[1]
    return group.topology.route(member, other)[0], group.topology.route(other, member)[-1]
