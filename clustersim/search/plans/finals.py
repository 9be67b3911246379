"""The best plans once more, at length: short runs end before queues have grown, and a seed may be lucky."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Final

from clustersim.search.plans.bounds.limits import RATE
from clustersim.search.plans.grid import SLOWEST, rate_of
from clustersim.search.plans.outcome import FLATTERED, Standing
from clustersim.search.point import Row
from clustersim.search.queue import is_borne, share_of
from clustersim.values import dataclass

SEEDS: Final = 3
REQUESTS: Final = 1000
"""Of each replica, at least; of a short run, at least, where the scenario has as many."""
OWN: Final = 20_000
"""Of a scenario that are all simulated: seconds of a run."""
TIES: Final = 0.03
"""Plans that differ by less are alike: as much as a seed changes."""
KEPT: Final = 3
"""Plans that are looked for: the best ones."""
FINALISTS: Final = 6
_FARTHEST: Final = 1024
"""Steps of the grid down from a capacity: of what fails there none is left."""
_HIGHEST: Final = 8
"""Steps up at a time: a sixth above a capacity in all."""
_AT_FIRST: Final = 3
"""Rates at which a plan is simulated at length, as expected before the first."""

Long = Callable[[Sequence[tuple[Standing, int, int]]], list[Row]]
"""Simulates plans at length, each at a step of the grid and with so much added to the seed."""
Late = Callable[[Sequence[tuple[Standing, int]]], bool]
"""Whether there is no time left to simulate plans at length, each at a step, with each seed."""
Own = Callable[[int], Sequence[Row] | None]
"""Simulates a plan at a step of the grid with the scenario's own seed: what stands for all, and all its replicas where
that does; None: there is no time left, or it can't."""


@dataclass(slots=True, kw_only=True)
class Finalist:
    """A plan at length.

    Parameters
    ----------
    standing : Standing
    step : int or None
        Highest step around its capacity that is borne in the mean over seeds; None where none is.
    shares : list of float
        With each seed, there.
    row : Row or None
        Of the first seed, at ``ran``.
    failed : int or None
        Lowest step at which it is not.
    whole : Row or None
        Of all its replicas at ``ran``, as the command runs them, where one stood for all and there was time.
    is_cut : bool
        Whether there was no time to look on for the highest step.
    ran : int or None
        The step of its command's run: lower where too few meet their targets there; None: ``step``.
    is_confirmed : bool
        Whether enough requests meet their targets in that run: of the scenario's own seed, with all replicas.
    rates_left : int
        At which it is still simulated, the next one included, as expected.
    """

    standing: Standing
    step: int | None
    shares: list[float]
    row: Row | None
    failed: int | None = None
    whole: Row | None = None
    is_cut: bool = False
    ran: int | None = None
    is_confirmed: bool = False
    rates_left: int = _AT_FIRST

    @property
    def capacity(self) -> float:
        """Requests per second."""
        return 0.0 if self.step is None else rate_of(self.step)

    @property
    def rate(self) -> float:
        """Requests per second of its command."""
        return self.capacity if self.ran is None else rate_of(self.ran)


def last_longest(
    simulated: Sequence[Standing],
    worth: Callable[[Standing], float],
    run: Long,
    *,
    seeds: int,
    share: float,
    is_late: Late = lambda _: False,
    told: Callable[[Sequence[tuple[Finalist, int]]], None] = lambda _: None,
) -> list[Finalist]:
    """Return the best plans at length, best first; those for which there was no time are left out.

    These are the best ones of short runs, and then those that reached more in short runs than the best does at length.

    Parameters
    ----------
    simulated : sequence of Standing
        Those that passed at some rate; what they reached in short runs is worth less and less.
    worth : callable
        What a request per second is worth on a plan.
    run : callable
    seeds : int
    share : float
    is_late : callable
    told : callable, optional
        Called with the plans that are simulated next, and at which steps.
    """
    values = [rate_of(one.passed or 0) * worth(one) for one in simulated]
    count = min(FINALISTS, sum(value >= values[0] * (1.0 - 2.0 * TIES) for value in values))
    found: list[Finalist] = []
    begun = 0
    while True:
        some, is_first = simulated[begun:count], not begun
        found += at_length(some, run, seeds=seeds, share=share, is_late=is_late, is_first=is_first, told=told)
        begun = count
        found.sort(key=lambda one: -one.capacity * worth(one.standing))
        found = [one for one in found if one.step is not None or not one.is_cut] or found[:1]
        most = found[0].capacity * worth(found[0].standing) * (1.0 + TIES)
        more = [value for value in values[count:] if value > most][:KEPT]
        if not more:
            return found
        count += len(more)


def is_settled(standings: Sequence[Standing], worth: Callable[[Standing], float], value: float) -> bool:
    """Return whether no plan that is left open can be better than a value by more than a tie."""
    steps = [(one, one.failing) for one in standings if one.fate == "open"]
    most = value * (1.0 + TIES)
    return all(step is not None and rate_of(step - 1) * worth(one) <= most for one, step in steps)


def reopen(standings: Sequence[Standing], worth: Callable[[Standing], float], best: Finalist) -> None:
    """Leave plans open whose bounds were held against what others reached in short runs, and at length do not."""
    most = best.capacity * worth(best.standing) * (1.0 + TIES)
    for one in standings:
        if one.fate == "pruned" and one.why == RATE and one.most * worth(one) > most:
            one.fate, one.why = "open", FLATTERED


