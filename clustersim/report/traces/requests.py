"""Requests as rows of a trace: a slice from arrival to last token, in it its phases, in these the chunks of its prompt.

The slowest requests, and those that are asked for, have a row of their own each; the others share rows on which no two
overlap, as many as there are requests at a time. What a request's time went to is said by its arguments: the columns of
``requests.parquet``, so that sums over slices are those of the run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.report.metrics.latencies import Columns
from clustersim.report.traces.arrows import Arrows
from clustersim.report.traces.phases import CHUNK, PHASES, Phases, RequestPhases
from clustersim.report.traces.slices import NOWHERE, REQUESTS, Row, Slices, no_arrows
from clustersim.simulation.causes.labels import COLUMNS

OUTCOMES: Final = ("finished", "rejected", "unfinished", "cancelled", "lost")
NAMES: Final = ("request", *PHASES)
CATEGORIES: Final = (*OUTCOMES, "wait", "got")
"""Of texts, they follow the names."""
_TOLD: Final = (
    "replica", "prompt_tokens", "output_tokens", "generated_tokens", "cached_tokens", "preemptions", "front_end_ns",
    *COLUMNS,
)  # fmt: skip
ARGUMENTS: Final = ("request", *_TOLD, "ttft_ns", "e2e_ns", "step", "tokens")
_GOT: Final = ("prompt, between its chunks", "decode", "chunk of the prompt")
_BLOCK: Final = 2048
"""Requests whose slices are made at a time: some 50 MB."""


class RequestSlices:
    """The slices of requests, a bounded number at a time.

    Parameters
    ----------
    requests : Columns
        ``requests.parquet``.
    lives : RequestPhases
    alone : sequence of int
        Requests, by their places in ``lives.columns``, with rows of their own, in that order.
    shared : int64 array
        Those that share rows, likewise, in order of arrival.
    arrows : Arrows
        From requests to the steps that served them.
    """

    def __init__(
        self, requests: Columns, lives: RequestPhases, alone: Sequence[int], shared: Int64Array, arrows: Arrows
    ) -> None:
        self._requests, self._lives, self._arrows = requests, lives, arrows
        self._alone, self._shared = np.array(alone, np.int64), shared
        self._order = np.argsort(requests["request"], kind="stable")
        outcome = np.asarray(requests["outcome"])[self._order].astype(str)
        self._outcome = np.argmax(np.stack([outcome == word for word in OUTCOMES]), axis=0)

    def __iter__(self) -> Iterator[Slices]:
        """Yield those with rows of their own, and then the others."""
        for low in range(0, len(self._alone), _BLOCK):
            some = self._alone[low : low + _BLOCK]
            numbers = np.arange(low, low + len(some))
            names = [f"request {one}" for one in self._lives.columns["request"][some].tolist()]
            rows = [
                (at, Row(group=REQUESTS, name=name, order=at)) for at, name in zip(numbers.tolist(), names, strict=True)
            ]
            yield self._slices(some, numbers, rows)
        lanes, known, first = _Lanes(), 0, len(self._alone)
        for low in range(0, len(self._shared), _BLOCK):
            some = self._shared[low : low + _BLOCK]
            lane = lanes.place(self._lives.columns["arrived_ns"][some], self._lives.ends_ns(some))
            new = range(known, max(known, int(lane.max()) + 1))
            rows = [(first + at, Row(group=REQUESTS, name=f"requests, row {at + 1}", order=first + at)) for at in new]
            known = new.stop
            yield self._slices(some, first + lane, rows)

    def _slices(self, some: Int64Array, row: Int64Array, rows: Sequence[tuple[int, Row]]) -> Slices:
        phases = self._lives.of(some)
        many = (len(some), len(phases.of), len(phases.chunk))
        of = np.concatenate((np.arange(many[0]), phases.of, phases.chunk_of))
        arrived = self._lives.columns["arrived_ns"][some]
        start = np.concatenate((arrived, phases.start_ns, phases.chunk_start_ns))
        end = np.concatenate((np.maximum(self._lives.ends_ns(some), arrived), phases.end_ns, phases.chunk_end_ns))
        depth = np.repeat([0, 1, 2], many)
        order = np.lexsort((depth, start, of))
        name = np.concatenate((np.zeros(many[0], np.int64), phases.phase + 1, np.full(many[2], CHUNK + 1)))
        got = np.array([word in _GOT for word in PHASES])
        inner = np.concatenate((phases.phase, np.full(many[2], CHUNK)))
        sides = np.where(got[inner], CATEGORIES.index("got"), CATEGORIES.index("wait"))
        category = len(NAMES) + np.concatenate((self._outcome[some], sides))
        number = np.concatenate((self._lives.columns["request"][some], np.full(many[1] + many[2], NOWHERE)))
        arrows = bool(len(self._arrows)) and bool(np.isin(some, self._alone).any())
        out = self._arrows.of_requests(self._lives.columns["request"][some], phases) if arrows else no_arrows(sum(many))
        return Slices(
            rows=rows, row=row[of][order], depth=depth[order], start_ns=start[order], end_ns=end[order],
            name=name[order], category=category[order], number=number[order],
            arguments={key: values[order] for key, values in self._told(some, phases).items()},
            out=out[order], into=no_arrows(sum(many)),
        )  # fmt: skip

    def _told(self, some: Int64Array, phases: Phases) -> dict[str, Int64Array]:
        """Return the arguments: of requests, then of phases, which have none, then of chunks."""
        rows, chunks = self._order[some], self._lives.chunks
        before, behind = len(some) + len(phases.of), len(phases.of) + len(phases.chunk)
        found = {name: _padded(_whole(self._requests[name][rows]), behind) for name in _TOLD if name in self._requests}
        found["request"] = _padded(self._lives.columns["request"][some], behind)
        front_end = np.maximum(found["front_end_ns"][: len(some)], 0) if "front_end_ns" in found else 0
        for name, after in (("ttft_ns", "first_token_after"), ("e2e_ns", "finished_after")):
            value = self._lives.columns[after][some]
            found[name] = _padded(np.where(value >= 0, value + front_end, NOWHERE), behind)
        for name, column in (("step", "step"), ("tokens", "count")):
            found[name] = np.concatenate((np.full(before, NOWHERE), chunks[column][phases.chunk].astype(np.int64)))
        found["replica"][before:] = chunks["replica"][phases.chunk]
        return found


class _Lanes:
    """Rows that requests share: each takes the lowest that is free when it arrives."""

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []
        self._free: list[int] = []

    def place(self, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
        """Return a row for each request, in order of arrival; none arrives before one that was placed."""
        found = []
        for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
            while self._busy and self._busy[0][0] <= start:
                heapq.heappush(self._free, heapq.heappop(self._busy)[1])
            lane = heapq.heappop(self._free) if self._free else len(self._busy)
            heapq.heappush(self._busy, (end, lane))
            found.append(lane)
        return np.array(found, np.int64)


def _padded(values: Int64Array, more: int) -> Int64Array:
    return np.concatenate((values, np.full(more, NOWHERE, np.int64)))


def _whole(column: npt.NDArray[Any]) -> Int64Array:
    """Return a column as whole numbers; −1 for NaN."""
    values = np.asarray(column)
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, nan=NOWHERE)
    return values.astype(np.int64)
