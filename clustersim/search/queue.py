"""Whether a rate is borne: enough requests meet every target, and the queue does not grow while they arrive.

The share alone flatters: a run ends before its queue is as long as targets allow. So a run also counts the requests in
the system: those that arrived and have not ended, whether they wait or run. :math:`N_2` and :math:`N_4` are their means
over the second and the fourth quarter of the time in which `n` requests arrive.

- Growth, :math:`(N_4 - N_2) / (n / 2)`: of the requests that arrive from one of these quarters to the other, how many
  more are there. A stable queue has a limit, so that it goes to 0 [1]_. A queue that `a` times as many requests come to
  as it can serve grows by :math:`1 - 1/a`, however long it lasts.
- Those left, :math:`N_4 / n`. By Little's law [2]_ that is the mean time in the system over the time in which requests
  arrive. Where it is not small the run tells little: who has not ended may never. Whatever chance did to growth, no
  more than :math:`1 / (1 - N_4/n)` times as many come as are served.

Measured on queues with a known limit (1 and 32 servers, equal service, 400 arrivals): growth is 0.00 ± 0.03 at 0.9 of
it, 0.10 ± 0.05 at 1.1 and 0.17 ± 0.06 at 1.2 times it. With bursts (cv 3) it varies three times as much, and half as
much with 1,600 arrivals. So a run in which it is too large to be sure is made longer, until it tells.

Requests that come as others end have no rate, and a run with a horizon ends with it: of both nothing is said.

.. [1] Loynes, "The stability of a queue with non-independent inter-arrival and service times", Math. Proc. Cambridge
   Philos. Soc. 58 (1962).
.. [2] Little, "A proof for the queuing formula L = λW", Operations Research 9 (1961).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.errors import InputError, LimitError
from clustersim.report.metrics.latencies import Columns
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import has_rate

Row = dict[str, Any]
"""Of a run: ``failed`` and ``numbers``, as :mod:`clustersim.search.point` has them."""
Rows = Sequence[Row]
"""Of runs of one rate, a seed each."""

SHARE: Final = "goodput.share"
GROWTH: Final = "queue.growth"
LEFT: Final = "queue.left"
WAITING: Final = "queue.growth_waiting"
"""Growth of those that have no token yet."""

_STEADY: Final = 0.05
"""Growth up to which a queue counts as steady: a rate that is told is at most so much too high for that."""
_FEW_LEFT: Final = 0.125
"""Of all requests, that may be in the system: those arrive for eight times as long as one stays."""
_FAR_MORE: Final = 0.25
"""Growth of a short run, a third more than is served: less may be chance (±0.12 with 100 arrivals)."""
_MOST_TIMES: Final = 64
"""As many requests as asked for, at most: where the queue still grows then, it does (assumed)."""
_SAME: Final = 0.8
"""Of growth and of what is left in a shorter run, from which on a queue grows for good: of a steady one both halve in a
run twice as long (assumed) …"""
_FILLS: Final = 2.0 / 3.0
"""… unless more than that are left, which may be since none had the time to end."""


def queue_numbers(requests: Columns, scenario: Scenario) -> dict[str, float]:
    """Return growth, and what is left, of a run; nothing where it has no rate or a horizon.

    Parameters
    ----------
    requests : Columns
        A row per request; those that were rejected, cancelled or lost are in no queue, and those that failed where they
        were recorded do not arrive.
    scenario : Scenario
    """
    if scenario.run.horizon_ns is not None or not has_rate(scenario):
        return {}
    asked = np.asarray(requests["output_tokens"]) > 0
    times = (np.asarray(requests[name], np.float64)[asked] for name in ("arrived_ns", "first_token_ns", "finished_ns"))
    arrived, first, finished = times
    outcome = np.asarray(requests["outcome"])[asked]
    gone = np.where(outcome == "unfinished", np.inf, arrived)
    growth = growth_of(arrived, np.where(outcome == "finished", finished, gone))
    waiting = growth_of(arrived, np.where(np.isnan(first), gone, first))
    return {} if growth is None or waiting is None else {GROWTH: growth[0], LEFT: growth[1], WAITING: waiting[0]}


def growth_of(arrived: FloatArray, ended: FloatArray) -> tuple[float, float] | None:
    """Return by how much the number in the system grows, and how much is left; None where all come at one instant.

    Parameters
    ----------
    arrived, ended : array of shape (n,)
        Instants, in any unit; infinite where a request has not ended.

    Examples
    --------
    Five come in the time in which four are served.

    >>> arrived = np.arange(1000.0)
    >>> [round(one, 2) for one in growth_of(arrived, 1.25 * np.arange(1, 1001))]
    [0.2, 0.18]
    """
    first, quarter = float(arrived.min(initial=np.inf)), float(np.ptp(arrived)) / 4.0 if len(arrived) else 0.0
    if quarter <= 0.0:
        return None

    def mean(begin: float) -> float:
        stays = np.minimum(ended, begin + quarter) - np.maximum(arrived, begin)
        return float(np.maximum(stays, 0.0).sum()) / quarter

    before, last = mean(first + quarter), mean(first + 3.0 * quarter)
    return (last - before) / (len(arrived) / 2.0), last / len(arrived)


def share_of(row: Row) -> float:
    """Return the share of all requests that meet every target in a run; 0 where it can't be simulated."""
    found = None if row["failed"] is not None else row["numbers"].get(SHARE)
    return 0.0 if found is None else float(found)


