"""RUN-3: which replica a request goes to: one that lives, and by ``round_robin`` the next one of these.

Which one another policy chooses is judged in ``routed``.
"""

from __future__ import annotations

import numpy as np

from clustersim.legality.history import ARRIVED, REJECTED
from clustersim.legality.timeline_rules.failing import RESUME
from clustersim.legality.timeline_rules.finding import NOTHING, Finding, judged, merged
from clustersim.legality.timeline_rules.reading import Reading


def in_turn(reading: Reading) -> Finding:
    """RUN-3: requests go to replicas that live, by ``round_robin`` to one after the other."""
    facts, given = reading.history.facts, reading.given
    if facts is None or given.router is None or given.dp == 1 or given.first_replica:
        return NOTHING
    rows = reading.facts_of(ARRIVED, REJECTED)
    rows = rows[np.lexsort((rows, facts["time_ns"][rows], facts["request"][rows]))]
    first = np.append(True, facts["request"][rows][1:] != facts["request"][rows][:-1])[: len(rows)]
    rows = rows[first]
    rows = rows[np.lexsort((facts["request"][rows], facts["time_ns"][rows]))]
    time, replica = (facts[name][rows].astype(np.int64) for name in ("time_ns", "replica"))
    down = [one for one in given.down if one[0] < given.dp]
    # What leaves a replica that fails, also one that decodes, takes its turn again.
    changes = np.unique(np.array([instant for one in given.down for instant in one[1:]], np.int64))
    part = np.searchsorted(changes, time, side="right")
    settled = ~np.isin(time, changes)
    lives = np.ones((len(changes) + 1, given.dp), bool)
    for failed, since, until in down:
        lives[np.searchsorted(changes, since, side="right") : np.searchsorted(changes, until, side="right"), failed] = (
            False
        )
    places = np.cumsum(lives, axis=1) - 1
    count = lives.sum(axis=1)
    inside = (replica >= 0) & (replica < given.dp)
    at = np.where(inside, replica, 0)
    dead = settled & inside & (count[part] > 0) & ~lives[part, at]
    fault = judged(
        len(rows),
        dead,
        lambda i: f"request {facts['request'][rows[i]]}",
        lambda i: f"goes to replica {replica[i]} at {time[i]:,} ns, which has failed, while another one lives",
        "send requests to replicas that live",
    )
    if given.router != "round_robin":
        return fault
    follows = settled[1:] & settled[:-1] & inside[1:] & inside[:-1] & (part[1:] == part[:-1]) & (count[part[1:]] > 0)
    here, before = places[part[1:], at[1:]], places[part[1:], at[:-1]]
    skips = follows & ~dead[1:] & ~dead[:-1] & (here != (before + 1) % np.maximum(count[part[1:]], 1))
    return merged(
        fault,
        judged(
            0,
            skips,
            lambda i: f"request {facts['request'][rows[i + 1]]}",
            lambda i: (
                f"goes to replica {replica[i + 1]} at {time[i + 1]:,} ns, after one that went to {replica[i]}, where "
                f"{count[part[i + 1]]} replicas live and take turns"
            ),
            RESUME,
        ),
    )
