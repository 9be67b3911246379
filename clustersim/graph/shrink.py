"""A pass made small once, by what holds whatever its instances take.

cut
    where one instance waits for all before it, and all behind it wait for it: what lies between two such instances is
    a *stretch*, and equal stretches last equally long;
reduce
    what an instance waits for is dropped where another one of these has waited for it;
contract
    an instance that starts when the only one that it waits for ends, for which nobody else waits, is of one *series*
    with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array

Waits = Sequence[tuple[int, ...]]
"""What each instance waits for: earlier ones, ascending."""

WINDOW: Final = 4096
"""How far back it is looked what an instance has waited for: to drop less is as right, and takes less memory."""


class Stretch(NamedTuple):
    """Equal stretches of a pass.

    Parameters
    ----------
    first, stop : int
        The instances of the first of them.
    times : int
        How many there are.
    """

    first: int
    stop: int
    times: int


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


def cut(waits: Waits, kinds: Sequence[Hashable], keep: Collection[int] = ()) -> list[Stretch]:
    """Return the stretches of a pass, equal ones once; the last one comes last, and is there once.

    Parameters
    ----------
    waits : sequence of tuple of int
    kinds : sequence
        What each instance is: those of equal stretches are equal.
    keep : collection of int
        Instances that the last stretch must have.
    """
    number = len(waits)
    least = [number] * (number + 1)
    """From each instance on, the least of the last ones that are waited for."""
    for at in range(number - 1, -1, -1):
        least[at] = min(least[at + 1], waits[at][-1] if waits[at] else -1)
    limit, bounds, ends = min(keep, default=number), [0], set[int]()
    for at, some in enumerate(waits):
        joins = 1 < len(ends) <= len(some) and ends.issubset(some)
        if joins and least[at + 1] >= at and at + 1 < number and at < limit:
            bounds.append(at + 1)
        ends.difference_update(some)
        ends.add(at)
    found: dict[object, tuple[int, int]] = {}
    times: Counter[object] = Counter()
    for first, stop in pairwise(bounds):
        key = tuple(kinds[first:stop]), *inside(waits, first, stop)
        found.setdefault(key, (first, stop))
        times[key] += 1
    some_ = [Stretch(*found[key], times[key]) for key in found]
    return [*some_, Stretch(bounds[-1], number, 1)]


def inside(waits: Waits, first: int, stop: int) -> list[tuple[int, ...]]:
    """Return what the instances of a stretch wait for in it, counted from its first one."""
    return [tuple([one - first for one in some if one >= first]) for some in waits[first:stop]]


def reduced(waits: Waits) -> list[tuple[int, ...]]:
    """Return what each instance waits for but for that which another one of these has waited for."""
    mask = (1 << WINDOW) - 1
    earlier: list[int] = []
    """Of each instance, whether it has waited for the one so many places before it, by bits."""
    found = []
    for at, some in enumerate(waits):
        implied = 0
        for one in some:
            implied |= (earlier[one] << (at - one)) & mask
        found.append(tuple([one for one in some if not implied >> (at - one - 1) & 1]))
        for one in some:
            implied |= 1 << (at - one - 1)
        earlier.append(implied & mask)
    return found


def contracted(waits: Waits, keep: Collection[int] = ()) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """Return the instances of each series, and the series that each one waits for; in order of their last instances.

    Parameters
    ----------
    waits : sequence of tuple of int
    keep : collection of int
        Instances with which a series must end.
    """
    waits = reduced(waits)
    waited = Counter([one for some in waits for one in some])
    series: dict[int, list[int]] = {}
    """By their last instance."""
    for at, some in enumerate(waits):
        joins = len(some) == 1 and waited[some[0]] == 1 and some[0] not in keep
        mine = series.pop(some[0]) if joins else []
        mine.append(at)
        series[at] = mine
    number = {last: at for at, last in enumerate(sorted(series))}
    members = [series[last] for last in number]
    return members, [tuple([number[one] for one in waits[some[0]]]) for some in members]


class Series:
    """The series of a pass, or of a stretch of it: when each of its instances ends, whatever it takes.

    Parameters
    ----------
    waits : sequence of tuple of int
    """

    def __init__(self, waits: Waits) -> None:
        members, self.waits = contracted(waits)
        self.order = np.array([one for some in members for one in some], np.int64)
        self.back = np.argsort(self.order)
        sizes = np.array([len(some) for some in members], np.int64)
        self.last = np.cumsum(sizes) - 1
        self.of = np.repeat(np.arange(len(members)), sizes)

    def runs(self, instances: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first and the last instance of each run of some of them between which nothing else happens."""
        places = np.sort(self.back[instances])
        begins = np.ones(len(places), bool)
        begins[1:] = (np.diff(places) > 1) | (np.diff(self.of[places]) > 0)
        return self.order[places[begins]], self.order[places[np.roll(begins, -1)]]

    def ends(self, durations: Int64Array) -> Int64Array:
        """Return when every instance ends.

        Parameters
        ----------
        durations : int64 array of shape (instances,) or (instances, passes)
        """
        along = np.cumsum(durations[self.order], axis=0)
        until = along[self.last]
        took = np.diff(until, axis=0, prepend=np.zeros_like(until[:1]))
        ends = latest_ends(self.waits, took)
        found: Int64Array = (along + (ends - until)[self.of])[self.back]
        return found


def latest(waits: Waits, took: Sequence[int]) -> list[int]:
    """Return when each of those ends that take so long."""
    found: list[int] = []
    for some, ns in zip(waits, took, strict=True):
        start = 0
        for one in some:
            end = found[one]
            if end > start:  # noqa: PLR1730  # max() takes twice as long
                start = end
        found.append(start + ns)
    return found


def latest_ends(waits: Waits, took: Int64Array) -> Int64Array:
    """Return what :func:`latest` does, of one pass or of several.

    Parameters
    ----------
    waits : sequence of tuple of int
    took : int64 array of shape (series,) or (series, passes)
    """
    if took.ndim == 1:
        return np.array(latest(waits, took.tolist()), np.int64)
    ends = took.copy()
    rows = list(ends)
    for row, some in zip(rows, waits, strict=True):
        if not some:
            continue
        start = rows[some[0]]
        for one in some[1:]:
            start = np.maximum(start, rows[one])
        row += start
    return ends
