"""What failures do, as declared: who is on what fails leaves it, is lost only where that is declared, and work resumes.

That nothing runs or is admitted on what has failed is judged in ``streams``. Here: a sequence does not stay through a
failure (RUN-3); a request is lost where its replica fails and the fault says so, or where no replica ever comes back
(RUN-4); a replica that is not declared to be down runs a step whenever it has work (RUN-3; and is given requests in its
turn, see ``routing``), so that an outage that lasts too long, or that nobody declared, is noticed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import LATEST_NS, Int64Array
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
    Declared,
)
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.tables import Table

ENDS: Final = (REJECTED, FINISHED, CANCELLED, LOST)
LEAVES: Final = (*ENDS, PREEMPTED, HANDED_OVER)
RESUME: Final = "let what has not failed do its work, and what has failed do it again when it is back"


def leaves_what_fails(reading: Reading) -> Finding:
    """RUN-3: no sequence stays on a replica while something fails that it needs.

    One that is admitted anew without having left is RUN-4's.
    """
    facts, declared = reading.history.facts, reading.declared
    if facts is None or not declared.down:
        return NOTHING
    findings = []
    rows = reading.facts_of(ADMITTED, RECEIVED, *LEAVES)
    rows = rows[np.lexsort((rows, facts["time_ns"][rows], facts["request"][rows]))]
    request, kind, replica, time = (
        facts[name][rows].astype(np.int64) for name in ("request", "kind", "replica", "time_ns")
    )
    following = np.append(request[1:] == request[:-1], False)[: len(rows)]
    later = np.append(time[1:], LATEST_NS)[: len(rows)]
    again = following & (np.append(kind[1:], ADMITTED)[: len(rows)] == ADMITTED)
    here = ~np.isin(kind, LEAVES)
    for failed, since, _ in declared.down:
        if declared.horizon_ns is not None and since >= declared.horizon_ns:
            continue
        mine = here & (replica == failed) & (time <= since) & (~following | (later > since))
        findings.append(judged(
            int((replica == failed).sum()), mine & ~again, "replica {failed}, request {request}",
            "is there since {time:,} ns, and stays when the replica fails at {since:,} ns",
            "let what a replica served leave it when it fails", failed=failed, request=request, time=time, since=since,
        ))  # fmt: skip
    return merged(*findings)


def _last_of_each(facts: Table, rows: Int64Array) -> Int64Array:
    """Return the last of some facts of each request, at one instant the one recorded last."""
    rows = rows[np.lexsort((rows, facts["time_ns"][rows], facts["request"][rows]))]
    request = facts["request"][rows]
    found: Int64Array = rows[np.append(request[1:] != request[:-1], True)[: len(rows)]]
    return found


def lost_as_declared(reading: Reading) -> Finding:
    """RUN-4: a request is lost where the fault says so, or none is left to take it; there all are lost."""
    facts, declared, history = reading.history.facts, reading.declared, reading.history
    if facts is None or declared.carriage is None:
        return NOTHING
    rows = reading.facts_of(LOST)
    replica, time, request = (facts[name][rows].astype(np.int64) for name in ("replica", "time_ns", "request"))
    allowed = np.zeros(len(rows), bool)
    for failed, since in declared.loses:
        allowed |= (replica == failed) & (time == since)
    for pool in history.pools or (declared,):
        ends = [
            (one.since_ns, one.replica) for one in declared.down if one.until_ns == LATEST_NS and _of(pool, one.replica)
        ]
        if len(ends) == pool.dp:
            allowed |= time >= max(ends)[0]
    finding = judged(
        len(rows), ~allowed & ~_too_long(reading, request), "request {request}",
        "is lost at {time:,} ns on replica {replica}, where no declared fault loses what it served, and some replica "
        "is there for it, or comes back",
        "compute anew what a fault is not declared to lose", request=request, time=time, replica=replica,
    )  # fmt: skip
    return merged(finding, _all_lost(reading))


def _of(pool: Declared, replica: int) -> bool:
    return pool.first_replica <= replica < pool.first_replica + pool.dp


def _too_long(reading: Reading, request: Int64Array) -> BoolArray:
    """Return which requests need more blocks than a pool has, so that nobody can compute them anew."""
    told = reading.history.requests
    found = np.zeros(len(request), bool)
    for pool in reading.history.pools or (reading.declared,):
        if told is None or pool.pool_blocks is None or pool.block_tokens is None:
            continue
        known = request < len(told["prompt_tokens"])
        some = request[known]
        tokens = told["prompt_tokens"][some] + np.maximum(told["output_tokens"][some] - 1, 0)
        owners = pool.sp if pool.sp_decode == "dp" else 1
        found[known] |= -(-tokens // pool.block_tokens) > pool.pool_blocks // owners
    return found


def _all_lost(reading: Reading) -> Finding:
    """Judge whether all that ran or waited on a replica is lost with it, where that is declared."""
    facts, declared = reading.history.facts, reading.declared
    assert facts is not None
    findings = []
    for failed, since in declared.loses:
        if declared.horizon_ns is not None and since >= declared.horizon_ns:
            continue
        there = facts["replica"] == failed
        ran = facts["request"][there & (facts["kind"] == PREEMPTED) & (facts["time_ns"] == since)]
        if reading.history.pools and not _of(declared, failed):  # others only had blocks set aside there
            came = there & np.isin(facts["kind"], (ADMITTED, RECEIVED)) & (facts["time_ns"] <= since)
            last = _last_of_each(facts, np.flatnonzero(came))
            ran = np.intersect1d(ran, facts["request"][last[facts["kind"][last] == RECEIVED]])
        before = _last_of_each(facts, np.flatnonzero(facts["time_ns"] < since))
        waits = before[(facts["kind"][before] == ARRIVED) & there[before]]
        waits = waits[~_is_down(declared, failed, facts["time_ns"][waits], since)]
        gone = facts["request"][(facts["time_ns"] == since) & np.isin(facts["kind"], ENDS)]
        kept = np.setdiff1d(np.concatenate((ran, facts["request"][waits])), gone)
        findings.append(judged(
            len(ran) + len(waits), np.ones(len(kept), bool), "request {kept}",
            "was on replica {failed}, whose failure at {since:,} ns is declared to lose what it served, and is not "
            "lost",
            "lose what a fault is declared to lose", kept=kept, failed=failed, since=since,
        ))  # fmt: skip
    return merged(*findings)


def _is_down(declared: Declared, replica: int, times: Int64Array, but: int = -1) -> BoolArray:
    """Return whether a replica is declared to be down at instants, up to and with that at which it comes back.

    Parameters
    ----------
    declared : Declared
    replica : int
    times : int64 array
    but : int
        When an outage begins that does not count.
    """
    found = np.zeros(len(times), bool)
    for failed, since, until in declared.down:
        if failed == replica and since != but:
            found |= (times >= since) & (times <= until)
    return found


def works(reading: Reading) -> Finding:
    """RUN-3: a replica that has work and is not declared to be down runs a step, in each pool."""
    if reading.history.facts is None or reading.runs is None:
        return NOTHING
    pools = reading.history.pools or (reading.declared,)
    return merged(*(_work_of(reading, pool) for pool in pools if pool.eager))


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
    rows = np.flatnonzero(_within(declared, facts["replica"]))
    rows = rows[np.argsort(facts["request"][rows], kind="stable")]
    apart = np.diff(facts["request"][rows]) > 0
    if not (apart | (np.diff(facts["time_ns"][rows]) >= 0)).all():  # those of one replica are in order of time
        rows = rows[np.lexsort((rows, facts["time_ns"][rows], facts["request"][rows]))]
    request, kind, replica, since = (
        facts[name][rows].astype(np.int64) for name in ("request", "kind", "replica", "time_ns")
    )
    until = np.append(np.where(request[1:] == request[:-1], since[1:], since[:-1]), since[-1:])
    there = ~np.isin(kind, ENDS) & (until > since)
    has_work, admitted = there.copy(), np.zeros(len(rows), bool)
    if declared.role == "prefill" or declared.host_blocks is not None:
        waits = np.isin(kind, (ARRIVED, PREEMPTED))
        admitted, has_work = has_work & ~waits, has_work & waits
    elif declared.role == "decode":
        has_work &= kind == RECEIVED
    for failed, begins, ends in declared.down:
        lost = (replica == failed) & (kind == PREEMPTED) & (since == begins)
        there &= ~lost
        has_work &= ~(lost | ((replica == failed) & (kind == ARRIVED) & (since <= ends) & (until > begins)))
    if reading.hand_overs.reservations is not None:
        there &= ~np.isin(rows, reading.hand_overs.reservations.vain)
    told = {"request": request, "kind": kind, "replica": replica, "since": since, "until": until}
    if declared.role == "decode" and "value" in facts:
        told["value"] = facts["value"][rows].astype(np.int64)
    waiting = _waiting(reading, declared)
    findings = []
    for number in range(declared.first_replica, declared.first_replica + declared.dp):
        mine, steps = replica == number, np.flatnonzero(runs.replica == number)
        here = {name: values[mine] for name, values in told.items()}
        moved = waiting[:, waiting[0] == number]

        def busy(stays: BoolArray, steps: Int64Array = steps) -> tuple[Int64Array, Int64Array]:
            starts = np.concatenate((runs.start[steps], since[stays]))
            order = np.argsort(starts, kind="stable")
            latest = np.concatenate((runs.recorded_end[steps], until[stays]))
            return starts[order], np.maximum.accumulate(latest[order])

        comes, goes = since[has_work & mine], until[has_work & mine]
        if declared.role == "decode":
            stays = busy(there & mine)
            findings.append(_unbroken(reading, declared, number, stays, np.sort(moved[1]), np.sort(moved[2]), {}))
        else:
            comes, goes = np.append(comes, moved[1]), np.append(goes, moved[2])
        findings.append(
            _unbroken(reading, declared, number, busy(admitted & mine), np.sort(comes), np.sort(goes), here)
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
    rows = [(one.replica, one.since, one.until) for one in found.waits if _of(declared, one.replica)]
    return np.array(rows, np.int64).reshape(-1, 3).T


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
    mine = facts["replica"] == replica if alone else _within(declared, facts["replica"])
    left = facts["time_ns"][mine & np.isin(facts["kind"], LEAVES)]
    for since, until in sorted(one.instants for one in declared.down if one.replica == replica):
        for cut in np.flatnonzero((begin <= since) & (since < end)).tolist():
            if not (left == since).any():  # else a step was cut off, which is not recorded
                begin, end = np.append(begin, begin[cut]), np.append(end, since)
            begin[cut] = until
    if declared.horizon_ns is not None and declared.pp > 1 and reading.runs is not None:  # which may cut others off
        last = reading.runs.start[reading.runs.replica == replica].max(initial=-1)
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
