"""KV-5 where nothing says what prompts hold: tokens that are taken over were computed on that replica before.

The last token of what a sequence takes over was computed there by another one at that place of its sequence, or came
with a hand-over; so was each block that this one had taken over in turn. A history begins with nothing cached.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import RECEIVED
from clustersim.legality.timeline_rules.blocks.holding import Holds, holds_of, rows_by
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sharing import Reused, failures
from clustersim.timeline.passes import within

_NEVER: Final = np.iinfo(np.int64).max
_FIX: Final = "take over full blocks that this replica has computed before, and compute the rest"


def were_there(reading: Reading) -> Finding:
    """Judge what sequences take over by where it can have come from; a step may take over what it computes itself."""
    reused, pieces, size = reading.prefixes.reused, reading.pieces, reading.declared.block_tokens
    if reused is None or pieces is None or pieces.astray:
        return NOTHING
    some = reused.tokens > 0
    parts = some & (reused.tokens % size != 0) if size is not None else np.zeros(len(some), bool)
    opened = reused.piece >= 0
    time = np.where(opened, pieces.begin[reused.piece], reused.time) if len(pieces) else reused.time
    return merged(
        _said(reused, parts, f"a block of {size} tokens only in part", int(some.sum())),
        _said(reused, some & ~parts & (_first(reading, reused) > time), "which nobody had computed there by then"),
        _contents(reading, reused, some & opened & ~parts),
    )


def _said(reused: Reused, broken: BoolArray, message: str, looked: int = 0) -> Finding:
    return judged(
        looked, broken, "replica {reuse.replica}, request {reuse.request}",
        "takes over {reuse.tokens:,} tokens at {reuse.time:,} ns, {message}", _FIX, reuse=Rows(reused), message=message,
    )  # fmt: skip


def _first(reading: Reading, reused: Reused) -> Int64Array:
    """Return when the last of the tokens of each fact began to be computed there for the first time since a failure."""
    pieces, facts, down = reading.pieces, reading.history.facts, reading.declared.down
    assert pieces is not None
    assert facts is not None
    came = reading.facts_of(RECEIVED)
    replica = np.concatenate((pieces.replica, facts["replica"][came].astype(np.int64)))
    time = np.concatenate((pieces.begin, facts["time_ns"][came].astype(np.int64)))
    start = np.concatenate((pieces.computed, np.zeros(len(came), np.int64)))
    end = np.concatenate((pieces.computed + pieces.count, facts["value"][came].astype(np.int64)))
    asked = np.unique(reused.tokens)
    low, high = (np.searchsorted(asked, edge, side="right") for edge in (start, end))
    many = np.maximum(high - low, 0)
    of = np.repeat(np.arange(len(many)), many)
    lives = len(down) + 1

    def places(replica: Int64Array, time: Int64Array, at: Int64Array) -> Int64Array:
        return (replica * lives + failures(replica, time, down)) * len(asked) + at

    supplied = places(replica[of], time[of], low[of] + within(many))
    wanted = places(reused.replica, reused.time, np.searchsorted(asked, reused.tokens))
    keys, at = np.unique(np.concatenate((supplied, wanted)), return_inverse=True)
    found = np.full(len(keys), _NEVER)
    np.minimum.at(found, at[: len(of)], time[of])
    return found[at[len(of) :]]


def _contents(reading: Reading, reused: Reused, looked: BoolArray) -> Finding:
    """Judge whether a sequence holds as many blocks as it takes over of contents that were there before."""
    holds, pieces, size = holds_of(reading), reading.pieces, reading.declared.block_tokens
    if holds is None or size is None or pieces is None:
        return NOTHING
    known = _held_before(holds)
    of_rows = rows_by(holds.replica, holds.request)
    taken, had = reused.tokens // size, np.full(len(looked), _NEVER)
    for i in np.flatnonzero(looked).tolist():
        rows = of_rows.get((int(reused.replica[i]), int(reused.request[i])), np.empty(0, np.int64))
        begin = pieces.begin[reused.piece[i]]
        rows = rows[(holds.taken[rows] <= begin) & (holds.until[rows] > begin)]
        if len(rows) >= taken[i]:  # too few blocks are KV-2's
            had[i] = known[rows].sum()
    return judged(
        int(looked.sum()), had < taken, "replica {reuse.replica}, request {reuse.request}",
        "takes over {reuse.tokens:,} tokens at {reuse.time:,} ns, in {taken:,} of its blocks, but only {had:,} have a "
        "content that a block of this replica had before",
        _FIX, reuse=Rows(reused), taken=taken, had=had,
    )  # fmt: skip


def _held_before(holds: Holds) -> BoolArray:
    """Return whether the content of each row was held before; a content that was not told may be any of its block."""
    first: dict[Hashable, tuple[int, set[int]]] = {}
    rows = list(
        zip(*(c.tolist() for c in (holds.replica, holds.block, holds.content, holds.taken, holds.request)), strict=True)
    )
    for replica, block, content, taken, request in rows:
        for key in (("content", replica, content), ("block", replica, block), ("blank", replica, block, content < 0)):
            at, who = first.get(key, (_NEVER, set()))
            if taken < at:
                first[key] = taken, {request}
            elif taken == at:
                who.add(request)

    def before(key: Hashable, taken: int, request: int) -> bool:
        at, who = first.get(key, (_NEVER, set()))
        return at < taken or (at == taken and who != {request})

    return np.array(
        [
            before(("blank", replica, block, True), taken, request)
            or before(("content", replica, content) if content >= 0 else ("block", replica, block), taken, request)
            for replica, block, content, taken, request in rows
        ],
        bool,
    )
