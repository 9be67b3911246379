"""Shortest paths over directed links, the same ones in every run.

Fewest links first; among these the least time to carry one megabyte link by link; among equal ones (ECMP) the
choice is the target's index modulo the number of choices ("D-mod-k", which keeps shift permutations free of
conflicts in a fat tree: Zahavi, "Fat-trees routing and node ordering providing contention free traffic for
MPI global collectives", J. Parallel Distrib. Comput. 72 (2012)). Not modelled: adaptive routing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, Protocol

from clustersim.errors import ClustersimError

_PROBE_BYTES: Final = 1e6
_PS_PER_S: Final = 1e12


class Router(Protocol):
    """Chooses the links from one device to another, by device indices."""

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Return the link ids in order; empty when ``source`` is ``target``."""
        ...


class ShortestPaths:
    """Routes over an arbitrary graph, computed per target on demand.

    Parameters
    ----------
    num_vertices : int
        Vertices are ``0 … num_vertices - 1``.
    ends : Sequence of (int, int)
        Tail and head of each directed link.
    capacity, latency_s : Sequence of float
        Bytes/s and seconds of each link.
    closed : Sequence of bool
        Per vertex: traffic of others may not pass through it.
    """

    def __init__(
        self,
        num_vertices: int,
        ends: Sequence[tuple[int, int]],
        capacity: Sequence[float],
        latency_s: Sequence[float],
        closed: Sequence[bool],
    ) -> None:
        self._ends = ends
        self._closed = closed
        # Integers, so that sums are equal whatever their order.
        self._cost_ps = [
            round((latency + _PROBE_BYTES / bytes_per_s) * _PS_PER_S)
            for bytes_per_s, latency in zip(capacity, latency_s, strict=True)
        ]
        self._out: list[list[int]] = [[] for _ in range(num_vertices)]
        self._into: list[list[int]] = [[] for _ in range(num_vertices)]
        for link, (tail, head) in enumerate(ends):
            self._out[tail].append(link)
            self._into[head].append(link)
        self._distances: dict[int, dict[int, tuple[int, int]]] = {}

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Return the link ids from vertex ``source`` to vertex ``target``."""
        distance = self._distances.get(target)
        if distance is None:
            distance = self._distances[target] = self._distances_to(target)
        if source not in distance:
            raise ClustersimError(f"no route from vertex {source} to vertex {target}")
        links: list[int] = []
        vertex = source
        while vertex != target:
            hops, cost = distance[vertex]
            choices = [
                link
                for link in self._out[vertex]
                if self._leads(distance, link, target, (hops - 1, cost - self._cost_ps[link]))
            ]
            links.append(choices[target % len(choices)])
            vertex = self._ends[links[-1]][1]
        return tuple(links)

    def reaches(self, source: int, target: int) -> bool:
        """Tell whether there is a route from ``source`` to ``target``."""
        if target not in self._distances:
            self._distances[target] = self._distances_to(target)
        return source in self._distances[target]

    def _leads(self, distance: dict[int, tuple[int, int]], link: int, target: int, rest: tuple[int, int]) -> bool:
        head = self._ends[link][1]
        return (head == target or not self._closed[head]) and distance.get(head) == rest

    def _distances_to(self, target: int) -> dict[int, tuple[int, int]]:
        """Dijkstra against the links' direction; a distance is (links, picoseconds)."""
        distance: dict[int, tuple[int, int]] = {}
        queue = [(0, 0, target)]
        while queue:
            hops, cost, vertex = heapq.heappop(queue)
            if vertex in distance:
                continue
            distance[vertex] = (hops, cost)
            if self._closed[vertex] and vertex != target:
                continue
            for link in self._into[vertex]:
                tail = self._ends[link][0]
                if tail not in distance:
                    heapq.heappush(queue, (hops + 1, cost + self._cost_ps[link], tail))
        return distance