def settle(finalists: Sequence[Finalist]) -> None:
    """Let of the runs of finalists those count that what they do at length does not contradict, and the long ones.

    A plan that was left open is simulated up to its capacity where long runs say at which rate it fails.
    """
    for one in finalists:
        standing, short = one.standing, one.standing.passing
        if standing.fate == "open" and one.step is not None and one.failed is not None:
            standing.fate, standing.why, standing.failed = "simulated", "", one.failed
        if one.step is None or one.row is None:
            short.clear()
        else:
            ran = one.step if one.ran is None else one.ran
            lower = {step: row for step, row in short.items() if step < ran}
            one.standing.passing = lower | {ran: one.row}


def confirm(one: Finalist, run: Own, share: float) -> None:
    """Look for the highest step, from its capacity down, at which a plan reaches its share as its command runs it.

    That has the scenario's own seed, which may be less lucky than the mean of some; and all replicas.
    """
    if one.step is None:
        return
    own = Finalist(standing=one.standing, step=None, shares=[], row=None)
    steps = _search(own, share, one.standing.apart, start=one.step, high=one.step + 1)
    step, found = next(steps), dict[int, Sequence[Row]]()
    with suppress(StopIteration):
        while (rows := run(step)) is not None:
            found[step] = rows
            step = steps.send([rows[-1]])
    if own.step is not None:
        one.ran, one.is_confirmed = own.step, True
    one.row, *whole = found.get(one.step if one.ran is None else one.ran, [one.row])
    one.whole = whole[0] if whole else None


def at_length(
    chosen: Sequence[Standing],
    run: Long,
    *,
    seeds: int,
    share: float,
    apart: int | None = None,
    start: int | None = None,
    is_late: Late = lambda _: False,
    is_first: bool = True,
    told: Callable[[Sequence[tuple[Finalist, int]]], None] = lambda _: None,
) -> list[Finalist]:
    """Simulate plans at length: at their capacities, and on up or down to the highest rates at which the mean does.

    ``start``: the step that is tried first, in place of that of their capacities; ``apart``: steps between the highest
    and the lowest at which it does not; None: as many as tie. Where there is no time for its next runs a plan is left
    as it is; ``is_first``: but one, as long as none reaches anything.
    """
    found = [Finalist(standing=one, step=None, shares=[], row=None) for one in chosen]
    searches = {
        id(one): _search(
            one,
            share,
            apart or one.standing.apart,
            start=(one.standing.passed or 0) if start is None else start,
            high=one.standing.failing if seeds == 1 else None,
        )
        for one in found
    }
    going = [(one, next(searches[id(one)])) for one in found]
    while going:
        beside: list[tuple[Standing, int]] = []
        for one, step in going:
            one.is_cut = is_late([*beside, (one.standing, step)])
            beside += [] if one.is_cut else [(one.standing, step)]
        if is_first and all(one.is_cut for one, _ in going) and all(one.step is None for one in found):
            going[0][0].is_cut = False
        going = [(one, step) for one, step in going if not one.is_cut]
        told(going)
        rows = run([(one.standing, step, seed) for one, step in going for seed in range(seeds)]) if going else []
        left = []
        for place, (one, _) in enumerate(going):
            try:
                left.append((one, searches[id(one)].send(rows[place * seeds : (place + 1) * seeds])))
            except StopIteration:
                continue
        going = left
    return found


def _search(
    one: Finalist, share: float, apart: int, *, start: int, high: int | None
) -> Generator[int, list[Row], None]:
    """Yield steps from one on, up or down and ever farther apart, then between; note the highest that does.

    With one seed it is known from which step on a plan fails (``high``), or at which it is proven to.
    """
    step, far = start, 1
    while True:
        rows = yield step
        if is_borne(rows, share):
            one.step, one.shares, one.row = step, [share_of(row) for row in rows], rows[0]
        else:
            high = one.failed = step
        if one.step is None:
            if far > _FARTHEST or step <= SLOWEST:
                return
            step, far = max(step - far, SLOWEST), 2 * far
        elif high is None:
            if far > _HIGHEST:
                return
            step, far = step + far, 2 * far
        elif high - one.step <= apart:
            return
        else:
            step = (one.step + high) // 2
        wide = max(step - (one.step or step), (high or step) - step)  # then, at most, it lies between as many steps
        unknown = one.step is None or high is None  # perhaps not even then
        one.rates_left = 1 + unknown + math.ceil(math.log2(max(1.0, wide / apart)))


class LongRuns:
    """What runs at length are expected to take, by what those before them took.

    Parameters
    ----------
    done_s : float
        Seconds of runs that ended before the first of them.
    """

    def __init__(self, done_s: float) -> None:
        self._began_s = self._now_s = done_s
        self._before_s = self._expected_s = self._left_s = 0.0

    def begin(self, done_s: float, expected_s: float, left_s: float) -> None:
        """Take what the next ones are expected to take, and these with all behind them; some seconds of runs ended."""
        self._before_s += self._expected_s
        self._now_s, self._expected_s, self._left_s = done_s, expected_s, left_s

    def left_s(self, done_s: float) -> float:
        """Return the seconds that are left once runs of so many ended."""
        took_s = self._now_s - self._began_s
        each = took_s / self._before_s if took_s and self._before_s else 1.0
        return max(0.0, each * self._left_s - (done_s - self._now_s))
