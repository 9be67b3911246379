"""A group of devices as the algorithms see it: sorted by node and index, and cut into scale-up domains."""

from __future__ import annotations

import math

from clustersim.cluster.topology import Topology
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The members of a collective on a topology.

    Parameters
    ----------
    topology : Topology
        Where the members are.
    given : tuple of int
        Device indices in the order of the ranks: the first is a broadcast's or gather's root.
    ranked : tuple of int
        The same sorted by node, then index: neighbours are near each other.
    domains : tuple of tuple of int
        ``ranked``, cut where the node (scale-up domain) changes.
    """

    topology: Topology
    given: tuple[int, ...]
    ranked: tuple[int, ...]
    domains: tuple[tuple[int, ...], ...]

    @property
    def is_one_domain(self) -> bool:
        """Whether all members share one scale-up domain."""
        return len(self.domains) == 1

    @property
    def is_even(self) -> bool:
        """Whether every domain has equally many members."""
        return len({len(domain) for domain in self.domains}) == 1

    def is_linked(self, source: int, target: int) -> bool:
        """Tell whether one link leads straight from ``source`` to ``target``."""
        return len(self.topology.route(source, target)) == 1

    def tiers(self) -> list[str]:
        """Return the tiers of the links that the first member's traffic to all others takes, sorted."""
        first = self.ranked[0]
        links = [link for member in self.ranked[1:] for link in self.topology.route(first, member)]
        return sorted({self.topology.link_tier[link] for link in links})

    def grid(self) -> tuple[int, ...] | None:
        """Return the axis lengths (fastest first) when neighbours along each axis are linked; else None.

        This finds the box that a group fills in a torus from the links alone. A box needs two axes or more.
        """
        count = len(self.ranked)
        for shape in _shapes(count):
            if all(self._is_axis(shape, axis) for axis in range(len(shape))):
                return shape
        return None

    def _is_axis(self, shape: tuple[int, ...], axis: int) -> bool:
        stride, length = math.prod(shape[:axis]), shape[axis]
        return all(
            self.is_linked(member, self.ranked[position + stride])
            for position, member in enumerate(self.ranked)
            if position // stride % length < length - 1
        )


def group_of(topology: Topology, given: tuple[int, ...]) -> Group:
    """Sort a group and cut it into scale-up domains."""
    node_of = {device: int(topology.node_of[device]) for device in given}
    ranked = sorted(given, key=lambda device: (node_of[device], device))
    domains: list[list[int]] = []
    for device in ranked:
        if not domains or node_of[domains[-1][0]] != node_of[device]:
            domains.append([])
        domains[-1].append(device)
    return Group(
        topology=topology,
        given=given,
        ranked=tuple(ranked),
        domains=tuple(tuple(domain) for domain in domains),
    )


def _shapes(count: int) -> list[tuple[int, ...]]:
    """Return the boxes of two or three axes that hold ``count``, those with three axes first."""
    twos: list[tuple[int, ...]] = [(x, count // x) for x in range(2, count // 2 + 1) if count % x == 0]
    threes: list[tuple[int, ...]] = [
        (x, y, rest // y) for x, rest in twos for y in range(2, rest // 2 + 1) if rest % y == 0
    ]
    return threes + twos
