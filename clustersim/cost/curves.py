"""Measured over predicted along two logarithmic axes: curves, and what lies between and beyond them.

The axes are exponent + 2 · mantissa of a float (a logarithm that is straight within an octave): exact arithmetic, so
arrays and plain numbers give the same bits on any machine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from math import frexp
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray
from clustersim.values import dataclass

_LEAST: Final = 2.0**-60
_CURVE: Final = 4096.0  # more than any octave: places one curve behind another in a sorted array
_ROOM: Final = 1e-6  # of an octave: rounding of a derived axis does not count as outside


def octaves(values: npt.ArrayLike) -> FloatArray:
    """Return a logarithm to base 2 that is exact at powers of 2 and straight between them.

    >>> octaves([1.0, 2.0, 3.0, 4.0])
    array([0. , 1. , 1.5, 2. ])
    """
    mantissa, exponent = np.frexp(np.maximum(np.asarray(values, dtype=np.float64), _LEAST))
    return np.asarray(exponent - 2.0 + 2.0 * mantissa, dtype=np.float64)


def octave(value: float) -> float:
    """Return :func:`octaves` of one number, to the same bit."""
    mantissa, exponent = math.frexp(value if value > _LEAST else _LEAST)
    return exponent - 2.0 + 2.0 * mantissa


Ratio = Callable[[float], float]
"""inner axis → measured / roofline"""
Ratios = Callable[[float], Ratio]
"""outer axis → the ratios along it"""


@dataclass(frozen=True, slots=True)
class Curves:
    """Points of equal fixed keys as curves: ``ratio`` over ``inner`` for each value of ``outer``, sorted.

    Parameters
    ----------
    outer : ndarray
        Of each curve.
    starts : ndarray
        First point of each curve, and behind the last one.
    place : ndarray
        ``inner`` of each point, those of one curve behind those of another.
    inner, ratio : ndarray
        Of each point.
    """

    outer: FloatArray
    starts: npt.NDArray[np.intp]
    place: FloatArray
    inner: FloatArray
    ratio: FloatArray

    def ratios(self, outer: FloatArray, inner: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Return measured / roofline at points of the axes, and whether they lie outside the curves."""
        above = np.clip(np.searchsorted(self.outer, outer), 1, max(1, len(self.outer) - 1))
        below, above = above - 1, np.minimum(above, len(self.outer) - 1)
        first, outside_first = self._along(below, inner)
        second, outside_second = self._along(above, inner)
        share = _share(self.outer[below], self.outer[above], outer)
        outside = (outer < self.outer[0] - _ROOM) | (outer > self.outer[-1] + _ROOM)
        outside |= ((share < 1.0) & outside_first) | ((share > 0.0) & outside_second)
        return first + share * (second - first), outside

    def plain(self, outside: Callable[[], None], *, known: bool = True) -> Ratios:
        """Return :meth:`ratios` in plain numbers, to the same bits: along one value of the outer axis after another.

        Parameters
        ----------
        outside : callable
            Called for each ratio that lies outside the curves.
        known : bool
            Whether the curves are those of the fixed keys that are asked for; else all lies outside.
        """
        outers, curves = self.outer.tolist(), [self._curve(number) for number in range(len(self.outer))]

        def along(outer: float) -> Ratio:
            here = octave(outer)
            above = min(max(bisect_left(outers, here), 1), max(1, len(outers) - 1))
            below, above = above - 1, min(above, len(outers) - 1)
            share = _one_share(outers[below], outers[above], here)
            off = not known or here < outers[0] - _ROOM or here > outers[-1] + _ROOM
            (first, *first_ends), (second, *second_ends) = curves[below], curves[above]
            ends = [first_ends] * (share < 1.0) + [second_ends] * (share > 0.0)
            least = math.inf if off else max(each[0] for each in ends)
            most = min(each[1] for each in ends)

            def ratio(inner: float) -> float:
                mantissa, exponent = frexp(inner if inner > _LEAST else _LEAST)
                at = exponent - 2.0 + 2.0 * mantissa
                if not least <= at <= most:
                    outside()
                low = first(at)
                return low + share * (second(at) - low) if share else low

            return ratio

        return along

    def _curve(self, number: int) -> tuple[Ratio, float, float]:
        """Return the ratio by the octave of the inner axis along a curve, and the octaves of its ends."""
        first, last = int(self.starts[number]), int(self.starts[number + 1]) - 1
        places, inners, ratios = (_floats(each[first : last + 1]) for each in (self.place, self.inner, self.ratio))
        behind, last = number * _CURVE, last - first
        ends = inners[0] - _ROOM, inners[last] + _ROOM
        if not last:
            return (lambda at: ratios[0], *ends)

        def ratio(at: float) -> float:
            above = bisect_left(places, behind + at, 1, last)
            low, high, before = inners[above - 1], inners[above], ratios[above - 1]
            if at <= low or high <= low:
                return before + 0.0 * (ratios[above] - before)
            share = (at - low) / (high - low) if at < high else 1.0
            return before + share * (ratios[above] - before)

        return (ratio, *ends)

    def _along(self, curve: Any, inner: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        first, last = self.starts[curve], self.starts[curve + 1] - 1
        above = np.searchsorted(self.place, curve * _CURVE + inner)
        above = np.minimum(np.maximum(above, first + 1), last)
        below = np.maximum(above - 1, first)
        share = _share(self.inner[below], self.inner[above], inner)
        outside = (inner < self.inner[first] - _ROOM) | (inner > self.inner[last] + _ROOM)
        return self.ratio[below] + share * (self.ratio[above] - self.ratio[below]), outside


def curves_of(rows: list[tuple[float, float, float]]) -> Curves:
    """Build the curves of a group; of measurements at one point the mean ratio counts."""
    merged: dict[tuple[float, float], list[float]] = {}
    for outer, inner, ratio in sorted(rows):
        merged.setdefault((outer, inner), []).append(ratio)
    places = list(merged)
    outers = list(dict.fromkeys(outer for outer, _ in places))
    curve = np.array([outers.index(outer) for outer, _ in places])
    inners = np.array([inner for _, inner in places])
    return Curves(
        outer=np.array(outers),
        starts=np.searchsorted(curve, np.arange(len(outers) + 1)),
        place=curve * _CURVE + inners,
        inner=inners,
        ratio=np.array([math.fsum(merged[place]) / len(merged[place]) for place in places]),
    )


def _floats(values: FloatArray) -> list[float]:
    found: list[float] = values.tolist()
    return found


def _one_share(low: float, high: float, value: float) -> float:
    """Return :func:`_share` of one number."""
    if value <= low or high <= low:
        return 0.0
    return (value - low) / (high - low) if value < high else 1.0


def _share(low: FloatArray, high: FloatArray, value: FloatArray) -> FloatArray:
    """Return how far ``value`` lies from low to high, from 0 to 1; 0 where they are the same."""
    width = np.where(high > low, high - low, 1.0)
    return np.asarray(np.clip((value - low) / width, 0.0, 1.0) * (high > low))
