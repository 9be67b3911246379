"""The best plans once more, at length: short runs end before queues have grown, and a seed may be lucky."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Final

from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.point import Row
from clustersim.values import dataclass

SEEDS: Final = 3
REQUESTS: Final = 1000
"""Of each replica, at least."""
TIES: Final = 0.03
"""Plans that differ by less are alike: as much as a seed changes."""
KEPT: Final = 3
"""Plans that are looked for: the best ones."""
_FARTHEST: Final = 1024
"""Steps of the grid down from a capacity: of what fails there none is left."""
_HIGHEST: Final = 8
"""Steps up at a time: a sixth above a capacity in all."""

Long = Callable[[Sequence[tuple[Standing, int, int]]], list[Row]]
"""Simulates plans at length, each at a step of the grid and with so much added to the seed."""


@dataclass(slots=True, kw_only=True)
class Finalist:
    """A plan at length.

    Parameters
    ----------
    standing : Standing
    step : int or None
        Highest step around its capacity at which the mean share over seeds is reached; None where none is.
    shares : list of float
        With each seed, there.
    row : Row or None
        Of the first seed, there.
    """

    standing: Standing
    step: int | None
    shares: list[float]
    row: Row | None

    @property
    def capacity(self) -> float:
        """Requests per second."""
        return 0.0 if self.step is None else rate_of(self.step)


def at_length(chosen: Sequence[Standing], run: Long, *, seeds: int, share: float) -> list[Finalist]:
    """Simulate plans at length: at their capacities, and on up or down to the highest rates at which the mean does."""
    found = [Finalist(standing=one, step=None, shares=[], row=None) for one in chosen]
    searches = {id(one): _search(one, share, is_known=seeds == 1) for one in found}
    going = [(one, next(searches[id(one)])) for one in found]
    while going:
        rows = run([(one.standing, step, seed) for one, step in going for seed in range(seeds)])
        left = []
        for place, (one, _) in enumerate(going):
            try:
                left.append((one, searches[id(one)].send(rows[place * seeds : (place + 1) * seeds])))
            except StopIteration:
                continue
        going = left
    return found


def _search(one: Finalist, share: float, *, is_known: bool) -> Generator[int, list[Row], None]:
    """Yield steps from a capacity on, up or down and ever farther apart, then between; note the highest that does.

    With one seed it is known from which step on a plan fails, or at which it is proven to.
    """
    assert one.standing.passed is not None
    step, high, far = one.standing.passed, one.standing.failing if is_known else None, 1
    while True:
        rows = yield step
        shares = [float(row["numbers"].get("goodput.share", 0.0)) for row in rows]
        if math.fsum(shares) / len(shares) >= share:
            one.step, one.shares, one.row = step, shares, rows[0]
        else:
            high = step
        if one.step is None:
            if far > _FARTHEST:
                return
            step, far = step - far, 2 * far
        elif high is None:
            if far > _HIGHEST:
                return
            step, far = step + far, 2 * far
        elif high - one.step <= one.standing.apart:
            return
        else:
            step = (one.step + high) // 2
