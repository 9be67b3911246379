"""What was declared of who is served when, replica by replica, and who could decode at which instant."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.declared.policy import Policy
from clustersim.legality.history import (
    CANCELLED,
    FINISHED,
    LOST,
    PREEMPTED,
    RECEIVED,
    SWAPPED_IN,
    SWAPPED_OUT,
    Declared,
)
from clustersim.legality.timeline_rules.views.rank_use import TAKEN_UP, RankUse
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.rows_of import in_order

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
        self._free: dict[int, Int64Array | None] = {}

    @property
    def replicas(self) -> int:
        """How many replicas the history names, or more."""
        return len(self.pool_at)

    @cached_property
    def pool_at(self) -> Int64Array:
        """The number of the pool of each replica that the history names."""
        facts, runs = self.reading.history.facts, self.reading.runs
        highest = [pool.first_replica + pool.dp - 1 for pool in self.pools]
        highest += [int(facts["replica"].max(initial=0))] if facts is not None else []
        highest += [len(runs.bounds) - 2] if runs is not None else []
        first = [pool.first_replica for pool in self.pools]
        return np.searchsorted(first, np.arange(max(highest) + 1), side="right") - 1

    def each(self, of: Callable[[Declared, Policy], int | None], lacking: int = NO_LIMIT) -> Int64Array:
        """Return what ``of`` says of each replica's pool; ``lacking`` where that is None."""
        found = []
        for pool in self.pools:
            assert pool.policy is not None
            value = of(pool, pool.policy)
            found.append(lacking if value is None else value)
        return np.array(found, np.int64)[self.pool_at]

    def free_at_runs(self, declared: Declared) -> Int64Array | None:
        """Return the blocks free on each SP rank of a pool when each run of steps has been decided: (runs, ranks).

        None where the record does not tell.
        """
        if declared.first_replica not in self._free:
            runs, use = self.reading.runs, rank_use(self.reading, declared)
            known = None if runs is None or use is None else use.free(
                runs.replica, runs.start, np.full(len(runs), TAKEN_UP), np.full(len(runs), NO_LIMIT)
            )  # fmt: skip
            self._free[declared.first_replica] = known
        return self._free[declared.first_replica]

    def can_decode(self) -> Int64Array | None:
        """Return how many sequences could decode when each run of steps began, in flight or not.

        Those that were handed over can since they were received. None where facts do not tell: sequences are swapped,
        or change replicas otherwise.
        """
        reading = self.reading
        pieces, runs, known, facts = reading.pieces, reading.runs, reading.known, reading.history.facts
        if pieces is None or runs is None or known is None or facts is None or not reading.plain.all():
            return None
        fails = any(pool.down for pool in self.pools)
        if reading.facts_of(SWAPPED_OUT, SWAPPED_IN).size or (fails and reading.history.hands_over):
            return None
        after = known + pieces.gave - pieces.computed - pieces.count
        ready = np.flatnonzero(pieces.is_chunk & (after == 1) & (pieces.tokens + pieces.gave > 0))
        came, rows = (reading.facts_of(*kinds) for kinds in ((RECEIVED,), (FINISHED, PREEMPTED, CANCELLED, LOST)))
        decode = self.each(lambda declared, _: declared.role != "prefill") > 0  # others hand over what is computed
        ready, rows = ready[decode[pieces.replica[ready]]], rows[decode[facts["replica"][rows]]]
        # Who leaves could decode if it had become ready more often than it had left before.
        told = np.concatenate((came, rows))
        request = np.concatenate((pieces.request[ready], facts["request"][told].astype(np.int64)))
        time = np.concatenate((pieces.end[ready], facts["time_ns"][told].astype(np.int64)))
        replica = np.concatenate((pieces.replica[ready], facts["replica"][told].astype(np.int64)))
        leaves = np.repeat((0, 1), (len(ready) + len(came), len(rows)))
        order = in_order(request, time, leaves)
        opened = np.append(0, leaves[order] == 0)[:-1].astype(bool)
        opened &= np.append(False, request[order][1:] == request[order][:-1])
        change = np.where(leaves[order] == 0, 1, np.where(opened, -1, 0))
        replica, time = replica[order], time[order]
        by_time = in_order(replica, time)
        replica, time = replica[by_time], time[by_time]
        total = np.append(0, np.cumsum(change[by_time]))
        found = np.zeros(len(runs), np.int64)
        for number in runs.replicas:
            mine = slice(int(runs.bounds[number]), int(runs.bounds[number + 1]))
            low, high = np.searchsorted(replica, (number, number + 1)).tolist()
            at = low + np.searchsorted(time[low:high], runs.start[mine], side="right")
            found[mine] = total[at] - total[low]
        return found


def keeps_whole(declared: Declared) -> bool:
    """Return whether each SP rank of a pool's replicas keeps whole sequences, in blocks of its own."""
    return declared.sp > 1 and declared.sp_decode == "dp"


def rank_use(reading: Reading, declared: Declared) -> RankUse | None:
    """Return the blocks in use on each SP rank of a pool; None where the record does not tell."""
    history, policy = reading.history, declared.policy
    sized = declared.block_tokens is not None and declared.pool_blocks is not None
    if history.folded is None or history.facts is None or reading.pieces is None or not sized or policy is None:
        return None
    swaps = reading.facts_of(SWAPPED_OUT).size > 0
    if (
        swaps
        or declared.down
        or policy.scheduler is None
        or reading.prefixes.may_share(declared)
        or reading.owners is None
    ):
        return None
    return RankUse(reading, declared)


def policies_of(reading: Reading) -> Policies | None:
    """Return the policies of a history; None where some pool's was not declared."""
    return None if any(pool.policy is None for pool in reading.history.pools) else Policies(reading)
