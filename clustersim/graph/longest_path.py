"""How long a pass takes: the longest path through what is left of it when it has been made small.

What a series of instances takes is a sum of durations by class, a *term*; series of one term that wait for the same
ones end together, and one stands for all. So a pass is a table of terms and one loop over series, the same for a chain
(one series) and for passes whose operators overlap. The loop is of the subset that ``clustersim.compiled`` has, and
is compiled where many passes are walked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.compiled import Arrays, Objects, Storage, compiled, is_loaded
from clustersim.graph.shrink import Series, Stretch, Waits, contracted, cut, inside, latest_ends

MANY: Final = 10_000_000
"""Series that are walked one by one before it is worth to compile that (2 s, measured)."""
FEW: Final = 32
"""Series that are walked as fast as they are handed to what is compiled."""
TRIED: Final = 8
"""How many lengths of a period are tried: a model may repeat several kinds of layer in turns."""
FEW_PERIODS: Final = 3
"""Periods that are walked one by one."""


FIRST, STOP, BEGINS, LENGTH, PERIODS, TIMES, WIDTH = range(7)
"""Columns of a stretch, and how many these are: its first series and that behind it, where equal periods begin (layers
for instance), how many series each has and how many there are, 0 for none; how often the stretch is there."""


class Path(NamedTuple):
    """Series, stretch by stretch; of several passes one behind the other."""

    stretches: Any
    """Row behind row of these columns."""
    series: Any
    """The term that each series takes."""
    waits_first: Any
    """Where in ``waits`` those of each series begin, and where the last ones end."""
    waits: Any
    """Series that others wait for."""


def walk(path: Path, begin: int, stop_at: int, terms: Any, ends: Any) -> int:
    """Return when a pass of these stretches ends; ``ends`` takes when series do, from the start of their stretch.

    Series of a period wait for those of their own and of the one before alone. So where all of one end later by one
    constant than in the one before, all further ones do (what is a maximum of ends is later by c where all of these
    are), and only the last one is needed: what comes behind waits for no other.
    """
    total = 0
    for place in range(begin, stop_at):
        row = place * WIDTH
        at, stop, latest = path.stretches[row + FIRST], path.stretches[row + STOP], 0
        length, left = path.stretches[row + LENGTH], path.stretches[row + PERIODS]
        mark = path.stretches[row + BEGINS] + length if left > 0 else -1
        while at < stop:
            start = 0
            for one in range(path.waits_first[at], path.waits_first[at + 1]):
                end = ends[path.waits[one]]
                if end > start:  # noqa: PLR1730  # max() takes twice as long
                    start = end
            end = start + terms[path.series[at]]
            ends[at] = end
            if end > latest:  # noqa: PLR1730
                latest = end
            at += 1
            if at == mark:
                left -= 1
                mark = at + length if left > 0 else -1
                if left > 0 and left + 1 < path.stretches[row + PERIODS]:
                    later, one = end - ends[at - 1 - length], at - length
                    while one < at and ends[one] - ends[one - length] == later:
                        one += 1
                    if one == at:
                        last = at + (left - 1) * length
                        for one in range(length):
                            end = ends[at - length + one] + left * later
                            ends[last + one] = end
                            if end > latest:  # noqa: PLR1730
                                latest = end
                        at, mark = last + length, -1
        total += path.stretches[row + TIMES] * latest
    return total


def follow(path: Path, ends: Any, counts: Any) -> None:
    """Count how often each term is on the longest path of a pass that was walked, the first of those that end together.

    Parameters
    ----------
    path : Path
    ends : list of int
        As :func:`walk` leaves them.
    counts : list of int
        By term.
    """
    for row in range(0, len(path.stretches), WIDTH):
        at, times = path.stretches[row + FIRST], path.stretches[row + TIMES]
        for one in range(at, path.stretches[row + STOP]):
            if ends[one] > ends[at]:
                at = one
        counts[path.series[at]] += times
        while path.waits_first[at] < path.waits_first[at + 1]:
            first, stop = path.waits_first[at], path.waits_first[at + 1]
            at = path.waits[first]
            for one in range(first + 1, stop):
                if ends[path.waits[one]] > ends[at]:
                    at = path.waits[one]
            counts[path.series[at]] += times


def follow_all(path: Path, terms: Any, passes: int, num_terms: int, row: Any, ends: Any, counts: Any) -> None:
    """Walk so many passes and do as :func:`follow` for each; ``terms`` and ``counts`` hold one after the other."""
    for one in range(passes):
        for term in range(num_terms):
            row[term] = terms[one * num_terms + term]
        walk(path, 0, len(path.stretches) // WIDTH, row, ends)
        for term in range(num_terms):
            row[term] = 0
        follow(path, ends, row)
        for term in range(num_terms):
            counts[one * num_terms + term] = row[term]


class LongestPath:
    """A pass made small.

    Parameters
    ----------
    waits : sequence of tuple of int
        What each instance waits for: earlier ones, ascending.
    classes : int64 array of shape (instances,)
        Cost class of each instance.
    num_classes : int
    exits : sequence of int
        Instances whose ends are asked for; −1 stands for none.
    kinds : sequence, optional
        What instances of equal stretches must have in common; their classes by default.
    merge : bool
        Whether series that end together are one. :meth:`follow` tells all of equally long paths apart without it.

    Attributes
    ----------
    stretches : list of Stretch
    waits : list of tuple of int
        Series that each series waits for.
    exits : tuple of int
        The series with which each of ``exits`` ends, −1 for none: all are in the last stretch.
    counts : int64 array of shape (terms, classes)
        Instances of each cost class in each term.
    """

    def __init__(
        self,
        waits: Waits,
        classes: Int64Array,
        num_classes: int,
        exits: Sequence[int] = (),
        kinds: Sequence[Hashable] | None = None,
        *,
        merge: bool = True,
    ) -> None:
        of, keep = classes.tolist(), {one for one in exits if one >= 0}
        self.stretches = cut(waits, of if kinds is None else kinds, keep)
        self.waits: list[tuple[int, ...]] = []
        self._all_waits = waits
        self._classes = classes
        self.first = [0]
        self.term: list[int] = []
        terms: dict[tuple[tuple[int, int], ...], int] = {}
        number: dict[int, int] = {}
        for stretch in self.stretches:
            number = self._add(stretch, of, keep, terms, merge=merge)
        self.exits = tuple([number[one] if one >= 0 else -1 for one in exits])
        none = (0, 0, 0)
        each = pairwise(self.first)
        self.periods = [self._periods(first, stop) if merge else none for first, stop in each]
        self.counts: Int64Array = np.zeros((len(terms), num_classes), np.int64)
        for at, term in enumerate(terms):
            for cls, times in term:
                self.counts[at, cls] = times
        self._walked = 0

    def _add(
        self, stretch: Stretch, of: list[int], keep: Collection[int], terms: dict[Any, int], *, merge: bool
    ) -> dict[int, int]:
        """Add the series of a stretch, and return the number of the one that ends with each instance that ends one."""
        first, stop, _ = stretch
        kept = [one - first for one in keep if one >= first]
        members, before = contracted(inside(self._all_waits, first, stop), kept)
        known: dict[Hashable, int] = {}
        numbers: list[int] = []
        for at, (some, waited) in enumerate(zip(members, before, strict=True)):
            told = tuple(sorted(Counter([of[first + one] for one in some]).items()))
            term = terms.setdefault(told, len(terms))
            starts = tuple(sorted({numbers[one] for one in waited}))
            key: Hashable = (term, starts) if merge else at
            if key not in known:
                known[key] = len(self.term)
                self.term.append(term)
                self.waits.append(starts)
            numbers.append(known[key])
        self.first.append(len(self.term))
        return {first + some[-1]: numbers[at] for at, some in enumerate(members)}

    def _periods(self, first: int, stop: int) -> tuple[int, int, int]:
        """Return where equal periods of a stretch begin, how long they are, and how many; zeros where there are none.

        In each the same series is of the same term and waits for the same ones relative to itself, of its period and of
        the one before. What follows waits for none but the last one.
        """
        kinds = [(self.term[at], *[at - one for one in self.waits[at]]) for at in range(first, stop)]
        middle, many = len(kinds) // 2, len(kinds)
        again = (at for at in range(middle + 1, many) if kinds[at] == kinds[middle])
        best = (0, 0, 0)
        for length in (at - middle for at in islice(again, TRIED)):
            begin, end = middle, middle + length
            while begin > 0 and kinds[begin - 1] == kinds[begin - 1 + length]:
                begin -= 1
            while end < many and kinds[end] == kinds[end - length]:
                end += 1
            number = (end - begin) // length
            rest = range(begin + number * length, many)
            second = range(begin + length, min(begin + 2 * length, many))
            early = any(one < first + begin for at in second for one in self.waits[first + at])
            last = first + begin + (number - 1) * length
            own = [one for at in rest for one in self.waits[first + at] if first + begin <= one < last]
            own += [one for one in self.exits if first + begin <= one < last]
            if number > FEW_PERIODS and not early and not own and (number - 2) * length > best[1] * (best[2] - 2):
                best = first + begin, length, number
        return best

    # ---- walks ------------------------------------------------------------------------------------------------------
    def path(self, storage: Storage) -> Path:
        """Return it for functions of the subset."""
        return paths_of([self], storage)

    @cached_property
    def _plain(self) -> tuple[Path, list[int]]:
        return self.path(Objects()), [0] * len(self.term)

    @cached_property
    def _arrays(self) -> tuple[Path, Int64Array]:
        return self.path(Arrays()), np.zeros(len(self.term), np.int64)

    @cached_property
    def _sparse(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """The classes of each term, one term after the other; how often it has each; where each term begins."""
        term, classes = np.nonzero(self.counts)
        return classes, self.counts[term, classes], np.searchsorted(term, np.arange(len(self.counts)))

    def terms(self, by_class: Int64Array) -> Int64Array:
        """Return what each term takes, int64 of shape (…, terms), of durations of shape (…, classes)."""
        classes, times, firsts = self._sparse
        found: Int64Array = np.add.reduceat(by_class.take(classes, -1) * times, firsts, -1)
        return found

    def _is_compiled(self, entry: Callable[..., object], passes: int) -> bool:
        """Whether a loop is compiled that is to go over so many passes more."""
        self._walked += passes * len(self.term)
        return self._walked > MANY or (len(self.term) > FEW and is_loaded(entry))

    def ends(self, terms: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Return when a pass ends whose terms take so long, and when each of :attr:`exits` does, 0 of none."""
        if len(self.term) == 1:
            total = terms[0] * self.stretches[0].times
            return total, tuple([total if one >= 0 else 0 for one in self.exits])
        ends: Sequence[int] | Int64Array
        if self._is_compiled(walk, 1):
            path, ends = self._arrays
            total = int(compiled(walk)(path, 0, len(self.stretches), np.array(terms, np.int64), ends))
        else:
            path, ends = self._plain
            total = walk(path, 0, len(self.stretches), terms, ends)
        if not self.exits or max(self.exits) < 0:
            return total, (0,) * len(self.exits)
        earlier = zip(self.stretches[:-1], self.first[1:-1], strict=True)
        before = sum([one.times * int(ends[stop - 1]) for one, stop in earlier])
        return total, tuple([before + int(ends[one]) if one >= 0 else 0 for one in self.exits])

    def lengths(self, by_class: Int64Array) -> Int64Array:
        """Return how long each of several passes takes, int64 of shape (passes,).

        Parameters
        ----------
        by_class : int64 array of shape (passes, classes)
        """
        terms = self.terms(by_class)
        if len(self.term) == 1:
            return terms[:, 0] * self.stretches[0].times
        if len(terms) == 1:
            return np.array([self.ends(terms[0].tolist())[0]], np.int64)
        took = np.ascontiguousarray(terms.T)[self.term]
        total = np.zeros(len(terms), np.int64)
        ends = latest_ends(self.waits, took)
        for at, stretch in enumerate(self.stretches):
            total += stretch.times * ends[self.first[at] : self.first[at + 1]].max(axis=0)
        return total

    def follow(self, by_class: Int64Array) -> Int64Array:
        """Return how many instances of each class are on the longest path of passes, both of shape (passes, classes).

        Of paths that are equally long it is the one whose instances come first, looked at from the last one.
        """
        terms = self.terms(by_class)
        passes, many = terms.shape
        worth = self._is_compiled(follow_all, 3 * passes)
        path, ends = self._arrays if worth else self._plain
        flat, counts = np.ascontiguousarray(terms).ravel(), np.zeros(terms.size, np.int64)
        row: Any = np.zeros(many, np.int64) if worth else [0] * many
        go: Any = compiled(follow_all) if worth else follow_all
        go(path, flat if worth else flat.tolist(), passes, many, row, ends, counts)
        found = counts.reshape(passes, many).astype(np.float64) @ self.counts.astype(np.float64)
        return found.astype(np.int64)

    @cached_property
    def parts(self) -> list[tuple[Stretch, Series]]:
        """Each stretch and its series, instance by instance."""
        return [(one, Series(inside(self._all_waits, one.first, one.stop))) for one in self.stretches]


def paths_of(passes: Sequence[LongestPath], storage: Storage) -> Path:
    """Return passes for functions of the subset, one behind the other: stretches, series and terms of all."""
    stretches: list[int] = []
    series: list[int] = []
    waits: list[tuple[int, ...]] = []
    terms = 0
    for one in passes:
        base = len(series)
        each = zip(one.stretches, pairwise(one.first), one.periods, strict=True)
        for stretch, (first, stop), (begins, length, periods) in each:
            stretches += [base + first, base + stop, base + begins, length, periods, stretch.times]
        series += [terms + term for term in one.term]
        waits += [tuple([base + earlier for earlier in some]) for some in one.waits]
        terms += len(one.counts)
    flat = np.array([one for some in waits for one in some], np.int64)
    sizes = np.cumsum([0, *map(len, waits)])
    lists = (np.array(stretches, np.int64), np.array(series, np.int64), sizes, flat)
    return Path(*(storage.column(one) for one in lists))
