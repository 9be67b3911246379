"""What became of requests, as phases that follow each other, and the chunks of their prompts within these.

A request waits, has its prompt in work, decodes; between them it may be handed over, lose its K/V, or be swapped to the
host. The same as ``page/requests.js`` works out in a page. Waiting is called by what most of it went to.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.report.folded.requests import WAITS, chunk_columns, fact_columns, request_columns
from clustersim.report.metrics.latencies import Columns
from clustersim.serving.decision import (
    ADMITTED,
    CANCELLED,
    FACT_KINDS,
    FINISHED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.simulation.causes.labels import COLUMNS
from clustersim.timeline.passes import within
from clustersim.timeline.step_parts import StepRows
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass

PHASES: Final = (
    "waits to be admitted", "prompt, between its chunks", "decode", "hand-over", "preempted: waits for its K/V again",
    "swapped to the host", "chunk of the prompt", *(f"waits for {COLUMNS[f'{name}_ns'][0]}" for name in WAITS),
)  # fmt: skip
"""Names of phases, and of chunks."""
WAITING, PROMPT, DECODE, HAND_OVER, AGAIN, SWAPPED, CHUNK, WAITING_FOR = range(8)
_OVER, _HANDED_ON = -1, -2
_PROMPTED: Final = len(FACT_KINDS)
_ENDS: Final = (REJECTED, FINISHED, CANCELLED, LOST)
_NEXT: Final = {
    ADMITTED: PROMPT, RECEIVED: DECODE, SWAPPED_IN: DECODE, PREEMPTED: AGAIN, SWAPPED_OUT: SWAPPED,
    HANDED_OVER: _HANDED_ON, _PROMPTED: DECODE, **dict.fromkeys(_ENDS, _OVER),
}  # fmt: skip
"""What happens → the phase that it begins."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """Phases of some requests, in order of (request, start), and the chunks in them, likewise; ns.

    ``of`` is the place of the request among those asked for. A chunk lies within its phase, and begins where the one
    before it ended, if they were in the pipeline together; ``chunk`` is its number in ``RequestPhases.chunks``.
    """

    of: Int64Array
    phase: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    chunk_of: Int64Array
    chunk: Int64Array
    chunk_start_ns: Int64Array
    chunk_end_ns: Int64Array


class RequestPhases:
    """What became of each request of a run.

    Parameters
    ----------
    requests : Columns
        ``requests.parquet``.
    timeline : Timeline
    """

    def __init__(self, requests: Columns, timeline: Timeline) -> None:
        self.columns = request_columns(requests)
        self.chunks = chunk_columns(timeline)
        self._facts = fact_columns(timeline)
        self._steps, self._rows, self._end_ns = timeline.steps, StepRows(timeline), timeline.end_ns

    def times_of(self, replica: Int64Array, step: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return when the rows of steps with these steps begin and end, ns."""
        row = self._rows.of(replica, step)
        return self._steps["start_ns"][row].astype(np.int64), self._steps["end_ns"][row].astype(np.int64)

    def ends_ns(self, some: Int64Array) -> Int64Array:
        """Return when requests, by their places in ``columns``, ended; the end of the run where they did not."""
        found = np.full(len(some), self._end_ns, np.int64)
        fact, of = _of(self._facts["request"], self.columns["request"][some])
        last = np.isin(self._facts["kind"][fact], _ENDS)
        found[of[last]] = self._facts["time_ns"][fact[last]]
        after = self.columns["finished_after"][some]
        return np.where(after >= 0, self.columns["arrived_ns"][some] + after, found)

    def of(self, some: Int64Array) -> Phases:
        """Return the phases of some requests, by their places in ``columns``."""
        chunk, chunk_of = _of(self.chunks["request"], self.columns["request"][some])
        start, end = self.times_of(self.chunks["replica"][chunk], self.chunks["step"][chunk])
        order = np.lexsort((end, start, chunk_of))
        chunk, chunk_of, start, end = (column[order] for column in (chunk, chunk_of, start, end))
        of, phase, since, until = self._phases(some, chunk_of, end, self.chunks["sampled"][chunk] > 0)
        home = _home(of, since, chunk_of, start)
        inside = np.flatnonzero((home >= 0) & (of[home] == chunk_of) if len(of) else home > 0)
        chunk, chunk_of, start, end, home = (column[inside] for column in (chunk, chunk_of, start, end, home))
        follows = np.append(False, chunk_of[1:] == chunk_of[:-1])[: len(chunk_of)]
        begin = np.where(follows, np.maximum(start, np.append(0, end[:-1])[: len(end)]), start)
        end = np.minimum(end, until[home])
        named = np.where(phase == WAITING, self._waited(some)[of], phase)
        return Phases(
            of=of, phase=named, start_ns=since, end_ns=until,
            chunk_of=chunk_of, chunk=chunk, chunk_start_ns=np.minimum(begin, end), chunk_end_ns=end,
        )  # fmt: skip

    def _waited(self, some: Int64Array) -> Int64Array:
        if "waited_for" not in self.columns:
            return np.full(len(some), WAITING, np.int64)
        most = self.columns["waited_for"][some].astype(np.int64)
        return np.where(most >= 0, most + WAITING_FOR, WAITING)

    def _phases(
        self, some: Int64Array, prompted_of: Int64Array, prompted_ns: Int64Array, sampled: Any
    ) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return request, phase, start and end of each phase that lasts."""
        of, time_ns, kind = self._events(some, prompted_of[sampled], prompted_ns[sampled])
        begins = np.array([_NEXT.get(one, _HANDED_ON) for one in range(_PROMPTED + 1)], np.int64)[kind]
        begins[_handed_over(of, kind)] = HAND_OVER
        begins[(kind == ADMITTED) & ~np.isin(_before(of, kind), (_OVER, PREEMPTED))] = _HANDED_ON
        kept = np.flatnonzero(begins != _HANDED_ON)
        count = len(some)
        of = np.concatenate((np.arange(count), of[kept]))
        since = np.concatenate((self.columns["arrived_ns"][some], time_ns[kept]))
        phase = np.concatenate((np.full(count, WAITING), begins[kept]))
        order = np.argsort(of, kind="stable")
        of, since, phase = of[order], since[order], phase[order]
        new = np.append(True, (of[1:] != of[:-1]) | (phase[1:] != phase[:-1]))[: len(of)]
        of, since, phase = of[new], since[new], phase[new]
        last = np.append(of[1:] != of[:-1], True)[: len(of)]
        until = np.where(last, self._end_ns, np.append(since[1:], 0)[: len(of)])
        lasts = (phase != _OVER) & (until > since)
        return of[lasts], phase[lasts], since[lasts], until[lasts]

    def _events(
        self, some: Int64Array, prompted_of: Int64Array, prompted_ns: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return request, instant and kind of what happened, in order: facts, ends of prompts, last tokens."""
        fact, fact_of = _of(self._facts["request"], self.columns["request"][some])
        after = self.columns["finished_after"][some]
        done = np.flatnonzero(after >= 0)
        of = np.concatenate((fact_of, prompted_of, done))
        time_ns = np.concatenate(
            (self._facts["time_ns"][fact], prompted_ns, (self.columns["arrived_ns"][some] + after)[done])
        )
        many = (len(fact), len(prompted_of), len(done))
        kind = np.concatenate((self._facts["kind"][fact], np.full(many[1], _PROMPTED), np.full(many[2], FINISHED)))
        late = np.repeat([1, 0, 2], many)
        order = np.lexsort((late, time_ns, of))
        return of[order], time_ns[order], kind[order].astype(np.int64)