def mean_share(rows: Rows) -> float:
    """Return the mean share over runs of one rate, a seed each."""
    return math.fsum(map(share_of, rows)) / len(rows)


def is_growing(rows: Rows) -> bool:
    """Whether the queue still grows at the end of runs of one rate, or too many are left in it to be sure."""
    return _mean(rows, GROWTH) > _STEADY or _mean(rows, LEFT) > _FEW_LEFT


def is_borne(rows: Rows, share: float) -> bool:
    """Whether a rate is borne in runs of it: enough requests meet every target, and the queue does not grow."""
    return mean_share(rows) >= share and not is_growing(rows)


def lowered(most: float) -> float:
    """Return the share that is asked for where no rate reaches more than some: whole per cents, up to 1.5 less.

    Of more requests at a higher rate a few less may be able to meet their targets.

    Examples
    --------
    >>> lowered(0.95), lowered(0.943), lowered(0.01)
    (0.94, 0.93, 0.0)
    """
    return max(0, math.floor(100.0 * most - 0.5)) / 100.0


def may_be_borne(row: Row, share: float) -> bool:
    """Whether a run that is too short for its queue to be steady lets a rate be tried at length.

    Enough requests meet every target in it, and those without a token don't grow by so many that far more come than are
    served: a target of TPOT alone allows any number of them.
    """
    return share_of(row) >= share and _mean([row], WAITING) <= _FAR_MORE


def growth_words(numbers: Mapping[str, Any]) -> str:
    """Say how the queue of a run grows.

    Examples
    --------
    >>> growth_words({"queue.growth": 0.23, "queue.left": 0.3})
    'the queue still grows at the end: by 23% of the requests that arrive'
    """
    growth = float(numbers.get(GROWTH, 0.0))
    if growth > _STEADY:
        return f"the queue still grows at the end: by {growth:.0%} of the requests that arrive"
    return f"at the end {float(numbers.get(LEFT, 0.0)):.0%} of all requests are still there: the run is too short"


def until_steady(
    run: Callable[[Sequence[tuple[int, int]]], Sequence[Rows]],
    count: int,
    share: float,
    *,
    most_times: int = _MOST_TIMES,
) -> list[tuple[int, Rows]]:
    """Run rates, and those again with more requests in which enough meet their targets and the queue still grows.

    Parameters
    ----------
    run : callable
        Returns the runs of some of the rates, a seed each; from the number of each rate, and how many times as many
        requests it gets as were asked for.
    count : int
        Of the rates.
    share : float
    most_times : int, optional

    Returns
    -------
    list of (int, sequence of Row)
        How many times as many requests each rate got in the end, and those runs.
    """
    times = [1] * count
    found = list(run([(number, 1) for number in range(count)]))
    going = [number for number in range(count) if _is_unsure(found[number], share)]
    while going := [number for number in going if times[number] < most_times]:
        more = {number: min(most_times, times[number] * _longer(found[number])) for number in going}
        try:
            rows = run(list(more.items()))
        except LimitError:
            raise
        except InputError:  # there is no room for as many: what is known stays
            break
        going = []
        for number, one in zip(more, rows, strict=True):
            if any(row["failed"] is not None for row in one):
                continue
            before, times[number], found[number] = found[number], more[number], one
            if _is_unsure(one, share) and not _is_for_good(before, one):
                going.append(number)
    return list(zip(times, found, strict=True))


def _is_unsure(rows: Rows, share: float) -> bool:
    return mean_share(rows) >= share and is_growing(rows)


def _is_for_good(before: Rows, now: Rows) -> bool:
    """Whether the queue of a longer run grows as that of the one before: more come than are served."""
    stays = all(_mean(now, key) >= _SAME * _mean(before, key) for key in (GROWTH, LEFT))
    return stays and _mean(now, GROWTH) > _STEADY and _mean(now, LEFT) <= _FILLS


def _longer(rows: Rows) -> int:
    """Return how many times as long a run has to be for few to be left, if they stay no longer in it; 2 at least."""
    return max(2, math.ceil(_mean(rows, LEFT) / _FEW_LEFT))


def _mean(rows: Rows, key: str) -> float:
    return math.fsum(row["numbers"].get(key, 0.0) for row in rows) / len(rows)
