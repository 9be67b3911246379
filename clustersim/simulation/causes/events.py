"""The steps that requests were in, as events: a prompt's chunk, or an episode of decodes, and what lies before each."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.serving.decision import ADMITTED, ARRIVED, PREEMPTED, RECEIVED, SWAPPED_OUT
from clustersim.simulation.residency import moved
from clustersim.timeline.parts import rows_of
from clustersim.timeline.passes import PART
from clustersim.timeline.rows_of import RowsOf, in_order
from clustersim.timeline.step_parts import StepRows
from clustersim.timeline.tables import Table, Tables
from clustersim.values import dataclass

NONE: Final = -1
NEVER: Final = np.iinfo(np.int64).max
AT_A_TIME: Final = 4 * PART
"""Requests that are looked at together."""
_DECODED: Final = (1 << 32) - 1
"""How far a sequence that has decoded is computed: beyond any prompt."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """Chunks and episodes of requests that finished, in order of (request, start); arrays of shape (events,).

    Parameters
    ----------
    request, replica, start_ns, end_ns : int64 arrays
    opens : bool array
        Whether it is the first of its request.
    chunk : int64 array
        Row of ``chunks``, −1 for an episode.
    first_row, last_row : int64 arrays
        The rows of ``steps`` that carried it.
    again : bool array
        Whether a chunk computes what had been computed before.
    answered : bool array
        Whether its client had got the first token before.
    """

    request: Int64Array
    replica: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    opens: Any
    chunk: Int64Array
    first_row: Int64Array
    last_row: Int64Array
    again: Any
    answered: Any


def of_requests(request: Int64Array, some: slice) -> Any:
    """Say which of some requests' numbers are within a slice."""
    return (request >= some.start) & (request < some.stop)


