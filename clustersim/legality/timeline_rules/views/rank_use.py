"""K/V blocks in use on each SP rank, where SP ranks keep whole sequences each (``sp.decode: dp``).

A step takes blocks when it is decided: first for what runs already, then for whom it takes up, one after the other.
What is set aside for sequences that come from another pool is taken right before a step.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import ADMITTED, Declared
from clustersim.legality.timeline_rules.transfers.owners import owner_at
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.use import returns
from clustersim.timeline.passes import within

TOLD, GROWTH, TAKEN_UP = range(3)
"""Phases of an instant: what facts say, blocks for what runs, and for whom the step takes up."""


class RankUse:
    """Blocks in use on each SP rank of the replicas of one pool.

    Parameters
    ----------
    reading : Reading
        Of a history with facts and pieces, in which nothing is swapped, shared, or fails.
    declared : Declared
        Of the pool, with blocks and their size.

    Attributes
    ----------
    admitted : int64 array of shape (admissions,)
        Rows of facts, in the order of replica and record.
    opens : int64 array of shape (admissions,)
        The piece that begins with each; −1 where the step for which it is taken up was not recorded.
    aside : bool array of shape (admissions,)
        Whether blocks are set aside for what another pool computes.
    """

    def __init__(self, reading: Reading, declared: Declared) -> None:
        facts, pieces = reading.history.facts, reading.pieces
        assert facts is not None
        assert pieces is not None
        self.reading, self.declared, self.size = reading, declared, declared.block_tokens or 1
        replica = facts["replica"]
        here = (replica >= declared.first_replica) & (replica < declared.first_replica + declared.dp)
        rows = np.flatnonzero(here & (facts["kind"] == ADMITTED))
        self.admitted = rows[np.lexsort((rows, facts["time_ns"][rows], replica[rows]))]
        self.aside = np.isin(self.admitted, reading.hand_overs.reserved)
        at = pieces.opened_by(facts, self.admitted, failures=False)
        mine = (at >= 0) & (np.append(pieces.begin, -1)[at] == facts["time_ns"][self.admitted]) & ~self.aside
        self.opens = np.where(mine, at, -1)

    def free(self, replica: Int64Array, time: Int64Array, phase: Int64Array, row: Int64Array) -> Int64Array:
        """Return the blocks that are free on each SP rank right before something: (asked, ranks).

        Parameters
        ----------
        replica, time, phase, row : int64 arrays of shape (asked,)
            ``row`` is that of a fact, where others of the same phase come before it.
        """
        declared = self.declared
        events = self._events
        asked = np.stack((replica, time, phase, row))
        key = np.lexsort((np.append(events[4], np.full(len(row), -1)), *np.append(events[:4], asked, axis=1)[::-1]))
        position = np.empty(len(key), np.int64)
        position[key] = np.arange(len(key))
        of_event, of_asked = position[: events.shape[1]], position[events.shape[1] :]
        found = np.empty((len(row), declared.sp), np.int64)
        share = (declared.pool_blocks or 0) // declared.sp
        for rank in range(declared.sp):
            mine = np.flatnonzero(events[4] == rank)
            mine = mine[np.argsort(of_event[mine])]
            used = np.append(0, np.cumsum(events[5, mine]))
            at = np.searchsorted(of_event[mine], of_asked)
            first = np.searchsorted(events[0, mine], replica)
            found[:, rank] = share - (used[at] - used[first])
        return found

    @cached_property
    def _events(self) -> Int64Array:
        """Replica, time, phase, row of a fact or −1, SP rank, and the blocks that are taken; a column for each."""
        facts, pieces = self.reading.history.facts, self.reading.pieces
        assert facts is not None
        assert pieces is not None
        rows, _, gives = returns(self.reading.history, pieces, self.size, self.reading.hand_overs)
        told = np.stack((facts["replica"][rows], facts["time_ns"][rows], np.full(len(rows), TOLD), rows))
        chunk = np.flatnonzero(pieces.is_chunk)
        after, before = (pieces.computed + pieces.count)[chunk], pieces.computed[chunk]
        takes = -(-after // self.size) - -(-before // self.size)
        row_of = np.full(len(pieces), -1)
        row_of[self.opens[self.opens >= 0]] = self.admitted[self.opens >= 0]
        row = row_of[chunk]
        written = np.stack((pieces.replica[chunk], pieces.begin[chunk], np.where(row >= 0, TAKEN_UP, GROWTH), row))
        who, run = self._growth()
        runs = self.reading.runs
        assert runs is not None
        grown = np.stack((pieces.replica[who], runs.start[run], np.full(len(run), GROWTH), np.full(len(run), -1)))
        request = facts["request"][rows].astype(np.int64)
        every = np.concatenate((told, written, grown), axis=1).astype(np.int64)
        folded = self.reading.history.folded
        assert folded is not None
        owners = self.reading.owners
        assert owners is not None
        leaves = (gives >= 0).astype(np.int64)  # it may be admitted anew at once
        of_rows = owner_at(folded.owners, every[0, : len(rows)], request, every[1, : len(rows)] - leaves)
        owner = np.concatenate((of_rows, owners[chunk], owners[who]))
        found = np.stack((*every, owner, np.concatenate((-gives, takes, np.ones(len(run), np.int64)))))
        return found[:, np.argsort(found[0], kind="stable")]

    def _growth(self) -> tuple[Int64Array, Int64Array]:
        """Return the episode and the run of steps of each block that a decode takes."""
        pieces, runs = self.reading.pieces, self.reading.runs
        assert pieces is not None
        assert runs is not None
        decodes = np.flatnonzero(~pieces.is_chunk)
        offset = -pieces.computed[decodes] % self.size
        many = np.maximum(0, -(-(pieces.count[decodes] - offset) // self.size))
        base = runs.place[pieces.first_run[decodes]] + offset
        run = runs.run_at_place[np.repeat(base, many) + within(many) * self.size]
        return np.repeat(decodes, many), run.astype(np.int64)
