"""RUN-4: the numbers of tokens that facts tell, and of requests that wait and run, are those that the record has.

An arrival tells the tokens of its prompt, an admission those known by then, an end or a preemption those generated.
Blocks are set aside for what is computed, and given back in vain with the tokens that this came to. Who waits and runs
when a step starts is in :mod:`clustersim.legality.timeline_rules.requests.present`.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, judged, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.requests.present import as_present
from clustersim.legality.timeline_rules.views.grouping import without
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.passes import parts

AWAY = (SWAPPED_OUT, SWAPPED_IN, HANDED_OVER, RECEIVED)
ENDS = (FINISHED, CANCELLED, LOST, REJECTED)


def tokens_by(pieces: Pieces, request: Int64Array, time: Int64Array) -> Int64Array:
    """Return the tokens that requests had got from the pieces that had begun before given instants.

    When something is decided for a request, no step that carries it is under way.
    """
    found, total = np.zeros(len(request), np.int64), None
    for some in parts(len(request), 8):
        order, first, _, at = pieces.before(request[some], time[some])
        if total is None:
            total = np.append(0, np.cumsum(pieces.gave[order]))
        found[some] = total[at] - total[first]
    return found


def numbers_told(reading: Reading) -> Finding:
    """Judge what facts tell of tokens, when admissions are, and how many requests steps say that wait and run."""
    if reading.history.folded is None or reading.history.facts is None or reading.pieces is None:
        return NOTHING
    return merged(_tokens(reading, reading.pieces), _begun(reading, reading.pieces), as_present(reading))


def _tokens(reading: Reading, pieces: Pieces) -> Finding:
    facts, prompts = reading.history.facts, reading.prompts
    assert facts is not None
    if prompts is None or not reading.plain.all():
        return NOTHING
    rows = reading.facts_of(ARRIVED, ADMITTED, PREEMPTED, *ENDS)
    request, time, kind, value = (facts[name][rows] for name in ("request", "time_ns", "kind", "value"))
    reserved, vain, since = _ahead(reading, rows, time)
    comes = (kind == ARRIVED) | (kind == REJECTED)
    due = tokens_by(pieces, request, since)
    due[comes] = 0
    due += vain
    told = np.flatnonzero(comes | (kind == ADMITTED))
    due[told] += prompts[request[told]]

    def words(at: int) -> str:
        if kind[at] == ADMITTED:
            return "computed" if reserved[at] else "known"
        return "in its prompt" if kind[at] in {ARRIVED, REJECTED} else "generated"

    return judged(
        len(rows), value != due, "request {request}",
        "a fact at {time:,} ns tells {value:,} tokens, and {due:,} are {words}",
        "tell of a request the tokens that it has", request=request, time=time, value=value, due=due, words=words,
    )  # fmt: skip


def _ahead(reading: Reading, rows: Int64Array, time: Int64Array) -> tuple[BoolArray, BoolArray, Int64Array]:
    """Return which facts set blocks aside for a sequence, which give them back in vain, and up to when each counts.

    Where it is computed meanwhile, all tokens that were known when that began leave, with one more that they give.
    """
    reservations, reserved = reading.hand_overs.reservations, np.isin(rows, reading.hand_overs.reserved)
    if reservations is None:  # each request leaves once, with its prompt
        return reserved, np.zeros(len(rows), bool), np.where(reserved, 0, time)
    facts = reading.history.facts
    assert facts is not None
    since = np.full(int(rows.max(initial=-1)) + 1, -1)
    since[reservations.reserved] = np.where(reservations.begun >= 0, facts["time_ns"][reservations.begun], 0)
    since[reservations.vain] = since[reservations.of_vain]
    found = since[rows]
    return reserved, np.isin(rows, reservations.vain), np.where(found >= 0, found, time)


def _begun(reading: Reading, pieces: Pieces) -> Finding:
    """Judge whether a step begins with each request at the instant at which it is admitted, unless it was cut off."""
    facts, hand_overs = reading.history.facts, reading.hand_overs
    assert facts is not None
    rows = without(reading.facts_of(ADMITTED, REUSED), hand_overs.reserved)
    request, time, replica = (facts[name][rows].astype(np.int64) for name in ("request", "time_ns", "replica"))
    at = pieces.next_of(request, time)
    begin = np.append(pieces.begin, -1)[at]
    cut = np.zeros(len(rows), bool)
    for failed, since, _ in reading.declared.down:
        cut |= (replica == failed) & (time <= since) & (since <= begin)
    at = np.where(cut, -1, at)
    return judged(
        len(rows), (at >= 0) & (begin != time) & np.append(reading.plain, False)[at], "request {request}",
        "is admitted at {time:,} ns, but the step for which it is starts at {begin:,} ns",
        "admit a request for the step that begins with it", request=request, time=time, begin=begin,
    )  # fmt: skip
