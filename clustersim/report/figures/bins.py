"""Long series made short: what a step function or a table of intervals was in each bin of time.

A figure has some 1,000 pixels; a long run has millions of steps. Each bin keeps minimum, time-weighted mean
and maximum, so nothing that happened disappears: a spike of one step stays as the maximum of its bin. Where bins have
many values, extremes are alike in all of them; a band of percentiles says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.column import by_parts, parts
from clustersim.memory import let_go
from clustersim.values import dataclass

MANY: Final = 40
"""Values in a bin, on average, above which a band leaves out the lowest and the highest."""
LEFT_OUT: Final = 0.05
"""Share of the weight that such a band leaves out on either side."""
_LEVELS: Final = 256
_SHARES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """A value over time: ``value[i]`` holds from ``start_ns[i]`` to the next one, the last to ``end_ns``."""

    start_ns: Int64Array
    value: FloatArray
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Binned:
    """Minimum, mean and maximum per bin; ``edges_ns`` has one element more. NaN where a bin has no value.

    ``lower`` and ``upper`` bound the band that is drawn: the extremes, or where there are many values the percentiles
    5 and 95, to 1/256 of the range of all values.
    """

    edges_ns: Int64Array
    low: FloatArray
    mean: FloatArray
    high: FloatArray
    lower: FloatArray
    upper: FloatArray

    def scaled(self, factor: float) -> Binned:
        """Return all values times a factor above 0."""
        values = {name: getattr(self, name) * factor for name in ("low", "mean", "high", "lower", "upper")}
        return Binned(edges_ns=self.edges_ns, **values)


def time_edges(start_ns: int, end_ns: int, bins: int) -> Int64Array:
    """Return up to ``bins + 1`` increasing edges from ``start_ns`` to ``end_ns`` (at least 1 ns apart)."""
    bins = int(max(1, min(bins, end_ns - start_ns)))
    width, rest = divmod(max(end_ns - start_ns, 1), bins)  # by parts: index × (end − start) need not fit int64
    index = np.arange(bins + 1, dtype=np.int64)
    return start_ns + index * width + (index * rest) // bins


def bin_intervals(
    start_ns: Int64Array,
    end_ns: Int64Array,
    value: npt.NDArray[Any],
    edges_ns: Int64Array,
    steps: Int64Array | None = None,
) -> Binned:
    """Bin values that hold over intervals, which may overlap each other and span several bins.

    Parameters
    ----------
    start_ns, end_ns : int64 arrays
        The intervals ``[start, end)``; empty ones count for minimum and maximum only.
    value : array
        One value per interval.
    edges_ns : int64 array
        Increasing edges of the bins; what lies outside is left out.
    steps : int64 array, optional
        How many steps of equal length each interval is: then the mean weighs these alike, and not nanoseconds. A step
        is shared among bins in proportion, to 1/1,048,576 of it, so that sums are exact: whether steps are intervals of
        their own or several are one makes no difference, as long as all of these lie within a bin.
    """
    bins, value = len(edges_ns) - 1, np.asarray(value)
    low, high, many = np.full(bins, np.inf), np.full(bins, -np.inf), 0
    total, weighted = np.zeros(bins), np.zeros(bins)
    told = start_ns, end_ns, value, edges_ns, None if steps is None else np.asarray(steps)
    span = _Span()
    for some in parts(len(start_ns), 4):
        span.take(value[some][(end_ns[some] > edges_ns[0]) & (start_ns[some] < edges_ns[-1])])
    let_go()
    levels = _Levels(bins, span) if span.many > MANY * bins else None
    for pairs in _pairs(*told):
        many += pairs.many
        if levels is not None:
            levels.add(pairs)
        opens = np.flatnonzero(np.append(True, pairs.bin[1:] != pairs.bin[:-1]))  # the pairs of a bin, part by part
        np.minimum.at(low, pairs.bin[opens], np.minimum.reduceat(pairs.held, opens))
        np.maximum.at(high, pairs.bin[opens], np.maximum.reduceat(pairs.held, opens))
        np.add.at(total, pairs.bin, pairs.weight)  # one after the other, so that parts change no rounding
        np.add.at(weighted, pairs.bin, pairs.weight * pairs.held)
    mean = np.divide(weighted, total, out=np.full(bins, np.nan), where=total > 0)
    empty = np.isinf(low)
    lower, upper = (np.where(empty, np.nan, bound) for bound in (low, high))
    if many > MANY * bins:
        if levels is None:  # few intervals of many steps
            levels = _Levels(bins, span)
            for pairs in _pairs(*told):
                levels.add(pairs)
        lower, upper = levels.band(low, high)
    low[empty] = high[empty] = np.nan
    return Binned(edges_ns=edges_ns, low=low, mean=mean, high=high, lower=lower, upper=upper)


class _Pairs(NamedTuple):
    """Some pairs of an interval and a bin that it touches: the bin, the weight and the value, and for how many."""

    bin: Int64Array
    weight: FloatArray
    held: FloatArray
    many: int


def _pairs(
    start_ns: Int64Array,
    end_ns: Int64Array,
    value: npt.NDArray[Any],
    edges_ns: Int64Array,
    steps: Int64Array | None,
) -> Iterator[_Pairs]:
    """Yield pairs, in order of their intervals, a bounded number of intervals at a time."""
    bins = len(edges_ns) - 1
    for some in parts(len(start_ns), 4):
        inside = (end_ns[some] > edges_ns[0]) & (start_ns[some] < edges_ns[-1])
        starts, ends = start_ns[some][inside], end_ns[some][inside]
        first = np.clip(_edges_before(edges_ns, starts, "right") - 1, 0, bins - 1)
        last = np.clip(_edges_before(edges_ns, ends, "left") - 1, first, bins - 1)
        count = last - first + 1
        if not len(count):
            continue
        row = np.repeat(np.arange(len(starts)), count)  # a pair for every bin that an interval touches
        bin_of = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
        overlap = np.minimum(ends[row], edges_ns[bin_of + 1]) - np.maximum(starts[row], edges_ns[bin_of])
        weight, many = np.maximum(overlap, 0).astype(np.float64), len(row)
        if steps is not None:
            within = steps[some][inside][row]
            whole = (ends - starts)[row].astype(np.float64)
            share = np.divide(weight, whole, out=np.zeros(len(row)), where=whole > 0)
            weight = np.rint(share * within * _SHARES) / _SHARES
            many = int(np.where(overlap == (ends - starts)[row], within, 1).sum())
        yield _Pairs(bin_of, weight, value[some][inside].astype(np.float64)[row], many)


def _edges_before(edges_ns: Int64Array, instants: Int64Array, side: Literal["left", "right"]) -> Int64Array:
    """Return how many edges are before each instant (with ``right``, or at it), as ``numpy.searchsorted`` does.

    Where the instants are in order, the few edges are looked for among them.
    """
    if (instants[1:] < instants[:-1]).any():
        return np.searchsorted(edges_ns, instants, side=side)
    cuts = np.searchsorted(instants, edges_ns, side="left" if side == "right" else "right")
    return np.repeat(np.arange(len(edges_ns) + 1), np.diff(cuts, prepend=0, append=len(instants)))


class _Span:
    """How many values there are, and the least and the most of them."""

    def __init__(self) -> None:
        self.many, self.least, self.most = 0, np.inf, -np.inf

    def take(self, values: npt.NDArray[Any]) -> None:
        """Take some of them."""
        if len(values):
            self.many += len(values)
            self.least = min(self.least, float(values.min()))
            self.most = max(self.most, float(values.max()))


def weights_between(
    edges: npt.NDArray[Any], values: npt.NDArray[Any], weights: npt.NDArray[Any] | None = None
) -> FloatArray:
    """Return how many values are in each bin, or what they weigh, as ``numpy.histogram``, which sorts them.

    Parameters
    ----------
    edges : array
        They ascend, and no value is outside.
    values : array
    weights : integer array, optional
        1 each without it.
    """
    found = np.zeros(len(edges) - 1)
    for some in parts(len(values), 8):
        at = np.minimum(np.searchsorted(edges, values[some], side="right") - 1, len(found) - 1)
        found += np.bincount(at, None if weights is None else weights[some], len(found))
    return found


class _Levels:
    """The weight of each level of the range of values, bin by bin."""

    def __init__(self, bins: int, span: _Span) -> None:
        self._least = span.least
        self._span = (span.most - span.least) or 1.0
        self._share = np.zeros(bins * _LEVELS)

    def add(self, pairs: _Pairs) -> None:
        """Add some pairs."""
        level = np.minimum(((pairs.held - self._least) / self._span * _LEVELS).astype(np.int64), _LEVELS - 1)
        np.add.at(self._share, pairs.bin * _LEVELS + level, pairs.weight)

    def band(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the weighted percentiles 5 and 95 of each bin, to a level; the extremes without weight."""
        share = self._share.reshape(-1, _LEVELS).cumsum(axis=1)
        total = share[:, -1:]
        first = np.argmax(share > LEFT_OUT * total, axis=1)
        last = np.argmax(share >= (1 - LEFT_OUT) * total, axis=1) + 1
        low, high = (np.where(np.isinf(bound), np.nan, bound) for bound in (low, high))
        some = total[:, 0] > 0
        lower, upper = (np.clip(self._least + at * self._span / _LEVELS, low, high) for at in (first, last))
        return np.where(some, lower, low), np.where(some, upper, high)


def bin_function(function: StepFunction, edges_ns: Int64Array) -> Binned:
    """Bin a step function; before its first and after its last instant it has no value."""
    start, value = function.start_ns, function.value
    if len(start) and start[-1] == function.end_ns:  # as those of gauges do: what it comes to in the end lasts no time
        start, value = start[:-1], value[:-1]
    end = np.full(1, function.end_ns)

    def until(some: slice) -> Int64Array:
        after = function.start_ns[some.stop : some.stop + 1]
        return np.append(start[some][1:], after if len(after) else end)

    ends: Int64Array = by_parts("int64", len(start), until)
    lasting = ends > start
    if not lasting.all():
        start, value, ends = start[lasting], value[lasting], ends[lasting]
    return bin_intervals(start, ends, value, edges_ns)
