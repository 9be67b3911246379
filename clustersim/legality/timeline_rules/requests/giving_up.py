"""RUN-4: clients give up when they were declared to, and at no other instant.

::

    arrived ────────── due ─────────────── cancelled     a step, a copy or a transfer carries it when it is due
                        └ a step ──────────┘             and it goes when that has ended, or has failed
    arrived ────────── due = cancelled                   nothing carries it
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    LOST,
    RECEIVED,
    REJECTED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.columns import is_any
from clustersim.timeline.tables import Table

NEVER: Final = np.iinfo(np.int64).max
UNEVEN: Final = 4
"""How many times the mean of a run of equal steps the last one of them takes at most."""
FIX: Final = "let a request go when its client gives it up, or when what carries it then has ended"


def given_up(reading: Reading) -> Finding:
    """Judge whether requests are given up by clients that do so, when they do, and all of them."""
    facts, requests = reading.history.facts, reading.history.requests
    if facts is None:
        return NOTHING
    rows = reading.facts_of(CANCELLED)
    if requests is None or "cancels_ns" not in requests:
        return lacking("when clients give up (no cancels_ns was recorded)") if len(rows) else NOTHING
    after = requests["cancels_ns"]
    if not len(rows) and not (after >= 0).any():
        return NOTHING
    due = _due(reading, facts, after)
    early = _before_it_is_due(facts, rows, due, after)
    return merged(
        early,
        _answered(facts, requests, rows),
        _at_once(reading, facts, due),
        _goes_on(reading, due),
        _stays(reading, facts, due),
    )


def _due(reading: Reading, facts: Table, after: Int64Array) -> Int64Array:
    """Return when the client of each request gives it up; ``NEVER`` also where it never arrives."""
    count = max(len(after), int(facts["request"].max(initial=-1)) + 1)
    came, due = reading.residency.first_ns(count, ARRIVED), np.full(count, NEVER)
    some = np.flatnonzero((after >= 0) & (came[: len(after)] < NEVER))
    due[some] = came[some] + np.minimum(after[some], NEVER - came[some])
    return due


def _before_it_is_due(facts: Table, rows: Int64Array, due: Int64Array, after: Int64Array) -> Finding:
    request, time = facts["request"][rows].astype(np.int64), facts["time_ns"][rows].astype(np.int64)

    words = (
        "is given up at {time:,} ns, and its client never gives up",
        "is given up at {time:,} ns, and its client waits until {due:,} ns",
    )
    due_then = due[request]
    unknown = (due_then == NEVER) & (np.append(after, np.full(len(due) - len(after), -1))[request] >= 0)
    return judged(
        len(rows), (time < due_then) & ~unknown, "request {request}", Rows(words, due_then < NEVER),
        "serve a request until it ends or its client gives it up", request=request, time=time, due=due_then,
    )  # fmt: skip


def _answered(facts: Table, requests: Table, rows: Int64Array) -> Finding:
    """Judge whether nobody is told to be given up who has all of its tokens: it has its answer."""
    output = requests["output_tokens"].astype(np.int64)
    rows = rows[facts["request"][rows] < len(output)] if "value" in facts else rows[:0]
    asked = output[facts["request"][rows]]
    return judged(
        0, (asked > 0) & (facts["value"][rows] >= asked) if len(rows) else asked > 0, "request {request}",
        "is given up at {time:,} ns with all of its {asked:,} tokens", "let who has its answer finish",
        request=facts["request"][rows], time=facts["time_ns"][rows], asked=asked,
    )  # fmt: skip


def _at_once(reading: Reading, facts: Table, due: Int64Array) -> Finding:
    """Judge whether what ends unfinished after it was due ends with what carried it."""
    if reading.pieces is None or (reading.history.moves is None and _moves(reading)):
        return NOTHING
    rows = reading.facts_of(CANCELLED, REJECTED, LOST)
    request, time = facts["request"][rows].astype(np.int64), facts["time_ns"][rows].astype(np.int64)
    late = np.flatnonzero(time > due[request])
    request, time = request[late], time[late]
    with_it = np.isin(time, _failures(reading))
    for owners, ends in _ends(reading, facts):
        known = set(zip(owners.tolist(), ends.tolist(), strict=True))
        with_it |= np.array([one in known for one in zip(request.tolist(), time.tolist(), strict=True)], bool)
    return judged(
        0, ~with_it, "request {request}",
        "leaves at {time:,} ns, when nothing ends that carried it, and its client gave it up at {due:,} ns", FIX,
        request=request, time=time, due=Rows(due, request),
    )  # fmt: skip


def _ends(reading: Reading, facts: Table) -> list[tuple[Int64Array, Int64Array]]:
    """Return requests and the instants at which steps, copies and transfers of them end."""
    pieces, moves = reading.pieces, reading.history.moves
    assert pieces is not None
    found = [(pieces.request, pieces.end)]
    if reading.runs is not None:
        found.append((pieces.request, reading.runs.recorded_end[pieces.last_run]))
    if moves is not None:
        found.append((moves["request"].astype(np.int64), moves["end_ns"].astype(np.int64)))
    rows = reading.facts_of(HANDED_OVER, RECEIVED, SWAPPED_OUT, SWAPPED_IN)
    found.append((facts["request"][rows].astype(np.int64), facts["time_ns"][rows].astype(np.int64)))
    return found


def _failures(reading: Reading) -> Int64Array:
    return np.array([since for pool in reading.history.pools for _, since, _ in pool.down], np.int64)


def _moves(reading: Reading) -> bool:
    """Return whether K/V may move, so that transfers carry requests too."""
    return reading.history.hands_over or reading.declared.host_blocks is not None


def _last_begins(reading: Reading) -> Int64Array:
    """Return when the last step of each piece begins at the earliest."""
    pieces, runs = reading.pieces, reading.runs
    assert pieces is not None
    assert runs is not None
    first, last = runs.start[pieces.last_run], runs.recorded_end[pieces.last_run]
    count = runs.count[pieces.last_run]
    within = np.where(count > UNEVEN, last - UNEVEN * ((last - first) // np.maximum(count, 1)), first)
    found: Int64Array = np.maximum(first, within)
    return found


def _goes_on(reading: Reading, due: Int64Array) -> Finding:
    """Judge whether no step that begins when a request is to be given up, or later, carries it.

    Who has gone by then, and is carried nevertheless, is for KV-7.
    """
    pieces, facts = reading.pieces, reading.history.facts
    if pieces is None or facts is None or not len(pieces):
        return NOTHING
    gone, begins = reading.residency.first_ns(len(due), CANCELLED), _last_begins(reading)
    known = pieces.request < len(due)
    who = np.where(known, pieces.request, 0)
    until = np.where(known, due[who], NEVER)
    return judged(
        0, (begins >= until) & (gone[who] > begins), "request {piece.request}",
        "a step carries it from {begins:,} ns, and its client gave it up at {until:,} ns", FIX, piece=Rows(pieces),
        begins=begins, until=until,
    )  # fmt: skip


def _stays(reading: Reading, facts: Table, due: Int64Array) -> Finding:
    """Judge whether nobody whose client gave up before the history ends stays without being carried."""
    horizon, pieces = reading.declared.horizon_ns, reading.pieces
    if pieces is None:
        return NOTHING
    until = NEVER if horizon is None else horizon
    stays = (due < until) & ~_have(facts, due, FINISHED, CANCELLED, REJECTED, LOST)
    if horizon is not None:
        carried = np.zeros(len(due), bool)
        carried[pieces.request[(pieces.end >= horizon) & (pieces.request < len(due))]] = True
        if _moves(reading) or not _have(facts, due, ADMITTED).any():
            carried |= _have(facts, due, ADMITTED)
        stays &= ~carried & ~_perhaps_carried(reading, facts, due)
    return judged(
        0, stays, "request {at}", "is there when the history ends, and its client gave it up at {due:,} ns", FIX,
        due=due,
    )  # fmt: skip


def _perhaps_carried(reading: Reading, facts: Table, due: Int64Array) -> BoolArray:
    """Return which requests a step may carry that the end of the history cuts off, so that it was not recorded.

    It began before the request was due; where a later step has ended since, that one has, too.
    """
    runs, rows = reading.runs, reading.residency.among(facts["kind"] == ADMITTED)
    found, home = np.zeros(len(due), bool), np.full(len(due), -1)
    home[facts["request"][rows]] = facts["replica"][rows]
    if runs is None:
        return found
    last = np.full(max(int(home.max(initial=-1)) + 1, len(runs.bounds)), -1)
    np.maximum.at(last, runs.replica, runs.start)
    found[home >= 0] = (last[home] < due)[home >= 0]
    return found


def _have(facts: Table, due: Int64Array, *kinds: int) -> BoolArray:
    """Return which requests have a fact of some kinds."""
    found = np.zeros(len(due), bool)
    found[facts["request"][is_any(facts["kind"], kinds)]] = True
    return found
