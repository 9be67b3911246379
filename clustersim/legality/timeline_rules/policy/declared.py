"""What was declared of who is served when, replica by replica, and who could decode at which instant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.declared.policy import Policy
from clustersim.legality.history import (
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    RECEIVED,
    SWAPPED_IN,
    SWAPPED_OUT,
    Declared,
)
from clustersim.legality.timeline_rules.views.reading import Reading

NO_LIMIT: Final = np.iinfo(np.int64).max
NEVER: Final = np.iinfo(np.int64).max
WHOLE: Final = ("static", "continuous")
"""Schedulers that take whole prompts, and do not decode beside them."""


class Policies:
    """The policies of a history's pools.

    Parameters
    ----------
    reading : Reading
        Of a history in which each pool has one.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.pools = reading.history.pools
        facts, runs = reading.history.facts, reading.runs
        highest = [pool.first_replica + pool.dp - 1 for pool in self.pools]
        highest += [int(facts["replica"].max(initial=0))] if facts is not None else []
        highest += [len(runs.bounds) - 2] if runs is not None else []
        self.replicas = max(highest) + 1
        first = [pool.first_replica for pool in self.pools]
        self.pool_at = np.searchsorted(first, np.arange(self.replicas), side="right") - 1

    def each(self, of: Callable[[Declared, Policy], int | None], lacking: int = NO_LIMIT) -> Int64Array:
        """Return what ``of`` says of each replica's pool; ``lacking`` where that is None."""
        found = []
        for pool in self.pools:
            assert pool.policy is not None
            value = of(pool, pool.policy)
            found.append(lacking if value is None else value)
        return np.array(found, np.int64)[self.pool_at]

    def can_decode(self) -> Int64Array | None:
        """Return how many sequences could decode when each run of steps began, in flight or not.

        None where facts do not tell: sequences are swapped, or change replicas.
        """
        reading = self.reading
        pieces, runs, known, facts = reading.pieces, reading.runs, reading.known, reading.history.facts
        if pieces is None or runs is None or known is None or facts is None or not reading.plain.all():
            return None
        if reading.history.hands_over or reading.facts_of(SWAPPED_OUT, SWAPPED_IN, HANDED_OVER, RECEIVED).size:
            return None
        after = known + pieces.gave - pieces.computed - pieces.count
        ready = np.flatnonzero(pieces.is_chunk & (after == 1) & (pieces.tokens + pieces.gave > 0))
        rows = reading.facts_of(FINISHED, PREEMPTED, CANCELLED, LOST)
        # Who leaves could decode if it had become ready more often than it had left before.
        request = np.concatenate((pieces.request[ready], facts["request"][rows].astype(np.int64)))
        time = np.concatenate((pieces.end[ready], facts["time_ns"][rows].astype(np.int64)))
        replica = np.concatenate((pieces.replica[ready], facts["replica"][rows].astype(np.int64)))
        leaves = np.repeat((0, 1), (len(ready), len(rows)))
        order = np.lexsort((leaves, time, request))
        opened = np.append(0, leaves[order] == 0)[:-1].astype(bool)
        opened &= np.append(False, request[order][1:] == request[order][:-1])
        change = np.where(leaves[order] == 0, 1, np.where(opened, -1, 0))
        replica, time = replica[order], time[order]
        by_time = np.lexsort((time, replica))
        total = np.append(0, np.cumsum(change[by_time]))
        found = np.zeros(len(runs), np.int64)
        for number in range(len(runs.bounds) - 1):
            mine = slice(int(runs.bounds[number]), int(runs.bounds[number + 1]))
            low, high = np.searchsorted(replica[by_time], (number, number + 1)).tolist()
            at = low + np.searchsorted(time[by_time][low:high], runs.start[mine], side="right")
            found[mine] = total[at] - total[low]
        return found


def policies_of(reading: Reading) -> Policies | None:
    """Return the policies of a history; None where some pool's was not declared."""
    return None if any(pool.policy is None for pool in reading.history.pools) else Policies(reading)
