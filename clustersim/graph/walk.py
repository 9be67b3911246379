"""When the instances of a pass end, each after what it waits for: one by one, or level by level."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.levels import Levels, levels_of

MANY: Final = 8
"""Passes whose ends are found together, from which on levels of few instances are faster than one by one."""


class Walk:
    """The longest path through a pass.

    Parameters
    ----------
    waits : list of tuple of int
        What each instance waits for: earlier ones.
    """

    def __init__(self, waits: list[tuple[int, ...]]) -> None:
        self.waits = waits

    @cached_property
    def levels(self) -> Levels | None:
        """The instances in levels, where that is the faster way to their ends."""
        return levels_of(self._latest)

    @cached_property
    def _every_level(self) -> Levels | None:
        """The instances in levels, however few each has: the faster way to the ends of many passes at once."""
        return levels_of(self._latest, least_width=0)

    @cached_property
    def _latest(self) -> list[tuple[int, ...]]:
        """What each instance waits for but for that which another one of these has waited for."""
        found: list[tuple[int, ...]] = []
        for some in self.waits:
            earlier = {one for other in some for one in found[other]} if len(some) > 1 else ()
            found.append(tuple([one for one in some if one not in earlier]))
        return found

    def ends(self, durations: Int64Array) -> Int64Array:
        """Return when every instance ends; durations and ends are of shape (instances,) or (instances, passes)."""
        many = durations.ndim > 1 and durations.shape[1] >= MANY
        levels = self._every_level if many else self.levels
        if levels is not None:
            return levels.ends(durations)
        if durations.ndim > 1:
            return np.stack([self.ends(one) for one in durations.T], axis=1)
        found: list[int] = []
        for waits, duration in zip(self._latest, durations.tolist(), strict=True):
            start = 0
            for before in waits:
                end = found[before]
                start = max(start, end)
            found.append(start + duration)
        return np.array(found, np.int64)


def waits_of(
    coordinates: Sequence[tuple[int, ...]], streams: Int64Array, after: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return what each instance of a pass waits for: what it needs, and what its streams run before it.

    Parameters
    ----------
    coordinates : sequence of tuple of int
        SP coordinates of each instance.
    streams : int64 array of shape (instances,)
    after : sequence of tuple of int
        Earlier instances that each one needs.
    """
    last: dict[tuple[int, int], int] = {}
    waits: list[tuple[int, ...]] = []
    for at, (some, stream, needed) in enumerate(zip(coordinates, streams.tolist(), after, strict=True)):
        before = set(needed)
        for s in some:
            if (s, stream) in last:
                before.add(last[s, stream])
            last[s, stream] = at
        waits.append(tuple(sorted(before)))
    return waits
