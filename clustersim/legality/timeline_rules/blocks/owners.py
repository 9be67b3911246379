"""KV-6 where SP ranks keep whole sequences each: none of them allocates more blocks than it has.

What a sequence has at least follows from its pieces: blocks for all entries of a chunk since the step of it began, and
for those and one more since a decode began. Between pieces of one turn it keeps them.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import SWAPPED_OUT, Declared
from clustersim.legality.timeline_rules.views.reading import Reading


def fits_each_rank(reading: Reading) -> Finding:
    """KV-6: what sequences of one SP rank hold at least, at a time, fits its share of the pool.

    Not looked at where blocks are shared or swapped, or something fails: then pieces don't tell who holds how much.
    """
    history = reading.history
    owners = reading.owners
    if owners is None:
        return NOTHING
    facts = history.facts
    if facts is None or (facts["kind"] == SWAPPED_OUT).any() or history.declared.down:
        return NOTHING
    return merged(*(_of_pool(reading, declared, owners) for declared in history.pools))


def _of_pool(reading: Reading, declared: Declared, owners: Int64Array) -> Finding:
    pieces, size = reading.pieces, declared.block_tokens
    assert pieces is not None
    if declared.sp == 1 or declared.sp_decode != "dp" or reading.prefixes.may_share(declared):
        return NOTHING
    if size is None or declared.pool_blocks is None:
        return NOTHING
    mine = (pieces.replica >= declared.first_replica) & (pieces.replica < declared.first_replica + declared.dp)
    here = np.flatnonzero(mine & reading.sound[np.where(mine, pieces.replica, 0)])
    if not len(here):
        return NOTHING
    replica, request = pieces.replica[here], pieces.request[here]
    held = -(-(pieces.computed[here] + np.where(pieces.is_chunk[here], pieces.count[here], 1)) // size)
    goes_on = np.zeros(len(here), bool)
    goes_on[:-1] = (request[1:] == request[:-1]) & (replica[1:] == replica[:-1]) & ~pieces.restarts[here[1:]]
    until = np.where(goes_on, np.append(pieces.begin[here][1:], 0), pieces.end[here])
    owner = owners[here]
    known = np.flatnonzero(owner >= 0)
    place = (replica * declared.sp + owner)[known]
    time = np.concatenate((pieces.begin[here][known], until[known]))
    change = np.concatenate((held[known], -held[known]))
    order = np.lexsort((change, time, np.concatenate((place, place))))
    live: Int64Array = np.cumsum(change[order])  # 0 where the next rank begins
    share, of = declared.pool_blocks // declared.sp, np.concatenate((place, place))[order]
    return judged(
        len(known), live > share, "replica {replica}, SP rank {s}",
        "its sequences hold {live:,} blocks or more at {time:,} ns, the rank has {share:,}",
        "let a sequence be kept by an SP rank that has blocks for it", replica=of // declared.sp, s=of % declared.sp,
        live=live, time=Rows(time, order), share=share,
    )  # fmt: skip
