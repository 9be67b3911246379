"""How long a pass takes, in plain numbers: series of instances as one, and equal layers until they tell the others.

Where an instance waits for one other alone, and nobody else waits for that one, it starts when that one ends: both are
one *series*, which lasts as long as they do together. Equal layers (:mod:`clustersim.graph.layer_walk`) consist of
equal series, so that a pass of thousands of instances is some dozens of series. Layers are walked one by one until the
last ones tell further ones: all that are left where all series are later by one constant than in the layer before (what
is a maximum of ends is later by c where all of these are), and as many as the second condition that ``layer_walk``
proves holds for, behind which they are walked again. So the result is the longest path, whatever the durations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from operator import sub
from typing import Any, Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.layer_walk import LayerWalk, Rounds
from clustersim.graph.template import PassTemplate

SHOWN: Final = 4
"""Rounds that show what all of them wait for: the first, two inner ones, and the last."""

FEW: Final = 4
"""Up to so many passes plain numbers are faster than arrays (measured: Mixtral on EP 8, DeepSeek-V3 on EP 32)."""

MOST_WALKS: Final = 256
"""Walks that are kept: a price is worked out when a step is launched, and its parts are asked for while it passes."""

Waits = list[tuple[int, ...]]


class _PartWalk(NamedTuple):
    """The ends of the series before the rounds and of rounds that were walked.

    Parameters
    ----------
    ends : list of int
    later : list of int
        How much later each series is from round to round in those behind the last one that was walked …
    left : int
        … and how many these are.
    rounds : list of int
        Which rounds were walked.
    paces : dict
        Place among these → how much later each series is from round to round in those that follow, walked or not.
    """

    ends: list[int]
    later: list[int]
    left: int
    rounds: list[int]
    paces: dict[int, list[int]]


class SeriesWalk:
    """The longest path through a pass, of one batch after the other.

    Series are numbered: those before the rounds, those of one round, and those behind the last round.

    Parameters
    ----------
    walk : LayerWalk
        Of the pass, with its layers.
    leaving : sequence of int
        Instances of which :attr:`exits` tells; −1 stands for none.
    num_classes : int

    Attributes
    ----------
    counts : int64 array of shape (series, classes)
        Instances of each cost class in each series.
    exits : tuple of int
        The series with which each of ``leaving`` ends.
    """

    def __init__(self, walk: LayerWalk, leaving: Sequence[int], num_classes: int) -> None:
        waits = walk.whole.waits
        rounds = walk.rounds or Rounds(len(waits), 0, SHOWN)
        shown, place = _shown(waits, rounds)
        reduced = _reduced(shown)
        series = _series(reduced, {place[one] for one in leaving if one >= 0}, rounds)
        first = {one: at for at, one in reversed(list(enumerate(series)))}
        of = [tuple(sorted({series[one] for one in reduced[first[number]]})) for number in range(len(first))]
        self.number = rounds.number
        self.before = before = len({*series[: rounds.first]})
        self.each = each = len({*series[rounds.first : rounds.start(1)]})
        second, third, behind = (before + many * each for many in (1, 2, SHOWN))
        less = behind - second
        """How many series fewer there are where one round stands for all."""
        begin = [before + (at - before) % each if at >= before else at for at in range(third)]
        self._inner = [(some, before + at) for at, some in enumerate(of[third : third + each])]
        self._reach = third - min([one for some, _ in self._inner for one in some if one < third], default=third - 1)
        """How many ends before a round tell when its series start."""
        inner = [tuple([one - third + self._reach for one in some]) for some, _ in self._inner]
        beyond = [tuple([one if one < before else one - less for one in some]) for some in of[behind:]]
        self._parts = (
            (of[:third], begin, second, 0),
            (inner, [at for _, at in self._inner], second, self._reach),
            (beyond, range(len(beyond)), len(beyond), second),
        )
        told = [at for at in range(len(shown)) if not rounds.start(1) <= at < rounds.start(SHOWN)]
        number = [one if one < second else one - less for one in (series[at] for at in told)]
        back = {at: one for one, at in place.items()}
        self.counts: Int64Array = np.zeros((len(of) - less, num_classes), np.int64)
        np.add.at(self.counts, (np.array(number, np.int64), walk.classes[[back[at] for at in told]]), 1)
        left = [-1 if one < 0 else series[place[one]] for one in leaving]
        self.exits = tuple([one if one < before else one - less for one in left])
        self._rounds, self._series, self._place, self._less = rounds, series, place, less
        self._known: dict[tuple[int, ...], _PartWalk] = {}
        self._layers = walk
        self._turns = _turns(of, [before + one * each for one in range(SHOWN + 1)], rounds.number)

    @cached_property
    def _walks(self) -> Sequence[Callable[[Sequence[int], Sequence[int]], list[int]]]:
        """What tells the ends before the rounds and of two of them; of one more; and behind them."""
        return [_straight(*part) for part in self._parts]

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: what is compiled it compiles itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_walks"}

    @cached_property
    def _classes(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The classes of each series, one series after the other; how often it has each; where each series begins."""
        series, classes = np.nonzero(self.counts)
        return classes, self.counts[series, classes], np.searchsorted(series, np.arange(len(self.counts)))

    def durations(self, by_class: Int64Array) -> list[int]:
        """Return how long each series takes, of classes that take so long."""
        found: list[int] = self._durations(by_class).tolist()
        return found

    def _durations(self, by_class: Int64Array) -> Int64Array:
        """Return that of one pass or of several, int64 of shape (…, series)."""
        classes, times, firsts = self._classes
        found: Int64Array = np.add.reduceat(by_class.take(classes, -1) * times, firsts, -1)
        return found

    def lasts(self, by_class: Int64Array) -> Int64Array:
        """Return how long each of several passes takes, int64 of shape (passes,).

        Parameters
        ----------
        by_class : int64 array of shape (passes, classes)
        """
        found: Int64Array
        if self._turns is not None:
            firsts, times = self._turns
            found = np.maximum.reduceat(self._durations(by_class), firsts, -1) @ times
        elif len(by_class) > FEW:
            found = self._layers.lasts(by_class.T)[0]
        else:
            found = np.array([max(self.ends(self.durations(one), keep=False)) for one in by_class], np.int64)
        return found

    def ends(self, durations: Sequence[int], keep: bool = True) -> list[int]:
        """Return when each series has ended, the rounds' in the last one: the latest one ends the pass.

        Parameters
        ----------
        durations : sequence of int
            Of each series, in ns.
        keep : bool
            Whether :meth:`ends_at` may be asked about the same pass.
        """
        return self._last(self._walked(durations) if keep else self._whole(durations), durations)

    def _whole(self, durations: Sequence[int]) -> _PartWalk:
        """Return the walk up to the last round."""
        told = durations[: self.before + self.each]
        return self._go_on(self._walks[0]((), told), told)

    def _walked(self, durations: Sequence[int]) -> _PartWalk:
        """Return what :meth:`_whole` does; the last ones are kept."""
        key = tuple(durations[: self.before + self.each])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_WALKS:
                self._known.clear()
            found = self._known[key] = self._whole(durations)
        return found

    def _last(self, walked: _PartWalk, durations: Sequence[int]) -> list[int]:
        """Return what :meth:`ends` does, from what :meth:`_walked` does."""
        ends, left = walked.ends[: self.before], walked.left
        if self.each:
            last = walked.ends[-self.each :]
            ends += [end + left * more for end, more in zip(last, walked.later, strict=True)]
        return ends + self._walks[2](ends, durations[self.before + self.each :])

    def places(self, instances: Sequence[int]) -> list[tuple[int, int]] | None:
        """Return the series that each of some instances ends, and its round, −1 of what is in none.

        None where one of them ends no series.
        """
        rounds, found, less = self._rounds, list[tuple[int, int]](), self._less
        last = {one: at for at, one in enumerate(self._series)}
        for at in instances:
            inside = rounds.first <= at < rounds.start(rounds.number)
            shown = rounds.first + (at - rounds.first) % rounds.length if inside else self._place[at]
            number = self._series[shown]
            if last[number] != shown:
                return None
            one = number if number < self.before else number - less
            found.append((number - self.before, (at - rounds.first) // rounds.length) if inside else (one, -1))
        return found

    def ends_at(self, places: Sequence[tuple[int, int]], durations: Sequence[int]) -> list[int]:
        """Return when the series at some :meth:`places` end."""
        walked = self._walked(durations)
        whole, ends, before, each = self._last(walked, durations), walked.ends, self.before, self.each
        found = []
        for number, one in places:
            if one < 0:
                found.append(whole[number])
                continue
            block = bisect_right(walked.rounds, one) - 1
            beyond = one - walked.rounds[block]
            more = beyond * walked.paces[block][number] if beyond else 0
            found.append(ends[before + block * each + number] + more)
        return found

    def _go_on(self, ends: list[int], durations: Sequence[int]) -> _PartWalk:
        """Walk on from two rounds to the last one, past those that the ones before them tell."""
        each = self.each
        if not each:
            return _PartWalk(ends, [], 0, [], {})
        last = ends[-each:]
        later = list(map(sub, last, ends[-2 * each :]))
        left, rounds, paces = self.number - 2, [0, 1], dict[int, list[int]]()
        skipped = left if later.count(later[0]) == each else 0
        while skipped < left:
            if skipped:
                paces[len(rounds) - 1] = later
                left -= skipped
                rounds.append(rounds[-1] + skipped)
                ends += [end + skipped * more for end, more in zip(last, later, strict=True)]
                last = ends[-each:]
            known, before_last, last = later, last, self._walks[1](ends[-self._reach :], durations)
            ends += last
            later, left = list(map(sub, last, before_last)), left - 1
            rounds.append(rounds[-1] + 1)
            if later.count(later[0]) == each:
                skipped = left
            else:
                skipped = self._keep_pace(ends, durations, later, left) if later == known else 0
        paces[len(rounds) - 1] = later
        return _PartWalk(ends, later, left, rounds, paces)

    def _keep_pace(self, ends: list[int], durations: Sequence[int], later: list[int], left: int) -> int:
        """Return for how many further rounds, ``left`` at most, what each series of the last round waits for ends early
        enough."""
        before, each = self.before, self.each
        shift = len(ends) - before - 3 * each
        for at, (some, duration) in enumerate(self._inner):
            start = ends[at - each] - durations[duration]
            for one in some:
                nearer = later[(one - before) % each] - later[at]
                if start - ends[one + shift] < left * nearer:
                    left = (start - ends[one + shift]) // nearer
        return left


def _straight(
    waits: Sequence[tuple[int, ...]], takes: Sequence[int], many: int, given: int
) -> Callable[[Sequence[int], Sequence[int]], list[int]]:
    """Return what tells ends from those before them, and from durations: compiled, a line each, it takes a third.

    Parameters
    ----------
    waits : sequence of tuple of int
        What each waits for, by number: those that are given, then these.
    takes : sequence of int
        Which of the durations each takes.
    many, given : int
        How many durations there are, and how many ends are given.
    """
    starts: dict[tuple[int, ...], str] = {(): "0"} | {(one,): f"e{one}" for one in range(given + len(waits))}
    lines = [
        f"[{', '.join([f'{name}{at}' for at in range(count)])}] = {what}"
        for what, name, count in (("ends", "e", given), ("durations", "d", many))
    ]
    for at, (some, take) in enumerate(zip(waits, takes, strict=True), given):
        if some not in starts:
            starts[some] = f"s{at}"
            names = [f"e{one}" for one in some]
            longest = "{0} if {0} > {1} else {1}" if len(some) == 2 else f"max({', '.join(names)})"
            lines.append(f"s{at} = {longest.format(*names)}")
        lines.append(f"e{at} = {starts[some]} + d{take}")
    told = ", ".join([f"e{at}" for at in range(given, given + len(waits))])
    made: dict[str, Any] = {}
    exec("\n ".join(["def walk(ends, durations):", *lines, f"return [{told}]"]), made)
    found: Callable[[Sequence[int], Sequence[int]], list[int]] = made["walk"]
    return found


def _shown(waits: Waits, rounds: Rounds) -> tuple[Waits, dict[int, int]]:
    """Return what instances wait for where there are only so many rounds that show all, and where each one is then."""
    less = (rounds.number - SHOWN) * rounds.length
    place = {at: at for at in range(rounds.start(SHOWN - 1))}
    place |= {at: at - less for at in range(rounds.start(rounds.number - 1), len(waits))}
    behind = waits[rounds.start(rounds.number) :]
    return waits[: rounds.start(SHOWN)] + [tuple([place[one] for one in some]) for some in behind], place


def _reduced(waits: Waits) -> Waits:
    """Return what each instance waits for but for that which another one of these has waited for."""
    earlier: list[int] = []
    found: Waits = []
    for some in waits:
        implied = 0
        for one in some:
            implied |= earlier[one]
        found.append(tuple([one for one in some if not implied >> one & 1]))
        earlier.append(implied | sum([1 << one for one in some]))
    return found


def _series(waits: Waits, exits: Collection[int], rounds: Rounds) -> list[int]:
    """Return the series of each instance, in order of their first ones; all rounds are cut into series alike."""
    begin, stop, length = rounds.first, rounds.start(SHOWN), rounds.length
    waited = Counter([one for some in waits for one in some])

    def follows(at: int, some: tuple[int, ...]) -> bool:
        """Whether an instance starts when another one of its part ends, for which nobody else waits."""
        if len(some) != 1 or waited[some[0]] != 1 or some[0] in exits:
            return False
        if begin <= at < stop:
            return some[0] >= at - (at - begin) % length
        return some[0] >= stop or at < begin

    joins = [follows(at, some) for at, some in enumerate(waits)]
    for place in range(begin, begin + length):
        joins[place:stop:length] = [all(joins[place:stop:length])] * SHOWN
    found: list[int] = []
    begun = -1
    for at, some in enumerate(waits):
        begun += not joins[at]
        found.append(found[some[0]] if joins[at] else begun)
    return found


def _turns(waits: Waits, rounds: Sequence[int], number: int) -> tuple[Int64Array, Int64Array] | None:
    """Return where series take turns and how often, where all of one turn wait for all of the turn before.

    So do replicas that meet at every exchange: each turn lasts as long as its longest series.

    Parameters
    ----------
    waits : list of tuple of int
        What each series waits for, with the rounds that show all.
    rounds : sequence of int
        Where each of these begins, and where the last one ends.
    number : int
        How many there are.

    Returns
    -------
    (firsts, times) or None
        The first series of each turn where one round stands for all, and in how many rounds it is.
    """
    firsts, last = [0], waits[0]
    for at, some in enumerate(waits):
        if some == last:
            continue
        if some != tuple(range(firsts[-1], at)):
            return None
        firsts.append(at)
        last = some
    begin, end, each = rounds[0], rounds[-1], rounds[1] - rounds[0]
    alike = [[one - start for one in firsts if start <= one < start + each] for start in rounds[:-1]]
    if each and not all(some and some == alike[0] and some[0] == 0 for some in alike):
        return None
    if end < len(waits) and end not in firsts:
        return None
    kept = [one if one < end else one - end + begin + each for one in firsts if one < begin + each or one >= end]
    return np.array(kept), np.array([number if begin <= one < begin + each else 1 for one in kept])


def series_walk(template: PassTemplate) -> SeriesWalk:
    """Return the walk of a template, made once."""
    found: SeriesWalk | None = template.made.get(SeriesWalk)
    if found is None:
        found = template.made[SeriesWalk] = SeriesWalk(template.walk, template.exits, template.num_classes)
    return found


def paths_of(template: PassTemplate) -> tuple[Int64Array, Int64Array] | None:
    """Return the cost classes of each path, int64 of shape (paths, classes), of a pass in which none meets another one,
    and those up to each of its exits, int64 of shape (exits, classes).

    None where instances of several paths wait for one another: then the longest path depends on more than their sums.
    """
    paths: list[int] = []
    waited: set[int] = set()
    number = 0
    for some in _reduced(template.walk.whole.waits):
        if len(some) > 1 or not waited.isdisjoint(some):
            return None
        waited.update(some)
        paths.append(paths[some[0]] if some else number)
        number += not some
    of, classes = np.array(paths, np.int64), template.instance_class
    counts: Int64Array = np.zeros((number, template.num_classes), np.int64)
    np.add.at(counts, (of, classes), 1)
    leaving: Int64Array = np.zeros((len(template.exits), template.num_classes), np.int64)
    for found, last in zip(leaving, template.exits, strict=True):
        if last >= 0:
            np.add.at(found, classes[: last + 1][of[: last + 1] == of[last]], 1)
    return counts, leaving
