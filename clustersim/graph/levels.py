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
"""Instances per level, or run of levels, on average, from which on these are faster than one by one."""


FEW: Final = 3
"""What an instance waits for, up to which that is looked at one by one."""
Places = Int64Array | slice
"""Of instances: a range where they are one, which is read faster."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """Instances that wait for earlier levels only; or several levels, each of which waits for the one before alone.

    Parameters
    ----------
    instances : int64 array or slice
    needs : tuple of int64 array or slice
        What those of the first of these levels wait for: the first of each, the second of each, … where all wait for
        equally few; empty on the first level. Else what they wait for instance by instance, in one array.
    firsts : int64 array of shape (instances,) or None
        Where in that array those of each one begin; None where all wait for equally few.
    depth : int
        How many levels these are: equally wide, and each instance waits for that at its place in the one before.
    """

    instances: Places
    needs: tuple[Places, ...]
    firsts: Int64Array | None
    depth: int = 1

    def starts(self, ends: Int64Array) -> Int64Array:
        """Return when the instances of the first level start."""
        found: Int64Array = ends[self.needs[0]]
        if self.firsts is not None:
            return np.maximum.reduceat(found, self.firsts, axis=0)
        for others in self.needs[1:]:
            found = np.maximum(found, ends[others])
        return found

    def follow(self, ends: Int64Array) -> None:
        """Add to durations when the instances start."""
        if self.depth == 1:
            ends[self.instances] += self.starts(ends)
            return
        each = ends[self.instances].reshape(self.depth, -1, *ends.shape[1:])
        each[0] += self.starts(ends)
        np.add.accumulate(each, 0, None, each)


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
            level.follow(ends)
        return ends


def levels_of(waits: Sequence[tuple[int, ...]], least_width: int = LEAST_WIDTH) -> Levels | None:
    """Put the instances of a pass into levels; None where these are too narrow to be worth it.

    Parameters
    ----------
    waits : sequence of tuple of int
        What each instance waits for: earlier ones.
    least_width : int
        Instances per level or run of levels, on average, below which they are too narrow.
    """
    depth: list[int] = []
    for before in waits:
        depth.append(1 + max([depth[one] for one in before], default=-1))
    count = max(depth, default=-1) + 1
    members: list[list[int]] = [[] for _ in range(count)]
    for at, level in enumerate(depth):
        members[level].append(at)
    found: list[Level] = []
    for number, some in enumerate(members):
        level_ = _level(some, waits)
        if number > 1 and _goes_on(found[-1], members[number - 1], level_):
            level_ = _joined(found.pop(), level_)
        found.append(level_)
    if len(depth) < least_width * len(found):
        return None
    return Levels(levels=tuple(found))


def _goes_on(last: Level, before: list[int], level: Level) -> bool:
    """Whether a level is as wide as the one before it, follows it, and each waits for that at its place there alone."""
    here, there = level.instances, last.instances
    if not (isinstance(here, slice) and isinstance(there, slice) and len(level.needs) == 1):
        return False
    needs, alone = level.needs[0], slice(before[0], before[-1] + 1)
    return isinstance(needs, slice) and needs == alone and here == slice(alone.stop, 2 * alone.stop - alone.start)


def _joined(first: Level, then: Level) -> Level:
    assert isinstance(first.instances, slice)
    assert isinstance(then.instances, slice)
    both = slice(first.instances.start, then.instances.stop)
    return Level(instances=both, needs=first.needs, firsts=first.firsts, depth=first.depth + 1)


def _level(instances: list[int], waits: Sequence[tuple[int, ...]]) -> Level:
    found, sizes = [waits[at] for at in instances], [len(waits[at]) for at in instances]
    if len(set(sizes)) == 1 and sizes[0] <= FEW:
        needs = tuple([_places(each) for each in zip(*found, strict=True)])
        return Level(instances=_places(instances), needs=needs, firsts=None)
    every = (np.array([one for some in found for one in some], np.int64),)
    return Level(instances=_places(instances), needs=every, firsts=np.cumsum([0, *sizes[:-1]], dtype=np.int64))


def _places(found: Sequence[int]) -> Places:
    first, last = found[0], found[-1]
    if len(set(found)) == 1:  # all wait for the same one
        return slice(first, first + 1)
    if list(found) == list(range(first, last + 1)):
        return slice(first, last + 1)
    return np.array(found, np.int64)
