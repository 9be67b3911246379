"""Copies of K/V blocks between the ranks of a lane and their host, where nothing else is ever on the links between.

What a copy takes is known as it begins then (:mod:`clustersim.replay.links.host_copies`), and all ranks of the lane
that keep entries copy alike; by events, also where copies meet others: :mod:`clustersim.replay.events.swaps`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.lanes.log import LaneLog, same, taken_rows
from clustersim.timeline.tables import ALL_HEADS, ALL_LAYERS, HOST


class CopyLog(LaneLog):
    """The log of a lane that swaps; other parameters are those of :class:`LaneLog`.

    Parameters
    ----------
    block_bytes : sequence of int
        Of a K/V block, on each rank of each stage …
    keeping : int
        … that keeps entries: the first ones. SP ranks that idle while others decode keep none.
    """

    def __init__(self, block_bytes: Sequence[int], keeping: int, *args: Any) -> None:
        super().__init__(*args)
        self.block_bytes = block_bytes
        self.keeping = keeping
        self._copies = array("q")

    def copied(self, request: int, out: bool, tokens: int, blocks: int, start: int, end: int) -> None:
        """Append a copy that all ranks that keep entries have ended."""
        self._copies.extend((request, out, tokens, blocks, start, end))

    def flush(self) -> None:
        """Hand everything to the recorder."""
        super().flush()
        self.hand_copies(taken_rows(self._copies, 6))

    def hand_copies(self, table: Int64Array, stage: int = 0) -> None:
        """Hand on rows of what :meth:`copied` appends, of a stage."""
        each = np.repeat(table, self.keeping, axis=0)
        request, out, tokens, blocks, start, end = each.T
        first, rows = (self.replica * self.stages + stage) * self.ranks, len(each)
        rank = np.tile(first + np.arange(self.keeping), len(table))
        here = same(self.replica, rows)
        self.recorder.moves.extend_columns(
            request=request, from_replica=here, from_rank=np.where(out, rank, HOST), to_replica=here,
            to_rank=np.where(out, HOST, rank), layer=same(ALL_LAYERS, rows), head=same(ALL_HEADS, rows),
            heads=same(ALL_HEADS, rows), first=same(0, rows), tokens=tokens, bytes=blocks * self.block_bytes[stage],
            start_ns=start, end_ns=end,
        )  # fmt: skip
