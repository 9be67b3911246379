"""Sends between stages: when the output of each pass has arrived at the next stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import STREAMS, SpanTable
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.occupation import Occupation, in_order, order_key
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.timeline.tables import Tables


class Arrivals(NamedTuple):
    """Passes, the pass of the next stage of each (−1: none), when its output has arrived, and whether it was sent."""

    passes: Occupation
    following: Int64Array
    arrived: Int64Array
    sent: BoolArray


class Sends(NamedTuple):
    """Sends by the pass whose output they carry: int64 arrays of shape (passes, ranks).

    ``has`` is how many rows of transfers each pass has, of shape (passes,).
    """

    starts: Int64Array
    ends: Int64Array
    carried: Int64Array
    has: Int64Array


def sends_of(tables: Tables, passes: Occupation) -> Sends:
    """Return the sends of a folded timeline."""
    ranks = tables.sp_tp[0] * tables.sp_tp[1]
    transfers, own = tables.transfers, passes.key
    replica, stage, step = (transfers[name].astype(np.int64) for name in ("replica", "stage", "step"))
    rows = in_order(replica, stage, step)
    key = order_key(replica, stage, step)[rows]
    starts, ends, carried = (np.zeros((len(own), ranks), np.int64) for _ in range(3))
    has = np.zeros(len(own), np.int64)
    if len(key) and len(own):
        at = np.flatnonzero(passes.stage < tables.stages - 1)
        if not (passes.distinct and np.array_equal(own[at], key)):  # not one of each pass but those of the last stage
            at = np.minimum(np.searchsorted(own, key), len(own) - 1)
            known = own[at] == key
            at, rows = at[known], rows[known]
        first = transfers["at"][rows].astype(np.int64)
        for rank in range(ranks):
            starts[at, rank] = tables.transfer_times[first + rank]
            ends[at, rank] = tables.transfer_times[first + (ranks + rank)]
        carried[at] = tables.sent_bytes(rows, ranks)
        has = np.bincount(at, minlength=len(own))
    return Sends(starts, ends, carried, has)


def _next(passes: Occupation) -> Int64Array:
    """Return the pass of the next stage for each pass, −1 where there is none."""
    own = passes.key
    key = order_key(passes.replica, passes.stage + 1, passes.step)
    at = np.minimum(np.searchsorted(own, key), max(len(own) - 1, 0))
    return np.where(own[at] == key, at, -1) if len(own) else at


def arrivals_of(sends: Sends, passes: Occupation) -> Arrivals:
    """Return the arrivals of a folded timeline; outputs of ranks that idle need not arrive."""
    return Arrivals(passes, _next(passes), sends.ends.max(axis=1, initial=0), sends.has == 1)


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
    return Arrivals(passes, _next(passes), arrived, at >= 0)
