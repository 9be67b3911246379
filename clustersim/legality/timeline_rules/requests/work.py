"""Work is done: a replica that has some, and is not declared to be down, runs a step (RUN-3), in each pool.

So an outage that lasts too long, or that nobody declared, is noticed. That such a replica is given requests in its turn
is judged in ``routing``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import LATEST_NS, Int64Array
from clustersim.legality.finding import NOTHING, Finding, judged, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    PREEMPTED,
    RECEIVED,
    SWAPPED_IN,
    Declared,
)
from clustersim.legality.timeline_rules.requests.failing import ENDS, LEAVES
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.columns import is_any, taken
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.tables import Table

RESUME: Final = "let what has not failed do its work, and what has failed do it again when it is back"
"""What mends work that nobody does."""


def works(reading: Reading) -> Finding:
    """RUN-3: a replica that has work and is not declared to be down runs a step, in each pool."""
    if reading.history.facts is None or reading.runs is None:
        return NOTHING
    return merged(*(_work_of(reading, pool) for pool in reading.history.pools if pool.eager))


def _work_of(reading: Reading, declared: Declared) -> Finding:
    """Judge whether the replicas of a pool work.

    Work of a prefill pool is what waits there while no other prompt has blocks, which it keeps until it is handed over
    (so it is where sequences are swapped, of which copies are under way); of a decode pool, what was received, but
    one sequence that lacks a block while others are set aside for what is on its way (see ``_cornered``), and, where
    it has nothing, to set blocks aside for what is to come. What a failure moves waits where ``whereabouts`` says.
    """
    facts, runs = reading.history.facts, reading.runs
    assert facts is not None
    assert runs is not None
    rows = reading.residency.among(_within(declared, facts["replica"]))
    request, kind, replica, since = (taken(facts[name], rows) for name in ("request", "kind", "replica", "time_ns"))
    until = since.astype(np.int64)
    until[:-1] = np.where(request[1:] == request[:-1], since[1:], since[:-1])
    keeps = declared.role == "prefill" or declared.host_blocks is not None
    if keeps and declared.horizon_ns is not None:  # what is not handed over, or is copied in, by then keeps its blocks
        last = np.append(request[1:] != request[:-1], True)[: len(request)]
        until = np.where(
            last & (kind == (ADMITTED if declared.role == "prefill" else SWAPPED_IN)), declared.horizon_ns, until
        )
    there = ~is_any(kind, ENDS) & (until > since)
    has_work, admitted = there.copy(), np.zeros(len(rows), bool)
    if keeps:
        waits = is_any(kind, (ARRIVED, PREEMPTED))
        admitted, has_work = has_work & ~waits, has_work & waits
    elif declared.role == "decode":
        has_work &= kind == RECEIVED
    for failed, begins, ends in declared.down:
        waits = (replica == failed) & (kind == PREEMPTED) & (since <= begins) & (until > begins)
        there &= ~(waits & (since == begins))
        has_work &= ~(waits | ((replica == failed) & (kind == ARRIVED) & (since <= ends) & (until > begins)))
    if reading.hand_overs.reservations is not None:
        there &= ~np.isin(rows, reading.hand_overs.reservations.vain)
    told = {"request": request, "kind": kind, "replica": replica, "since": since, "until": until}
    if declared.role == "decode" and "value" in facts:
        told["value"] = facts["value"][rows].astype(np.int64)
    waiting, stays_at, findings = _waiting(reading, declared), RowsOf(replica), []
    for number in reading.replicas_of(declared):
        mine, steps = stays_at.of(number), reading.rows_at(runs.replica, number)
        here = {name: values[mine] for name, values in told.items()} if "value" in told else {}
        moved = waiting[:, waiting[0] == number]

        def busy(stays: Int64Array, steps: Int64Array = steps) -> tuple[Int64Array, Int64Array]:
            starts = np.concatenate((runs.start[steps], since[stays]))
            order = np.argsort(starts, kind="stable")
            latest = np.concatenate((runs.recorded_end[steps], until[stays]))
            return starts[order], np.maximum.accumulate(latest[order])

        some = mine[has_work[mine]]
        comes, goes = since[some], until[some]
        if declared.role == "decode":
            stays = busy(mine[there[mine]])
            findings.append(_unbroken(reading, declared, number, stays, np.sort(moved[1]), np.sort(moved[2]), {}))
        else:
            comes, goes = np.append(comes, moved[1]), np.append(goes, moved[2])
        findings.append(
            _unbroken(reading, declared, number, busy(mine[admitted[mine]]), np.sort(comes), np.sort(goes), here)
        )
    return merged(*findings)


def _within(declared: Declared, replica: Int64Array) -> BoolArray:
    found: BoolArray = (replica >= declared.first_replica) & (replica < declared.first_replica + declared.dp)
    return found


def _waiting(reading: Reading, declared: Declared) -> Int64Array:
    """Return replica, and the two instants, of waits that facts alone do not tell.

    They are those of a decode pool, and those of requests that had come to a replica which was, or is, down.
    """
    found = reading.whereabouts if declared.down or declared.role == "decode" else None
    if found is None:
        return np.empty((3, 0), np.int64)
    waits = np.array([(one.replica, one.since, one.until) for one in found.waits], np.int64).reshape(-1, 3).T
    return waits[:, _within(declared, waits[0])]


def _unbroken(
    reading: Reading, declared: Declared, replica: int, busy: tuple[Int64Array, Int64Array], comes: Int64Array,
    goes: Int64Array, stays: Table,
) -> Finding:  # fmt: skip
    """Judge whether a replica is busy wherever it has work, which comes and goes at instants; all ascend."""
    begin = np.concatenate((np.full(1, -1), busy[1]))
    end = np.append(busy[0], LATEST_NS if declared.horizon_ns is None else -1)
    facts = reading.history.facts
    assert facts is not None
    alone = declared.dp == 1 or declared.ep_scope != "global"  # those that share experts take each step together
    downs = sorted(one.instants for one in declared.down if one.replica == replica)
    left = np.empty(0, np.int64)
    if downs:
        column = facts["replica"]
        mine = reading.rows_at(column, replica) if alone else np.flatnonzero(_within(declared, column))
        left = facts["time_ns"][mine[is_any(facts["kind"][mine], LEAVES)]]
    for since, until in downs:
        for cut in np.flatnonzero((begin <= since) & (since < end)).tolist():
            if not (left == since).any():  # else a step was cut off, which is not recorded
                begin, end = np.append(begin, begin[cut]), np.append(end, since)
            begin[cut] = until
    if declared.horizon_ns is not None and declared.pp > 1 and reading.runs is not None:  # which may cut others off
        last = reading.runs.start[reading.rows_at(reading.runs.replica, replica)].max(initial=-1)
        end = np.where(end > last, -1, end)
    idle = np.flatnonzero(end > begin)
    begin, end = begin[idle], end[idle]
    there = np.searchsorted(comes, begin, side="right") > np.searchsorted(goes, begin, side="right")
    more = np.searchsorted(comes, end, side="left") > np.searchsorted(comes, begin, side="right")
    stands = there | more
    if "value" in stays:
        for gap in np.flatnonzero(stands).tolist():
            stands[gap] = not _cornered(reading, declared, replica, stays, int(begin[gap]), int(end[gap]))
    return judged(
        len(busy[0]), stands, "replica {replica}",
        "runs no step between {begin:,} ns and {end}, though it has work, and no fault says why", RESUME,
        replica=replica, begin=np.maximum(begin, 0),
        end=lambda i: "the end" if end[i] == LATEST_NS else f"{end[i]:,} ns",
    )  # fmt: skip


def _cornered(reading: Reading, declared: Declared, replica: int, stays: Table, begin: int, end: int) -> bool:
    """Return whether what a decode replica has between instants lacks a block for its next token.

    Then it is alone, else another one would be preempted: all other blocks are set aside for sequences on their way.
    """
    runs, pieces = reading.runs, reading.pieces
    kind, since, until, value = (stays[name] for name in ("kind", "since", "until", "value"))
    here = (kind == RECEIVED) & (since < end) & (until > begin)
    for alone in np.flatnonzero(here).tolist():
        start, stop = max(begin, int(since[alone])), min(end, int(until[alone]))
        aside = (kind == ADMITTED) & (since <= start) & (until >= stop)
        if (here & (since < stop) & (until > start)).sum() != 1 or not aside.any():
            return False
        if runs is None or pieces is None or declared.pool_blocks is None or declared.block_tokens is None:
            continue  # nothing says how many blocks it has
        entries = int(value[alone])
        mine = (pieces.request == stays["request"][alone]) & (pieces.replica == replica)
        for piece in np.flatnonzero(mine & (pieces.begin >= since[alone]) & (pieces.begin <= start)).tolist():
            ran = (runs.replica == replica) & (runs.slot == pieces.slot[piece]) & (runs.recorded_end <= start)
            ran &= (runs.step >= pieces.first_step[piece]) & (runs.step <= pieces.last_step[piece])
            entries += int(runs.count[ran].sum())
        taken = int((-(-value[aside] // declared.block_tokens)).sum())
        if taken - (-(entries + 1) // declared.block_tokens) <= declared.pool_blocks:
            return False
    return True
