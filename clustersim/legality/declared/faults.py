"""What the declared faults of a run do: replicas that are down, ranks that are slow, collectives over weak links."""

from __future__ import annotations

from typing import NamedTuple


class Outage(NamedTuple):
    """Something that a replica needs has failed between two instants, ns."""

    replica: int
    since_ns: int
    until_ns: int

    @property
    def instants(self) -> tuple[int, int]:
        """When it begins and when it ends, ns."""
        return self.since_ns, self.until_ns


class SlowRank(NamedTuple):
    """In passes that start between two instants, ns, kernels of a rank take so many times as long."""

    rank: int
    since_ns: int
    until_ns: int
    slowdown: float

    def covers(self, now_ns: int) -> bool:
        """Whether passes that start at an instant are slower."""
        return self.since_ns <= now_ns < self.until_ns


class WeakGroup(NamedTuple):
    """A collective crosses a link that carries less than it should between two instants, ns.

    ``first``, ``last`` and ``ranks`` are the lowest and the highest of its ranks and how many they are, which tells
    groups of TP from those of SP. ``costs`` has for growing payloads what it costs over links as they should be, and
    how much longer it takes, ns. ``name`` is of what runs in a way of its own: DeepEP's dispatch, and its combine.
    """

    op: str
    first: int
    last: int
    ranks: int
    since_ns: int
    until_ns: int
    costs: tuple[tuple[float, float], ...]
    name: str = ""
