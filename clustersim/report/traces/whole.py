"""What a trace shows of the whole run beside the operators of its window: requests, steps and counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem
from clustersim.report.metrics.latencies import Columns
from clustersim.report.traces import requests as of_requests
from clustersim.report.traces import steps as of_steps
from clustersim.report.traces.arrows import Arrows
from clustersim.report.traces.counters import Counter, counters_of, token_counter
from clustersim.report.traces.phases import RequestPhases
from clustersim.report.traces.requests import RequestSlices
from clustersim.report.traces.slices import Slices
from clustersim.report.traces.steps import StepSlices
from clustersim.simulation.step_rows import StepRows
from clustersim.timeline.timeline import Timeline
from clustersim.timeline.tokens import Delivery
from clustersim.values import dataclass

TEXTS: Final = (*of_requests.NAMES, *of_requests.CATEGORIES, *of_steps.NAMES, of_steps.CATEGORY)
"""Names and categories of slices."""
ARGUMENTS: Final = tuple(dict.fromkeys((*of_requests.ARGUMENTS, *of_steps.ARGUMENTS)))


_SLICES_OF_REQUEST: Final = 5
"""About: itself, three phases, a chunk."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeRun:
    """Requests, steps and counters of a run, or those that touch a window.

    Parameters
    ----------
    requests : Columns
        ``requests.parquet``.
    timeline : Timeline
    step_rows : StepRows
    window : (start_ns, end_ns)
        What does not touch it is left out.
    slowest : int
        How many of the slowest requests have rows of their own, by end-to-end latency.
    asked : sequence of int
        Requests that have them, too, above those.
    delivery : Delivery, optional
        When tokens reached clients.

    Raises
    ------
    InputError
        For a request that is not there.
    """

    requests: Columns
    timeline: Timeline
    step_rows: StepRows
    window: tuple[int, int]
    slowest: int = 0
    asked: Sequence[int] = ()
    delivery: Delivery | None = None

    texts = TEXTS
    arguments = ARGUMENTS

    def __post_init__(self) -> None:
        numbers = self.requests["request"]
        missing = [one for one in self.asked if one not in numbers]
        if missing:
            last = int(max(numbers, default=-1))
            expected = f"; expected 0 to {last}" if last >= 0 else ""
            raise InputError(
                [Problem(path="--request", message=f"there is no request {one}{expected}") for one in missing]
            )

    @cached_property
    def lives(self) -> RequestPhases:
        """What became of each request."""
        return RequestPhases(self.requests, self.timeline)

    @cached_property
    def _shown(self) -> tuple[list[int], Int64Array]:
        """Return the places of requests that have rows of their own, and of those that share rows."""
        columns = self.lives.columns
        every = np.arange(len(columns["request"]))
        arrived, ends = columns["arrived_ns"], self.lives.ends_ns(every)
        touches = np.flatnonzero((arrived < self.window[1]) & (np.maximum(ends, arrived) >= self.window[0]))
        asked = np.searchsorted(columns["request"], list(dict.fromkeys(self.asked))).tolist()
        slowest = touches[np.argsort(arrived[touches] - ends[touches], kind="stable")[: self.slowest]].tolist()
        alone = list(dict.fromkeys([*asked, *slowest]))
        shared = touches[np.argsort(arrived[touches], kind="stable")]
        return alone, shared[~np.isin(shared, alone)]

    @property
    def num_requests(self) -> int:
        """How many requests are shown."""
        alone, shared = self._shown
        return len(alone) + len(shared)

    @cached_property
    def num_steps(self) -> int:
        """About how many steps are shown: of rows that reach over the window's edge, all."""
        rows = self.step_rows.rows
        inside = (rows["end_ns"] > self.window[0]) & (rows["start_ns"] < self.window[1])
        return int(rows["count"][inside].sum())

    @property
    def num_slices(self) -> int:
        """About how many slices there are."""
        return self.num_steps + self.num_requests * _SLICES_OF_REQUEST

    def counters(self) -> tuple[Counter, ...]:
        """Return all counters."""
        known = int(self.requests["request"].max(initial=-1)) + 1
        tables = (self.step_rows.rows, self.step_rows.kv_rows)
        of_replicas = [counter for rows in tables for counter in counters_of(rows, *self.window)]
        return (*token_counter(self.timeline, known, self.window, self.delivery), *of_replicas)

    def __iter__(self) -> Iterator[Slices]:
        """Yield the slices of requests, and then those of steps."""
        alone, shared = self._shown
        arrows = Arrows(self.timeline, self.lives, self.lives.columns["request"][alone])
        of_all = RequestSlices(self.requests, self.lives, alone, shared, arrows)
        rows = 0
        for piece in of_all:
            rows += len(piece.rows)
            yield piece
        name = len(of_requests.NAMES) + len(of_requests.CATEGORIES)
        last = len(TEXTS) - 1
        yield from StepSlices(self.step_rows, self.window, arrows, first_row=rows, name=name, category=last)
