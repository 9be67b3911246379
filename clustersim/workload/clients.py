"""What clients are like: how urgent each request is, and how long each waits for its answer before it gives up."""

from __future__ import annotations

from typing import Literal

import numpy as np

from clustersim.clock import Int64Array, to_ns
from clustersim.values import dataclass

NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Priorities:
    """One of the values, in proportion to the weights (all alike without); lower numbers go first."""

    values: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Return a priority for each request."""
        weights = np.ones(len(self.values)) if self.weights is None else np.array(self.weights, np.float64)
        weights = np.ldexp(weights, -int(np.frexp(weights.max())[1]))  # in proportion: their sum can't overflow
        places = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(count), side="right")
        found: Int64Array = np.array(self.values, np.int64)[np.minimum(places, len(self.values) - 1)]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """A share of the clients gives up some time after the arrival; the others never do.

    Parameters
    ----------
    share : float
        In (0, 1].
    kind : str
        ``fixed`` (after ``low_s``), ``uniform`` (``low_s`` to ``high_s``) or ``exponential`` (mean ``low_s``).
    low_s, high_s : float
    """

    share: float
    kind: Literal["fixed", "uniform", "exponential"]
    low_s: float
    high_s: float = 0.0

    def draw_ns(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Return for each request after how many ns its client gives it up, −1 for never.

        Each request takes two numbers of the stream, so that more requests are the same ones with others after them.
        """
        gives_up, chance = rng.random((count, 2)).T
        if self.kind == "uniform":
            seconds = self.low_s + (self.high_s - self.low_s) * chance
        elif self.kind == "exponential":
            seconds = -self.low_s * np.log1p(-chance)
        else:
            seconds = np.full(count, self.low_s)
        times = np.array([to_ns(value) for value in seconds.tolist()], np.int64)
        found: Int64Array = np.where(gives_up < self.share, times, NEVER)
        return found
