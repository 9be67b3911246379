"""KV-2 across ranks: what a prefill moved to where decode reads it has arrived before the first decode step reads."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import SpanTable
from clustersim.legality.timeline_rules.blocks.holding import enough
from clustersim.legality.timeline_rules.transfers.hand_overs import reads_moved
from clustersim.legality.timeline_rules.transfers.swaps import comes_back_first
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.pieces import Pieces
from clustersim.legality.timeline_rules.views.reading import Reading


def reads_what_is_there(reading: Reading) -> Finding:
    """KV-2: what a sequence reads has arrived where it reads it, and has a block."""
    return merged(_arrived(reading), comes_back_first(reading), enough(reading))


def _arrived(reading: Reading) -> Finding:
    """A sequence decodes on a rank when all that its prompt chunks moved there has arrived.

    Of a folded timeline that follows from PH-1: a step has not ended before its last operator. With ``sp_decode: dp``
    the record does not say which rank reads which sequence. What another replica handed over has a table of its own.
    """
    return merged(_from_elsewhere(reading), reads_moved(reading.hand_overs, reading.pieces))


def _from_elsewhere(reading: Reading) -> Finding:
    spans, pieces, declared = reading.history.spans, reading.pieces, reading.declared
    if spans is None or pieces is None or not spans.numbered or not declared.mesh or declared.sp_decode == "dp":
        return NOTHING
    move, read = _rows(spans, "kv_move"), _rows(spans, "attention_decode")
    if not len(move) or not len(read):
        return NOTHING
    columns = {name: np.asarray(values, np.int64) for name, values in spans.columns.items()}
    pairs = _pairs(reading, pieces)
    if not len(pairs):
        return NOTHING
    replica, brought, decodes = pairs.T
    scale = int(columns["step"].max()) + 2
    ranks = int(columns["rank"].max()) + 1
    site = (columns["replica"] * scale + columns["step"]) * ranks + columns["rank"]
    moved, reads = Groups(site[move]), Groups(site[read])
    rank = np.arange(ranks)
    sent = moved.find((((replica * scale + brought) * ranks)[:, None] + rank).ravel())
    met = reads.find((((replica * scale + decodes) * ranks)[:, None] + rank).ravel())
    both = np.flatnonzero((sent >= 0) & (met >= 0))
    until, start = moved.most(columns["end_ns"][move])[sent[both]], reads.least(columns["start_ns"][read])[met[both]]
    row, local = np.divmod(both, ranks)
    return judged(
        len(both), start < until, "replica {replica}, step {step}, rank {rank}",
        "attention_decode starts at {start:,} ns, but the entries that step {mover} moves there arrive at {until:,} ns",
        "let entries that another rank wrote arrive before attention reads them", replica=Rows(replica, row),
        step=Rows(decodes, row), rank=local, start=start, mover=Rows(brought, row), until=until,
    )  # fmt: skip


def _rows(spans: SpanTable, name: str) -> Int64Array:
    chosen = np.array([symbol.startswith(name) for symbol, _, _ in spans.symbols], bool)
    return np.flatnonzero(chosen[spans.columns["symbol"]])


def _pairs(reading: Reading, pieces: Pieces) -> Int64Array:
    """Return replica, step of a prompt chunk, and first decode step after it, of shape (pairs, 3)."""
    found = []
    for first, last in zip(pieces.opens.tolist(), (pieces.closes + 1).tolist(), strict=True):
        chunks: list[int] = []
        for at in range(first, last):
            if not reading.plain[at]:
                break
            if pieces.is_chunk[at]:
                chunks = [*([] if pieces.restarts[at] else chunks), at]
            else:
                step = int(pieces.first_step[at])
                found += [(int(pieces.replica[at]), int(pieces.last_step[chunk]), step) for chunk in chunks]
                chunks = []
    return np.array(found, np.int64).reshape(-1, 3)
