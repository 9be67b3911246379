"""Communication beside the passes of stages, rank by rank."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.tables import HOST, Tables

Times = tuple[Int64Array, Int64Array]
"""Starts and ends."""


class Beside:
    """Communication beside the passes: sends and receives between stages, and moves of K/V entries.

    Parameters
    ----------
    tables : Tables
    replicas : int
    """

    def __init__(self, tables: Tables, replicas: int) -> None:
        self.tables = tables
        self.ranks = tables.sp_tp[0] * tables.sp_tp[1]
        count = len(tables.transfers["at"])
        at = tables.transfers["at"][:, None] + np.arange(2 * self.ranks)
        self.times = tables.transfer_times[at].reshape(count, 2, self.ranks)
        self.sent: dict[tuple[int, int], Int64Array] = {}
        for replica in range(replicas if count else 0):
            for stage in range(tables.stages - 1):
                mine = (tables.transfers["replica"] == replica) & (tables.transfers["stage"] == stage)
                self.sent[replica, stage] = np.flatnonzero(mine)

    def of(self, replica: int, stage: int, local: int) -> Times:
        """Return starts and ends of all that one rank sends, receives and moves."""
        nothing = np.empty(0, np.int64)
        rows = np.concatenate([self.sent.get((replica, at), nothing) for at in (stage - 1, stage)])
        starts, ends = self.times[rows, 0, local], self.times[rows, 1, local]
        moves = self.tables.moves
        if len(moves["request"]):
            rank = (replica * self.tables.stages + stage) * self.ranks + local
            mine = (moves["from_rank"] == rank) | (moves["to_rank"] == rank)
            starts, ends = (
                np.concatenate((a, moves[name][mine])) for a, name in ((starts, "start_ns"), (ends, "end_ns"))
            )
        return starts, ends

    def add_busy(self, busy: Int64Array) -> None:
        """Add what sends, receives and moves take to ``busy``, of shape (ranks, streams)."""
        for (replica, stage), rows in self.sent.items():
            took = (self.times[rows, 1] - self.times[rows, 0]).sum(axis=0)
            for word, side in (("send", 0), ("recv", 1)):
                first = (replica * self.tables.stages + stage + side) * self.ranks
                busy[first : first + self.ranks, STREAMS.index(word)] += took
        moves = self.tables.moves
        for word, end in (("kv_out", "from_rank"), ("kv_in", "to_rank")):
            some = moves[end] != HOST
            took = (moves["end_ns"] - moves["start_ns"])[some]
            np.add.at(busy[:, STREAMS.index(word)], moves[end][some], took)
