"""K/V blocks in use where nobody said whether sequences share prefixes: fewer than without may be right.

Where two sequences that fill a block are there at a time, they may share it. More blocks than all of them need without
sharing are wrong anyway, and so are fewer where a sequence is alone.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces


class Neighbours:
    """Sequences that may share blocks.

    Parameters
    ----------
    pieces : Pieces
    size : int
        Tokens per block.
    rows, turns, time : int64 arrays
        Facts that give blocks back, the turn that each ends (−1: none), and when.
    """

    def __init__(self, pieces: Pieces, size: int, rows: Int64Array, turns: Int64Array, time: Int64Array) -> None:
        count = int(pieces.turn_of.max(initial=-1)) + 1
        reach, self._end = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max)
        np.maximum.at(reach, pieces.turn_of, pieces.computed + pieces.count)
        self._end[turns[turns >= 0]] = time[turns >= 0]
        self._full = reach >= size
        self._turn = np.full(int(rows.max(initial=-1)) + 2, -1, np.int64)
        self._turn[rows] = turns
        # A sequence may be on two replicas, one after the other.
        where = np.unique(np.stack((pieces.replica, pieces.turn_of)), axis=1)
        where = where[:, self._full[where[1]]]
        begin = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(begin, pieces.turn_of, pieces.begin)
        self._replica, self._begin, self._until = where[0], begin[where[1]], self._end[where[1]]

    def several(self, replica: Int64Array, time: Int64Array, rows: Int64Array | None = None) -> BoolArray:
        """Return whether two of them are on a replica at an instant, without those that facts at ``rows`` end."""
        there = np.zeros(len(replica), np.int64)
        for number in np.unique(replica).tolist():
            mine, owned = np.flatnonzero(replica == number), self._replica == number
            begun = np.searchsorted(np.sort(self._begin[owned]), time[mine], side="right")
            ended = np.searchsorted(np.sort(self._until[owned]), time[mine], side="left")
            there[mine] = begun - ended
        if rows is not None:
            turn = self._turn[rows]
            ends = (turn >= 0) & np.append(self._full, False)[turn]
            there -= ends & (np.append(self._end, -1)[turn] == time)
        found: BoolArray = there > 1
        return found
