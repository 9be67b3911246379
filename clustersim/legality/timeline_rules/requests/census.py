"""RUN-4: the numbers of tokens that facts tell, and of requests that wait and run, are those that the record has.

An arrival tells the tokens of its prompt, an admission those known by then, an end or a preemption those generated.
Blocks are set aside for what is computed, and given back in vain with the tokens that this came to.
Who waits and runs when a step starts follows from the facts up to then. Where sequences are swapped or handed over, or
move since something failed, facts do not say from when on they run or wait, and that is not compared.
"""

from __future__ import annotations

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
    PREEMPTED,
    RECEIVED,
    REJECTED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.views.grouping import without
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.tables import Table

AWAY = (SWAPPED_OUT, SWAPPED_IN, HANDED_OVER, RECEIVED)
ENDS = (FINISHED, CANCELLED, LOST, REJECTED)


def tokens_by(pieces: Pieces, request: Int64Array, time: Int64Array) -> Int64Array:
    """Return the tokens that requests had got from the pieces that had begun before given instants.

    When something is decided for a request, no step that carries it is under way.
    """
    many, count = len(pieces), len(request)
    owner = np.concatenate((pieces.request, request))
    at = np.concatenate((pieces.begin, time))
    asks = np.repeat((1, 0), (many, count))
    order = np.lexsort((asks, at, owner))
    total = np.cumsum(np.concatenate((pieces.gave, np.zeros(count, np.int64)))[order])
    opens = np.append(True, owner[order][1:] != owner[order][:-1])[: len(order)]
    gave = np.concatenate((pieces.gave, np.zeros(count, np.int64)))[order]
    before = np.maximum.accumulate(np.where(opens, total - gave, 0))
    found = np.empty(many + count, np.int64)
    found[order] = total - before
    return found[many:]


def numbers_told(reading: Reading) -> Finding:
    """Judge what facts tell of tokens, when admissions are, and how many requests steps say that wait and run."""
    if reading.history.folded is None or reading.history.facts is None or reading.pieces is None:
        return NOTHING
    return merged(_tokens(reading, reading.pieces), _begun(reading, reading.pieces), _present(reading))


def _tokens(reading: Reading, pieces: Pieces) -> Finding:
    facts, prompts = reading.history.facts, reading.prompts
    assert facts is not None
    if prompts is None or not reading.plain.all():
        return NOTHING
    rows = reading.facts_of(ARRIVED, ADMITTED, PREEMPTED, *ENDS)
    request, time, kind, value = (
        facts[name][rows].astype(np.int64) for name in ("request", "time_ns", "kind", "value")
    )
    reserved, vain, since = _ahead(reading, rows, time)
    due = np.where(np.isin(kind, (ARRIVED, REJECTED)), 0, tokens_by(pieces, request, since)) + vain
    due += np.where(np.isin(kind, (ARRIVED, REJECTED, ADMITTED)), prompts[request], 0)
    words = np.where(
        kind == ADMITTED,
        np.where(reserved, "computed", "known"),
        np.where(np.isin(kind, (ARRIVED, REJECTED)), "in its prompt", "generated"),
    )
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


def _present(reading: Reading) -> Finding:
    runs, facts = reading.runs, reading.history.facts
    assert runs is not None
    assert facts is not None
    waiting, running = runs.column("waiting"), runs.column("running")
    if waiting is None or running is None:
        return NOTHING
    if reading.facts_of(*AWAY).size or reading.declared.down or reading.history.hands_over:
        return lacking(
            "how many requests wait and run (facts do not tell while some are swapped, handed over or moved)"
        )
    waits, runs_now = _changes(reading, facts)
    order = np.lexsort((facts["time_ns"], facts["replica"]))
    replica, time = (facts[name][order].astype(np.int64) for name in ("replica", "time_ns"))
    findings = []
    for told, change, word in ((waiting, waits, "wait"), (running, runs_now, "run")):
        total = np.append(0, np.cumsum(change[order]))
        due = np.zeros(len(runs), np.int64)
        for number in range(len(runs.bounds) - 1):
            mine = slice(int(runs.bounds[number]), int(runs.bounds[number + 1]))
            low, high = np.searchsorted(replica, (number, number + 1)).tolist()
            due[mine] = total[low + np.searchsorted(time[low:high], runs.start[mine], side="right")] - total[low]
        findings.append(judged(
            len(runs), told != due, Rows(runs),
            "says that {told:,} requests {word} when it starts, and by the facts {due:,} do",
            "count the requests that wait and run when a step starts", told=told, word=word, due=due,
        ))  # fmt: skip
    return merged(*findings)


def _changes(reading: Reading, facts: Table) -> tuple[Int64Array, Int64Array]:
    """Return what each fact adds to the requests that wait, and to those that run."""
    kind = facts["kind"]
    kept = kind != REUSED
    state = np.where(kind == ADMITTED, 2, np.where(np.isin(kind, (ARRIVED, PREEMPTED)), 1, 0))
    last = reading.residency.before(kept)
    before = np.where(last < 0, 0, state[last])
    waits, runs = (kept * ((state == one).astype(np.int64) - (before == one)) for one in (1, 2))
    return waits, runs
