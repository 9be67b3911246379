"""The longest path through a pass, many instances at a time: for passes of many ranks that do different work.

An instance is one *level* behind the latest of those that it waits for. Instances of one level do not wait for each
other, so that a level is one step of the longest path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.values import dataclass

LEAST_WIDTH: Final = 8
"""Instances per level, on average, from which on levels are faster than one instance after the other."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """Instances that wait for earlier levels only.

    Parameters
    ----------
    instances : int64 array
    needs : int64 array
        What these wait for, instance by instance; empty on the first level.
    firsts : int64 array of shape (instances,)
        Where in ``needs`` those of each one begin.
    """

    instances: Int64Array
    needs: Int64Array
    firsts: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """All levels of a pass, in order."""

    levels: tuple[Level, ...]

    def ends(self, durations: Int64Array) -> Int64Array:
        """Return when every instance ends.

        Parameters
        ----------
        durations : int64 array of shape (instances,) or (instances, passes)
            Of one pass, or of several at once.
        """
        ends = durations.copy()
        for level in self.levels[1:]:
            ends[level.instances] += np.maximum.reduceat(ends[level.needs], level.firsts, axis=0)
        return ends


def levels_of(waits: Sequence[tuple[int, ...]], least_width: int = LEAST_WIDTH) -> Levels | None:
    """Put the instances of a pass into levels; None where these are too narrow to be worth it.

    Parameters
    ----------
    waits : sequence of tuple of int
        What each instance waits for: earlier ones.
    least_width : int
        Instances per level, on average, below which they are too narrow.
    """
    depth: list[int] = []
    for before in waits:
        depth.append(1 + max([depth[one] for one in before], default=-1))
    count = max(depth, default=-1) + 1
    if len(depth) < least_width * count:
        return None
    members: list[list[int]] = [[] for _ in range(count)]
    for at, level in enumerate(depth):
        members[level].append(at)
    return Levels(levels=tuple(_level(some, waits) for some in members))


def _level(instances: list[int], waits: Sequence[tuple[int, ...]]) -> Level:
    sizes = [len(waits[at]) for at in instances]
    return Level(
        instances=np.array(instances, np.int64),
        needs=np.array([one for at in instances for one in waits[at]], np.int64),
        firsts=np.cumsum([0, *sizes[:-1]], dtype=np.int64),
    )
