"""The front of a search: tokens per second of a device against those of a user.

Every run counts that met its share, also at rates below a plan's capacity. A user's tokens per second are those of the
mean over all tokens: 1 over the mean time between two of a request (ITL), each token counted once. That is the TPOT of
which something is proven at a throughput (:mod:`~clustersim.search.plans.bounds.token_rates`); a median is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from clustersim.clock import FloatArray
from clustersim.search.plans.outcome import Standing
from clustersim.search.point import Row
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """A run that met its share.

    Parameters
    ----------
    standing : Standing
    step : int
        Of the grid of rates.
    row : Row
    """

    standing: Standing
    step: int
    row: Row

    @property
    def per_device(self) -> float:
        """Output tokens per second and device."""
        return float(self.row["numbers"].get("throughput.output_tokens_per_s", 0.0)) / self.standing.row_devices

    @property
    def user_rate(self) -> float:
        """Tokens per second that a user gets, in the mean over tokens."""
        gap = self.row["numbers"].get("itl_ms.mean")
        return 1e3 / float(gap) if gap else 0.0

    @property
    def requests(self) -> int:
        """Requests that were simulated."""
        return int(self.row["numbers"].get("requests.arrived", 0))

    @property
    def both(self) -> tuple[float, float]:
        """What it is on the front for."""
        return self.per_device, self.user_rate


def points_of(standings: Iterable[Standing]) -> list[Point]:
    """Return every run that met its share."""
    return [Point(standing=one, step=step, row=row) for one in standings for step, row in one.passing.items()]


def at_capacity(one: Standing) -> Point | None:
    """Return the run of a plan at the highest rate at which it met its share."""
    return None if one.passed is None or one.row is None else Point(standing=one, step=one.passed, row=one.row)


def front_of(points: Sequence[Point]) -> list[Point]:
    """Return the runs that none beats in both, most tokens of a device first."""
    found: list[Point] = []
    for one in sorted(points, key=lambda one: one.both, reverse=True):
        if not found or one.user_rate > found[-1].user_rate:
            found.append(one)
    return found


class Hypervolume:
    """The area below a front, from no tokens on: tokens/s of a device times tokens/s of a user.

    Of two searches of one scenario the one with the larger area found the better front (hypervolume: Zitzler and
    Thiele, PPSN 1998).

    Parameters
    ----------
    points : sequence of (float, float)
        Tokens per second of a device, and of a user.

    Attributes
    ----------
    corners : list of (float, float)
        Those that none beats in both.
    size : float
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        self.corners: list[tuple[float, float]] = []
        for one in sorted(points, reverse=True):
            if one[1] > (self.corners[-1][1] if self.corners else 0.0):
                self.corners.append(one)
        self._high, self._right = np.array(self.corners).reshape(-1, 2).T
        self._left = np.concatenate([[0.0], self._right])[:-1]
        self.size = float((self._high * (self._right - self._left)).sum())

    def gains(self, high: FloatArray, right: FloatArray) -> FloatArray:
        """Return what each of some points would add by itself; arrays of shape (n,)."""
        wide = np.maximum(np.minimum(right[:, None], self._right) - self._left, 0.0)
        beyond = np.maximum(right - (self._right[-1] if len(self._right) else 0.0), 0.0)
        found: FloatArray = (wide * np.maximum(high[:, None] - self._high, 0.0)).sum(axis=1) + beyond * high
        return found