def _of(keys: Int64Array, wanted: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return which rows of an ascending key each wanted one has, and the place of the wanted one, row by row."""
    low, high = (np.searchsorted(keys, wanted, side=side) for side in ("left", "right"))
    many = high - low
    return np.repeat(low, many) + within(many), np.repeat(np.arange(len(wanted)), many)


def _handed_over(of: Int64Array, kind: Int64Array) -> Int64Array:
    """Return the ends of prompts after which a request is handed over, before it loses what it has or ends."""
    prompted = np.flatnonzero(kind == _PROMPTED)
    decides = np.flatnonzero(np.isin(kind, (HANDED_OVER, PREEMPTED, SWAPPED_OUT, *_ENDS)))
    if not len(decides):
        return decides
    at = np.searchsorted(decides, prompted, side="right")
    following = decides[np.minimum(at, len(decides) - 1)]
    found: Int64Array = prompted[
        (at < len(decides)) & (of[following] == of[prompted]) & (kind[following] == HANDED_OVER)
    ]
    return found


def _before(of: Int64Array, kind: Int64Array) -> Int64Array:
    """Return the kind of the last event before each that begins a phase and lets nobody in; ``_OVER`` where none is."""
    counts = ~np.isin(kind, (ADMITTED, HANDED_OVER))
    last = np.maximum.accumulate(np.where(counts, np.arange(len(kind)), -1))
    last = np.append(-1, last[:-1])[: len(kind)]
    own = (last >= 0) & (of[last] == of)
    return np.where(own, kind[last], _OVER)


def _home(of: Int64Array, since: Int64Array, chunk_of: Int64Array, start: Int64Array) -> Int64Array:
    """Return the last phase that begins up to each chunk; −1 where there is none."""
    chunks = np.concatenate((np.zeros(len(of), bool), np.ones(len(start), bool)))
    order = np.lexsort((chunks, np.concatenate((since, start)), np.concatenate((of, chunk_of))))
    found: Int64Array = (np.cumsum(~chunks[order]) - 1)[chunks[order]]
    return found
