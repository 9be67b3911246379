"""Copies of K/V blocks between the ranks of a replica and their hosts, as the core has logged them.

All ranks that keep entries copy alike. By events, also where copies meet others: ``replay.events.swaps``.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.input import PoolInput
from clustersim.replay.replica_log import same
from clustersim.timeline.record import Recorder
from clustersim.timeline.tables import ALL_HEADS, ALL_LAYERS, HOST


def record_copies(recorder: Recorder, pool: PoolInput, replica: int, stage: int, table: Int64Array) -> None:
    """Record copies of a stage: rows of request, whether it is out, tokens, blocks, start, end, and the SP rank."""
    assert pool.host is not None
    plan, keeping = pool.plan, pool.plan.tp
    each = np.repeat(table, keeping, axis=0)
    request, out, tokens, blocks, start, end, owner = each.T
    rows, here = len(each), same(replica, len(each))
    rank = np.tile((replica * plan.pp + stage) * plan.stage_ranks + np.arange(keeping), len(table)) + owner * keeping
    recorder.moves.extend_columns(
        request=request, from_replica=here, from_rank=np.where(out, rank, HOST), to_replica=here,
        to_rank=np.where(out, HOST, rank), layer=same(ALL_LAYERS, rows), head=same(ALL_HEADS, rows),
        heads=same(ALL_HEADS, rows), first=same(0, rows), tokens=tokens, bytes=blocks * pool.host.block_bytes[stage],
        start_ns=start, end_ns=end,
    )  # fmt: skip
