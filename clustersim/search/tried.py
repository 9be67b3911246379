"""Rates that were tried, one after another or some at a time, and how far a search among them is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from clustersim.errors import InputError, Problem
from clustersim.search.load import Load
from clustersim.search.point import Row
from clustersim.search.queue import is_borne, is_growing, share_of, until_steady
from clustersim.search.runs import Runs
from clustersim.units import plural
from clustersim.values import dataclass

BETWEEN: Final = 3
"""Rates that are tried at a time, however many workers there are: the answer is the same for any number."""
SERVED: Final = "throughput counts until the last request has ended, so that it is not the rate at which they arrive"

_FEW: Final = 50
"""Requests that may miss a target, from which on others change an answer less (p99: of 16 by 17 %, of 64 by 3 %)."""


def few_words(row: Row, share: float, more: str) -> str:
    """Return that few requests decide whether a share of them meets every target; empty where many do.

    Examples
    --------
    >>> few_words({"numbers": {"requests.arrived": 1600}}, 0.99, "with more of them")
    'few: 16 of 1,600 requests may miss a target, so that others may change the answer; ask with more of them'
    """
    arrived = int(row["numbers"].get("requests.arrived") or 0)
    missing = math.floor(arrived * (1.0 - share) + 1e-9)
    told = f"few: {missing:,} of {plural(arrived, 'request')} may miss a target, so that others may change the answer"
    return "" if missing >= _FEW else f"{told}; ask {more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A rate, requests per second, what was changed for it, and its row."""

    rate_per_s: float
    changes: tuple[str, ...]
    row: Row

    @property
    def share(self) -> float:
        """Share of all requests that met every target; 0 where nothing ran."""
        return share_of(self.row)

    @property
    def grows(self) -> bool:
        """Whether the queue still grows at its end."""
        return is_growing([self.row])

    def does(self, share: float) -> bool:
        """Whether the rate is borne: enough requests meet every target, and the queue does not grow."""
        return is_borne([self.row], share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search for a rate is.

    Parameters
    ----------
    tried, left : int
        Rates that were tried, and those that are expected to be.
    done, rest : float
        Requests of both.
    does, fails : float or None
        The highest rate found so far at which enough requests meet their targets, and the lowest at which not.
    """

    tried: int
    left: int
    done: float
    rest: float
    does: float | None
    fails: float | None


class RatesTried:
    """Tries rates, and tells how far it is.

    Parameters
    ----------
    runs, load, share, tolerance, told
        See :func:`clustersim.search.rate.highest_rate`.
    """

    def __init__(
        self, *, runs: Runs, load: Load, share: float, tolerance: float, told: Callable[[Progress], None]
    ) -> None:
        self._runs, self._load, self._share, self._tolerance, self._told = runs, load, share, tolerance, told
        self.tried: dict[float, Tried] = {}

    def __call__(self, rates: Sequence[float]) -> list[Tried]:
        """Return what came of some rates, in runs that are long enough; those that were tried before are not again."""
        rates = [float(f"{rate:.6g}") for rate in rates]  # what people can write down
        new = [rate for rate in dict.fromkeys(rates) if rate not in self.tried]

        def run(asked: Sequence[tuple[int, int]]) -> list[list[Row]]:
            all_changes = [self._load.longer(times).changes(new[number]) for number, times in asked]
            self._tell(new, 0)
            rows = self._runs.rows(all_changes, lambda done, _: self._tell(new, done))
            for (number, _), row in zip(asked, rows, strict=True):
                if row["failed"] is not None:
                    raise InputError(Problem(message=f"at {new[number]:g}/s: {row['failed']}"))
            return [[row] for row in rows]

        for rate, (times, (row,)) in zip(new, until_steady(run, len(new), self._share), strict=True):
            changes = self._load.longer(times).changes(rate)
            self.tried[rate] = Tried(rate_per_s=rate, changes=changes, row=row)
        return [self.tried[rate] for rate in rates]

    def _tell(self, new: Sequence[float], done: int) -> None:
        """Tell how far it is while some rates are tried, of which so many are done."""
        does = [rate for rate, one in self.tried.items() if one.does(self._share)]
        fails = [rate for rate, one in self.tried.items() if not one.does(self._share)]
        low, high = max(does, default=None), min(fails, default=None)
        apart = 2.0 if low is None or high is None else high / low
        rounds = math.ceil(math.log(max(math.log(apart) / math.log1p(self._tolerance), 1.0), BETWEEN + 1))
        now = len(new) - done
        later = BETWEEN * (rounds - (len(new) == BETWEEN)) + (high is None and low is not None)
        each = self._load.count(new[0] if new else max(self.tried))
        before = sum(map(self._load.count, self.tried)) + done * each
        self._told(
            Progress(
                tried=len(self.tried) + done,
                left=now + later,
                done=before,
                rest=(now + later) * each,
                does=low,
                fails=high,
            )
        )
