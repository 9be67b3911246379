"""What an algorithm sends, apart from any device: who sends how much to whom, and which sends wait.

Algorithms build :class:`Traffic` from the group alone;
:func:`clustersim.collective.price.price` lays it over the routes of a topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clustersim.values import dataclass

Send = tuple[int, int, float]
"""Source device, target device, bytes sent per payload byte over the whole collective."""
Step = tuple[int, Sequence[tuple[int, int]]]
"""How many times the step happens one after the other, and its (source, target) pairs: the slowest counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The sends of an algorithm on a group.

    Parameters
    ----------
    sends : sequence of (source, target, bytes per payload byte)
        Everything that is sent; the sends of one pair may be in several entries.
    steps : sequence of (times, pairs)
        The longest chain of steps that wait for each other; it sets α.
    peers : int
        Peers that one rank talks to at the same time (0 or 1: no extra cost).
    own : float
        Bytes per payload byte that a rank keeps and copies.
    switch_loads : sequence of (link, bytes per payload byte)
        Loads of the scale-up switch's own multicasts and reductions, which are no sends between two devices.
    """

    sends: Sequence[Send] = ()
    steps: Sequence[Step] = ()
    peers: int = 0
    own: float = 0.0
    switch_loads: Sequence[tuple[int, float]] = ()


def merged(parts: Iterable[Traffic]) -> Traffic:
    """Return the traffic of stages whose chunks are pipelined: loads add up, and so do the steps."""
    stages = list(parts)
    return Traffic(
        sends=[send for stage in stages for send in stage.sends],
        steps=[step for stage in stages for step in stage.steps],
        peers=max((stage.peers for stage in stages), default=0),
        switch_loads=[load for stage in stages for load in stage.switch_loads],
    )


def scaled(traffic: Traffic, factor: float) -> Traffic:
    """Return the traffic of a part of the payload: the same steps with ``factor`` times the bytes."""
    return Traffic(
        sends=[(source, target, share * factor) for source, target, share in traffic.sends],
        steps=traffic.steps,
        peers=traffic.peers,
        switch_loads=[(link, share * factor) for link, share in traffic.switch_loads],
    )
