"""What failures do, as declared: who is on what fails leaves it, and is lost only where that is declared.

That nothing runs or is admitted on what has failed is judged in ``streams``. Here: a sequence does not stay through a
failure (RUN-3); a request is lost where its replica fails and the fault says so, or where no replica ever comes back
(RUN-4). That work resumes is judged in ``work``.
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
from clustersim.timeline.columns import is_any

ENDS: Final = (REJECTED, FINISHED, CANCELLED, LOST)
LEAVES: Final = (*ENDS, PREEMPTED, HANDED_OVER)


def leaves_what_fails(reading: Reading) -> Finding:
    """RUN-3: no sequence stays on a replica while something fails that it needs.

    One that is admitted anew without having left is RUN-4's.
    """
    facts, declared = reading.history.facts, reading.declared
    if facts is None or not declared.down:
        return NOTHING
    findings = []
    kinds, residency = facts["kind"], reading.residency
    here, told = np.isin(kinds, (ADMITTED, RECEIVED)), np.isin(kinds, (ADMITTED, RECEIVED, *LEAVES))
    rows = residency.among(here)
    end = residency.after(told)[rows]
    request, replica, time = (facts[name][rows].astype(np.int64) for name in ("request", "replica", "time_ns"))
    later, again = np.where(end < 0, LATEST_NS, facts["time_ns"][end]), (end >= 0) & (kinds[end] == ADMITTED)
    for failed, since, _ in declared.down:
        if declared.horizon_ns is not None and since > declared.horizon_ns:
            continue
        mine = (replica == failed) & (time <= since) & (later > since)
        findings.append(judged(
            int((told & (facts["replica"] == failed)).sum()), mine & ~again, "replica {failed}, request {request}",
            "is there since {time:,} ns, and stays when the replica fails at {since:,} ns",
            "let what a replica served leave it when it fails", failed=failed, request=request, time=time, since=since,
        ))  # fmt: skip
    return merged(*findings)


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
    for pool in history.pools:
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
    for pool in reading.history.pools:
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
    facts, declared, residency = reading.history.facts, reading.declared, reading.residency
    assert facts is not None
    kind = facts["kind"]
    findings = []
    for failed, since in declared.loses:
        if declared.horizon_ns is not None and since > declared.horizon_ns:
            continue
        there, before = facts["replica"] == failed, facts["time_ns"] < since
        ran = facts["request"][there & (kind == PREEMPTED) & (facts["time_ns"] == since)]
        if reading.history.hands_over and not _of(declared, failed):  # others only had blocks set aside there
            came = there & np.isin(kind, (ADMITTED, RECEIVED)) & (facts["time_ns"] <= since)
            ran = np.intersect1d(ran, facts["request"][(kind == RECEIVED) & came & (residency.after(came) < 0)])
        waits = np.flatnonzero((kind == ARRIVED) & there & before & (residency.after(before) < 0))
        waits = waits[~_has_left(declared, failed, facts["time_ns"][waits], since)]
        gone = facts["request"][(facts["time_ns"] == since) & is_any(facts["kind"], ENDS)]
        kept = np.setdiff1d(np.concatenate((ran, facts["request"][waits])), gone)
        findings.append(judged(
            len(ran) + len(waits), np.ones(len(kept), bool), "request {kept}",
            "was on replica {failed}, whose failure at {since:,} ns is declared to lose what it served, and is not "
            "lost",
            "lose what a fault is declared to lose", kept=kept, failed=failed, since=since,
        ))  # fmt: skip
    return merged(*findings)


def _has_left(declared: Declared, replica: int, times: Int64Array, until: int) -> BoolArray:
    """Return whether who came to a replica at instants may be on another one, since it was down before ``until``."""
    found = np.zeros(len(times), bool)
    for failed, since, back in declared.down:
        if failed == replica and since < until:
            found |= times <= back
    return found
