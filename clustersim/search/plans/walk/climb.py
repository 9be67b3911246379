"""A plan at ever higher rates until it fails, and between: screened by its first run, or taken up to its capacity."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from clustersim.search.plans.grid import SLOWEST, rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.walk.reached import Reached, near
from clustersim.search.point import Row
from clustersim.search.queue import may_be_borne

_FAR: Final = 700
"""Steps below its first rate: a thousandth. Who fails there is not tried any lower."""
_UP: Final = 6
"""Steps by which a plan goes up from the rate of its first run, doubled each time."""
_LOWER: Final = 48
"""Steps by which it goes down at most: runs at rates that are far too low last longest."""


def climb(one: Standing, reached: Reached, share: float) -> Generator[int, Row, None]:
    """Yield the steps at which a plan is tried, and take what came of each; last say what became of it."""
    first = reached.first(one)
    screening, up, down = reached.least > 0.0 and not reached.exhaustive, _UP, near(one)
    step = max(reached.start(one), SLOWEST)
    while True:
        row = yield step
        if row["failed"] is not None:
            one.fate, one.why, one.row = "failed", row["failed"], row
            return
        if may_be_borne(row, share):
            one.passed, one.row = step, row
            one.passing[step] = row
        else:
            one.failed = step
            one.row = one.row or row
            if one.passed is None and screening and step <= max(first, reached.first(one)):  # others go on, too
                alone = row["numbers"].get("alone")
                who = f"its {alone} by itself " if alone else ""
                one.fate, one.why, one.row = "screened", f"{who}fails at {rate_of(step):g}/s", row
                return
        if one.passed is None and (step < first - _FAR or step <= SLOWEST):
            one.fate, one.why = "screened", f"fails at {rate_of(step):g}/s"
            return
        if one.passed is None:
            step = max(first if screening else step - down, step - down, SLOWEST)
            down = min(2 * down, _LOWER)
        elif one.failing is None:
            step, up = step + up, 2 * up
        else:
            high = one.failing
            if high - one.passed <= one.apart:
                one.fate = "simulated"
                return
            middle = (one.passed + high) // 2
            step, up = (middle, up) if one.failed is not None else (min(middle, one.passed + up), 2 * up)
