"""Sends between stages: when the output of each pass has arrived at the next stage."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import STREAMS, SpanTable
from clustersim.legality.timeline_rules.grouping import Groups
from clustersim.legality.timeline_rules.occupation import Occupation, order_key
from clustersim.legality.timeline_rules.pieces import BoolArray
from clustersim.timeline.tables import Tables

Arrivals = tuple[Occupation, Int64Array, Int64Array, BoolArray]
"""Passes, the pass of the next stage of each (−1: none), when its output has arrived, and whether it was sent."""


def sends(tables: Tables, passes: Occupation) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return starts and ends of the sends, of shape (passes, ranks), by the pass whose output they carry.

    Returns
    -------
    (starts, ends, has)
        ``has`` is how many rows of transfers each pass has.
    """
    ranks = tables.sp_tp[0] * tables.sp_tp[1]
    transfers = tables.transfers
    key = order_key(*(transfers[name].astype(np.int64) for name in ("replica", "stage", "step")))
    own = passes.key()
    at = np.minimum(np.searchsorted(own, key), max(len(own) - 1, 0))
    starts, ends = (np.zeros((len(own), ranks), np.int64) for _ in range(2))
    has = np.zeros(len(own), np.int64)
    if len(key) and len(own):
        known = own[at] == key
        at, rows = at[known], np.flatnonzero(known)
        times = tables.transfer_times[transfers["at"][rows].astype(np.int64)[:, None] + np.arange(2 * ranks)]
        starts[at], ends[at] = times[:, :ranks], times[:, ranks:]
        np.add.at(has, at, 1)
    return starts, ends, has


def sent_bytes(tables: Tables, passes: Occupation) -> Int64Array:
    """Return what sends carry, of shape (passes, ranks), by the pass whose output that is."""
    ranks = tables.sp_tp[0] * tables.sp_tp[1]
    transfers, own = tables.transfers, passes.key()
    key = order_key(*(transfers[name].astype(np.int64) for name in ("replica", "stage", "step")))
    at = np.minimum(np.searchsorted(own, key), max(len(own) - 1, 0))
    found = np.zeros((len(own), ranks), np.int64)
    if len(key) and len(own):
        rows = np.flatnonzero(own[at] == key)
        found[at[rows]] = tables.sent_bytes(rows, ranks)
    return found


def _next(passes: Occupation) -> Int64Array:
    """Return the pass of the next stage for each pass, −1 where there is none."""
    own = passes.key()
    key = order_key(passes.replica, passes.stage + 1, passes.step)
    at = np.minimum(np.searchsorted(own, key), max(len(own) - 1, 0))
    return np.where(own[at] == key, at, -1) if len(own) else at


def arrivals_of(tables: Tables, passes: Occupation) -> Arrivals:
    """Return the arrivals of a folded timeline; outputs of ranks that idle need not arrive."""
    _, ends, has = sends(tables, passes)
    return passes, _next(passes), ends.max(axis=1, initial=0), has == 1


def arrivals_in(table: SpanTable) -> Arrivals:
    """Return the arrivals of single spans: those of the streams ``send`` carry outputs."""
    columns = {name: np.asarray(values, np.int64) for name, values in table.columns.items()}
    carries = (columns["stream"] == STREAMS.index("send")) | (columns["stream"] == STREAMS.index("recv"))
    key = order_key(columns["replica"], columns["stage"], columns["step"])
    inner, sent = np.flatnonzero(~carries), np.flatnonzero(columns["stream"] == STREAMS.index("send"))
    groups, out = Groups(key[inner]), Groups(key[sent])
    first = inner[groups.some]
    passes = Occupation(
        replica=columns["replica"][first],
        stage=columns["stage"][first],
        step=columns["step"][first],
        count=np.ones(len(first), np.int64),
        start=groups.least(columns["start_ns"][inner]),
        end=groups.most(columns["end_ns"][inner]),
        leaves=None,
        sends_for=None,
    )
    at = out.find(groups.keys)
    arrived = (
        np.where(at >= 0, out.most(columns["end_ns"][sent])[at], 0) if len(out) else np.zeros(len(first), np.int64)
    )
    return passes, _next(passes), arrived, at >= 0