class RequestRows:
    """Rows of chunks, of episodes, and of facts of arrivals, by parts of the requests: each is looked for once.

    Parameters
    ----------
    tables : Tables
    """

    def __init__(self, tables: Tables) -> None:
        self._arrivals = np.flatnonzero(tables.facts["kind"] == ARRIVED)
        requests = tables.chunks["request"], tables.decodes["request"], tables.facts["request"][self._arrivals]
        self._chunks, self._decodes, self._arrived = (RowsOf(request // AT_A_TIME) for request in requests)

    def events(self, some: slice) -> tuple[Int64Array, Int64Array]:
        """Return the rows of chunks and of episodes of ``AT_A_TIME`` requests, or of the last ones."""
        return self._chunks.of(some.start // AT_A_TIME), self._decodes.of(some.start // AT_A_TIME)

    def arrivals(self, some: slice) -> Int64Array:
        """Return the rows of facts that say when they arrived."""
        return self._arrivals[self._arrived.of(some.start // AT_A_TIME)]


def events_of(tables: Tables, rows: StepRows, finished: Any, first_ns: Int64Array, *some: Int64Array) -> Events:
    """Return the events of some rows of chunks and of episodes of requests that finished.

    ``rows`` finds rows of the steps of these tables; ``first_ns`` says when each client got its first token.
    """
    steps = tables.steps
    chunks, these = (
        mine[finished[table["request"][mine]]]
        for table, mine in zip((tables.chunks, tables.decodes), some, strict=True)
    )
    decodes = rows_of(tables.decodes, these)
    chunk = rows_of(tables.chunks, chunks)
    prompts = rows.of(chunk["replica"], chunk["step"])
    first, last = (rows.of(decodes["replica"], decodes[key]) for key in ("first_step", "last_step"))
    request = np.concatenate((chunk["request"], decodes["request"])).astype(np.int64)
    first_row, last_row = np.concatenate((prompts, first)), np.concatenate((prompts, last))
    start, end = steps["start_ns"][first_row], steps["end_ns"][last_row]
    order = in_order(request, start, end)
    request = request[order]
    opens = np.append(True, request[1:] != request[:-1])[: len(request)]
    count = len(decodes["request"])
    begins = np.concatenate((chunk["start"].astype(np.int64), np.full(count, _DECODED)))[order]
    reaches = begins + np.concatenate((chunk["count"].astype(np.int64), np.zeros(count, np.int64)))[order]
    return Events(
        request=request,
        replica=np.concatenate((chunk["replica"], decodes["replica"])).astype(np.int64)[order],
        start_ns=start[order],
        end_ns=end[order],
        opens=opens,
        chunk=np.concatenate((chunks, np.full(count, NONE)))[order],
        first_row=first_row[order],
        last_row=last_row[order],
        again=~opens & (begins < _DECODED) & (begins < _reached_before(request, reaches)),
        answered=start[order] >= first_ns[request],
    )


def _reached_before(request: Int64Array, reaches: Int64Array) -> Int64Array:
    """Return how far events of the same request, or of the one before, reached at most before each event."""
    most = np.maximum.accumulate(request << 33 | reaches) & ((1 << 33) - 1)
    return np.concatenate((np.zeros(1, np.int64), most[:-1]))[: len(most)]


class Facts:
    """Facts of some kinds, looked up by request and instant.

    Parameters
    ----------
    facts : Table
    rows : int64 array
        Which of them.
    """

    def __init__(self, facts: Table, rows: Int64Array) -> None:
        self.rows = rows[in_order(facts["request"][rows], facts["time_ns"][rows])]
        self.request = facts["request"][self.rows].astype(np.int64)
        self.time_ns = facts["time_ns"][self.rows].astype(np.int64)

    def latest(self, request: Int64Array, instant: Int64Array) -> Int64Array:
        """Return the last one of each request up to an instant, as a position; −1 where there is none.

        Parameters
        ----------
        request, instant : int64 arrays of shape (questions,)
        """
        found = np.full(len(request), NONE, np.int64)
        some = np.flatnonzero(np.isin(request, self.request))
        asked = np.concatenate((np.zeros(len(self.rows), np.int8), np.ones(len(some), np.int8)))
        requests = np.concatenate((self.request, request[some]))
        order = in_order(requests, np.concatenate((self.time_ns, instant[some])), asked)
        last = np.cumsum(asked[order] == 0) - 1
        questions = np.flatnonzero(asked[order])
        at = last[questions]
        own = (at >= 0) & (self.request[np.maximum(at, 0)] == requests[order[questions]])
        found[some[order[questions] - len(self.rows)]] = np.where(own, at, NONE)
        return found


class Preemptions:
    """When requests lost their blocks, and whether to a fault."""

    def __init__(self, facts: Table) -> None:
        rows = np.flatnonzero((facts["kind"] == PREEMPTED) | (facts["kind"] == SWAPPED_OUT))
        self._facts = Facts(facts, rows)
        self._away = moved(facts)[self._facts.rows] if len(rows) else np.zeros(0, bool)

    def before(self, events: Events) -> tuple[Int64Array, Any]:
        """Return when requests lost their blocks before each event and after the one before, and whether to a fault.

        The last instant, or −1 where they did not.
        """
        lost = self._facts
        instant, away = np.full(len(events.request), NONE, np.int64), np.zeros(len(events.request), bool)
        if not len(lost.rows):
            return instant, away
        at = lost.latest(events.request, events.start_ns)
        before = np.append(NONE, events.end_ns[:-1])[: len(at)]
        some = np.flatnonzero((at >= 0) & (events.opens | (lost.time_ns[at] >= before)))
        instant[some] = lost.time_ns[at[some]]
        away[some] = self._away[at[some]]
        return instant, away


def received(tables: Tables, events: Events, some: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return when blocks were set aside, and when K/V had come, for events of a pool that is handed requests."""
    facts = tables.facts
    later = tables.layout.of_replica(facts["replica"]) > 0
    request, instant = events.request[some], events.start_ns[some]
    found = []
    later &= of_requests(facts["request"], slice(request.min(initial=0), request.max(initial=0) + 1))
    for kind in (RECEIVED, ADMITTED):
        facts_of = Facts(facts, np.flatnonzero(later & (facts["kind"] == kind)))
        at = facts_of.latest(request, instant)
        instant = np.where(at >= 0, facts_of.time_ns[at] if len(facts_of.rows) else 0, instant)
        found.append(instant)
    return found[1], found[0]
