"""Who takes part in a collective, and what its members send: bytes per payload byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from clustersim.cluster.topology import Topology
from clustersim.values import dataclass

Pairs = Iterable[tuple[int, int]]


@dataclass(slots=True, kw_only=True)
class Sent:
    """What is sent: bytes by (source, target), on links of a switch that reduces, steps in a row, peers, own bytes."""

    bytes: dict[tuple[int, int], float] = field(default_factory=dict)
    steps: list[tuple[int, list[tuple[int, int]]]] = field(default_factory=list)
    at_switch: list[tuple[int, float]] = field(default_factory=list)
    peers: int = 0
    own: float = 0.0

    def send(self, pairs: Pairs, share: float) -> None:
        """Let each pair send so many bytes more."""
        for pair in pairs:
            self.bytes[pair] = self.bytes.get(pair, 0.0) + share

    def add(self, other: Sent, share: float = 1.0) -> None:
        """Let a part be sent as another algorithm does, beside all else; its steps are not counted."""
        for pair, much in other.bytes.items():
            self.send([pair], much * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Devices of a collective: as ranked, and by scale-up domain, each sorted."""

    topology: Topology
    given: tuple[int, ...]
    domains: tuple[tuple[int, ...], ...]

    @property
    def all(self) -> tuple[int, ...]:
        """All members, domain by domain."""
        return tuple(one for domain in self.domains for one in domain)

    @property
    def even(self) -> bool:
        """Whether all domains have as many members."""
        return len(set(map(len, self.domains))) == 1

    @property
    def rails(self) -> list[tuple[int, ...]]:
        """The i-th members of all domains."""
        return list(zip(*self.domains, strict=True))

    def linked(self, source: int, target: int) -> bool:
        """Whether one link leads from one device to another."""
        return len(self.topology.route(source, target)) == 1

    def of(self, devices: Sequence[int]) -> Members:
        """Return some devices as a group of their own."""
        return members_of(self.topology, tuple(devices))


def members_of(topology: Topology, devices: tuple[int, ...]) -> Members:
    """Return a group, cut into scale-up domains."""
    by_domain: dict[int, list[int]] = {}
    for device in sorted(devices):
        by_domain.setdefault(int(topology.node_of[device]), []).append(device)
    domains = tuple(tuple(by_domain[node]) for node in sorted(by_domain))
    return Members(topology=topology, given=devices, domains=domains)


def closed(order: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of neighbours of a ring."""
    return [(order[i - 1], order[i]) for i in (*range(1, len(order)), 0)]


def everybody(devices: Sequence[int]) -> list[tuple[int, int]]:
    """Return all pairs."""
    return [(a, b) for a in devices for b in devices if a != b]
