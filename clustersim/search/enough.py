"""How much of a limit is enough: the least value with which the same requests meet every target, each value replayed.

Nothing is estimated: a value that is told was simulated, and so was the next smaller one, within ``NEAR``, that is too
little. Where targets are missed even without the limit, or there are none, a value is enough that is as good as that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from clustersim.errors import InputError, LimitError
from clustersim.report.why.lifted import METRICS, Enough
from clustersim.scenario.scenario import Scenario
from clustersim.search.lifts import Lift
from clustersim.search.point import Row
from clustersim.search.settings import Setting, setting_of

NEAR: Final = 1.1
"""A value is the least where one that is smaller by this factor, or by 1, is too little."""
MOST_RUNS: Final = 8
"""For one limit."""
Rows = Callable[[Sequence[Sequence[str]]], list[Row]]


class Search:
    """Goes up from a value that is too little, doubling, and cuts what lies between until it is near.

    Parameters
    ----------
    setting : Setting
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._low, self._high = setting.now, 0
        self._row: Row | None = None
        self._runs = 0

    def value(self) -> int | None:
        """Return what is to be tried next; None where there is nothing left to try."""
        low, high = self._low, self._high
        if self._runs >= MOST_RUNS:
            return None
        if not high:
            value = self.setting.first if not self._runs else min(self.setting.most, 2 * low)
            return value if value > low else None
        if self.setting.only_first or high <= max(low + 1, low * NEAR):
            return None
        return min(max(round(math.sqrt(low * high)), low + 1), high - 1)

    def tell(self, value: int, row: Row) -> None:
        """Take what came of a value; one that can't be simulated ends the search."""
        self._runs = MOST_RUNS if row["failed"] else self._runs + 1
        if not row["failed"] and self.setting.is_enough(row):
            self._high, self._row = value, row
        elif not row["failed"]:
            self._low = value

    def found(self) -> Enough | None:
        """Return the least value that was enough; or that the largest one that was tried is too little."""
        row, setting = self._row, self.setting
        if row is None:
            return Enough(words="", falls_short=setting.words(self._low)) if self._low > setting.now else None
        return Enough(
            words=setting.words(self._high),
            changes=tuple(one for one in setting.changes(self._high) if not one.startswith("topology={")),
            metrics={name: row["numbers"].get(name) for name in METRICS},
            falls_short=setting.words(self._low) if self._low > setting.now else "",
        )


def enough_of(
    scenario: Scenario, requests: int, lifts: Mapping[int, tuple[Lift, Row]], rows: Rows
) -> dict[int, Enough]:
    """Return how much of each limit is enough, of those that have a number and help.

    Parameters
    ----------
    scenario : Scenario
        It misses a target, or has none.
    requests : int
        How many it has.
    lifts : mapping
        Number → a limit that binds, and the row without it.
    rows : callable
        From changes to the rows of the runs that have them.
    """
    searches = {
        number: Search(setting)
        for number, (lift, row) in lifts.items()
        if (setting := setting_of(scenario, requests, lift, row)) is not None
    }
    while asked := [(one, value) for one in searches.values() if (value := one.value()) is not None]:
        try:
            told = rows([one.setting.changes(value) for one, value in asked])
        except LimitError:
            raise
        except InputError:  # none of them can be built
            break
        for (one, value), row in zip(asked, told, strict=True):
            one.tell(value, row)
    return {number: found for number, one in searches.items() if (found := one.found()) is not None}
