"""RUN-3: which replica of each pool a request goes to: one that lives, and by ``round_robin`` the next one of these.

It goes anew when its replica fails. Which of several that live a policy chooses by loads is judged in ``routed``.
"""

from __future__ import annotations

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, Rows, judged
from clustersim.legality.history import ADMITTED
from clustersim.legality.timeline_rules.requests.moments import given_up
from clustersim.legality.timeline_rules.requests.work import RESUME
from clustersim.legality.timeline_rules.views.reading import Reading


def in_turn(reading: Reading) -> Finding:
    """RUN-3: requests go to replicas that live, by ``round_robin`` to one after the other."""
    facts, declared = reading.history.facts, reading.declared
    pools = [pool for pool in reading.history.pools if pool.dp > 1 and pool.router is not None]
    if not declared.down:  # then others are judged in ``routed``
        pools = [pool for pool in pools if pool.router == "round_robin"]
    if facts is None or not pools:
        return NOTHING
    found = reading.whereabouts
    assert found is not None
    rows, due = np.array(found.astray, np.int64).reshape(-1, 2).T
    mine = np.isin(due, [one for pool in pools for one in range(pool.first_replica, pool.first_replica + pool.dp)])
    rows, due = rows[mine], due[mine]
    return judged(
        len(facts["kind"]), np.ones(len(rows), bool), "request {fact.request}",
        "{what} at {fact.time_ns:,} ns on replica {fact.replica}, but goes to replica {due}, by which of them live and "
        "take turns",
        RESUME, fact=Rows(facts, rows), due=due, what=Rows(("arrives", "is admitted"), facts["kind"][rows] == ADMITTED),
    )  # fmt: skip


def set_aside(reading: Reading) -> Finding:
    """RUN-3: a decode replica sets blocks aside for what leaves the other pool, at an instant at which it can.

    That is when it leaves, or loses the replica that it was on the way to, or when something ends or begins where
    blocks are set aside, or one that comes before it there is lost on its way, or given up; where steps are in flight
    together, also when one passes a stage, which is not followed.
    """
    if not reading.history.hands_over:  # what follows is walked through fact by fact
        return NOTHING
    facts, runs, found = reading.history.facts, reading.runs, reading.whereabouts
    if facts is None or runs is None or found is None:
        return NOTHING
    pool = reading.history.pools[1]
    rows, left = np.array(found.aside, np.int64).reshape(-1, 2).T
    replica, time, request = (facts[name][rows].astype(np.int64) for name in ("replica", "time_ns", "request"))
    early = left < 0
    idle = (time != left) & ~early & (pool.pp == 1)
    others = np.flatnonzero((facts["kind"] != ADMITTED) & (facts["replica"] >= pool.first_replica))
    for number in np.unique(replica[idle]).tolist():
        mine = runs.replica == number
        happens = (
            runs.start[mine],
            runs.recorded_end[mine],
            facts["time_ns"][others[facts["replica"][others] == number]],
        )
        back = [until for failed, _, until in pool.down if failed == number]
        gone = [since for _, since, _ in pool.down] + [*given_up(reading.history).values()]
        idle[(replica == number) & np.isin(time, np.concatenate((*happens, back, gone)))] = False
    return judged(
        len(rows), early | idle, "request {request}",
        "blocks are set aside for it at {time:,} ns on replica {replica}, when {why}",
        "set blocks aside for what was computed, as soon as there are some", request=request, time=time,
        replica=replica, why=Rows(("nothing ends or begins there", "it has not left the other pool"), early),
    )  # fmt: skip


def in_vain(reading: Reading) -> Finding:
    """RUN-3: what was set aside is given back in vain when what a request is on the way from or to fails."""
    facts = reading.history.facts
    if facts is None or not reading.history.hands_over or (reservations := reading.hand_overs.reservations) is None:
        return NOTHING
    begun = dict(zip(reservations.reserved.tolist(), reservations.begun.tolist(), strict=True))
    source = np.array(
        [facts["replica"][begun[row]] if begun[row] >= 0 else -1 for row in reservations.of_vain.tolist()]
    )
    request, replica, time = (facts[name][reservations.vain] for name in ("request", "replica", "time_ns"))
    fails = np.zeros(len(time), bool)
    for failed, since, _ in reading.declared.down:
        fails |= (time == since) & ((replica == failed) | (source == failed))
    return judged(
        len(time), ~fails, "request {request}",
        "what was set aside for it on replica {replica} is given back at {time:,} ns, when neither that nor replica "
        "{source} fails",
        "let what was computed arrive where blocks are set aside for it", request=request, replica=replica, time=time,
        source=source,
    )  # fmt: skip
