"""Rings: every member passes a part to its next, n − 1 times for a gather or reduction, twice that for both.

α and bytes: Thakur, Rabenseifner & Gropp, Optimization of Collective Communication Operations in MPICH,
Int. J. High Perform. Comput. Appl. 19 (2005), § 3 and 4.5; Patarasuk & Yuan, Bandwidth optimal all-reduce,
JPDC 69 (2009). Several rings (channels) share the payload, as in NCCL: over several domains one per member
of a domain, so that each NIC is used; where neighbours have links of their own (torus, XGMI mesh) one per
set of links.
"""

from __future__ import annotations

import itertools
import math

from clustersim.collective.group import Group
from clustersim.collective.traffic import Step, Traffic


def ring(group: Group, laps: int) -> Traffic:
    """Return the traffic of ``laps`` laps: 1 for all-gather and reduce-scatter, 2 for all-reduce."""
    orders = ring_orders(group)
    count = len(group.ranked)
    share = laps * (count - 1) / count / len(orders)
    sends = [(source, target, share) for order in orders for source, target in hops(order)]
    return Traffic(sends=sends, steps=lap(group, orders[0], laps), own=own_part(group, laps))


def own_part(group: Group, laps: int) -> float:
    """Return what a rank copies of its own: its part of an all-gather or reduce-scatter (one lap)."""
    return 1.0 / len(group.ranked) if laps == 1 else 0.0


def broadcast_ring(group: Group) -> Traffic:
    """Return the traffic of a pipelined broadcast from the first of the given order along the rings."""
    chains = []
    for order in ring_orders(group):
        start = order.index(group.given[0])
        chains.append(list(itertools.pairwise((*order[start:], *order[:start]))))
    share = 1.0 / len(chains)
    return Traffic(
        sends=[(source, target, share) for chain in chains for source, target in chain],
        steps=[(1, [pair]) for pair in chains[0]],
    )


def hops(order: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the (source, target) pairs of a closed ring."""
    return list(zip(order, (*order[1:], order[0]), strict=True))


def lap(group: Group, order: tuple[int, ...], laps: int) -> list[Step]:
    """Return the steps of a part that goes round the ring: every hop but one that is inside a domain."""
    node_of = group.topology.node_of
    pairs = hops(order)
    skipped = next((i for i, (a, b) in enumerate(pairs) if node_of[a] == node_of[b]), 0)
    return [(laps, [pair]) for i, pair in enumerate(pairs) if i != skipped]


def ring_orders(group: Group) -> list[tuple[int, ...]]:
    """Return the orders of the rings that share the payload."""
    if len(group.domains) > 1:
        return _rail_orders(group) if group.is_even else [group.ranked]
    return _linked_orders(group)


def _rail_orders(group: Group) -> list[tuple[int, ...]]:
    """One ring per rail c. It leaves a domain from the rail on which it enters the next::

        domain 0:  c → c+1 → … → c−1 ┐
        domain 1:  c ← c+1 ← … ← c−1 ┘  rail c−1; from here on over rail c

    An odd number of domains has one hop across rails.
    """
    size = len(group.domains[0])
    orders = []
    for channel in range(size):
        order: list[int] = []
        for number, domain in enumerate(group.domains):
            turn = [domain[(channel + i) % size] for i in range(size)]
            order += turn if number % 2 == 0 else turn[::-1]
        orders.append(tuple(order))
    return orders


def _linked_orders(group: Group) -> list[tuple[int, ...]]:
    """Rings with strides 1, n − 1, … (coprime to n) that run over links of their own; else the plain ring."""
    order = group.ranked
    count = len(order)
    orders = []
    for stride in range(1, count):
        if math.gcd(stride, count) == 1:
            candidate = tuple(order[i * stride % count] for i in range(count))
            unlinked = (pair for pair in hops(candidate) if not group.is_linked(*pair))
            if len(list(itertools.islice(unlinked, 2))) < 2:  # a line of a torus has no link back from its end
                orders.append(candidate)
    return orders or [order]
