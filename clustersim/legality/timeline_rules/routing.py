"""RUN-3: which replica of each pool a request goes to: one that lives, and by ``round_robin`` the next one of these.

It goes anew when its replica fails. Which of several that live another policy chooses is judged in ``routed``.
"""

from __future__ import annotations

import numpy as np

from clustersim.legality.history import ADMITTED
from clustersim.legality.timeline_rules.failing import RESUME
from clustersim.legality.timeline_rules.finding import NOTHING, Finding, judged, merged
from clustersim.legality.timeline_rules.reading import Reading


def in_turn(reading: Reading) -> Finding:
    """RUN-3: requests go to replicas that live, by ``round_robin`` to one after the other."""
    facts, given = reading.history.facts, reading.given
    pools = [pool for pool in reading.history.pools or (given,) if pool.dp > 1 and pool.router is not None]
    if not given.down:  # then others are judged in ``routed``
        pools = [pool for pool in pools if pool.role != "decode" and pool.router == "round_robin"]
    if facts is None or not pools:
        return NOTHING
    found = reading.whereabouts
    assert found is not None
    rows, due = np.array(found.astray, np.int64).reshape(-1, 2).T
    mine = np.isin(due, [one for pool in pools for one in range(pool.first_replica, pool.first_replica + pool.dp)])
    rows, due = rows[mine], due[mine]
    request, replica, time, kind = (facts[name][rows] for name in ("request", "replica", "time_ns", "kind"))
    return judged(
        len(facts["kind"]),
        np.ones(len(rows), bool),
        lambda i: f"request {request[i]}",
        lambda i: (
            f"{'is admitted' if kind[i] == ADMITTED else 'arrives'} at {time[i]:,} ns on replica {replica[i]}, but "
            f"goes to replica {due[i]}, by which of them live and take turns"
        ),
        RESUME,
    )
