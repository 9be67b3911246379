"""Sends between stages: when the output of each pass has arrived at the next stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import STREAMS, SpanTable
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.occupation import Occupation, in_order, order_key
from clustersim.timeline.passes import parts
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass


class Sent(NamedTuple):
    """Sends of some passes: int64 arrays of shape (passes, ranks), zeros where there is none.

    ``has`` is how many rows of transfers each pass has, of shape (passes,); of several, the last one is told.
    """

    starts: Int64Array
    ends: Int64Array
    carried: Int64Array
    has: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sends:
    """Sends of the passes that have any.

    Parameters
    ----------
    at : int64 array of shape (sends,)
        The pass whose output each carries, ascending.
    rows : int64 array of shape (sends,)
        Where in ``times`` and ``carried`` it is.
    has : int64 array of shape (sends,)
        How many rows of transfers the pass has.
    times, carried : int64 arrays of shape (transfers, 2, ranks) and (transfers, ranks)
        When they are under way, and bytes, −1 where these were not told.
    """

    at: Int64Array
    rows: Int64Array
    has: Int64Array
    times: Int64Array
    carried: Int64Array

    def of(self, some: slice) -> Sent:
        """Return the sends of some passes that follow each other."""
        low, high = np.searchsorted(self.at, (some.start, some.stop)).tolist()
        times, carried, has = self.times[self.rows[low:high]], self.carried[self.rows[low:high]], self.has[low:high]
        if high - low < some.stop - some.start:
            place, found = self.at[low:high] - some.start, (times, carried, has)
            times, carried, has = (np.zeros((some.stop - some.start, *each.shape[1:]), np.int64) for each in found)
            for all_of_them, each in zip((times, carried, has), found, strict=True):
                all_of_them[place] = each
        return Sent(times[:, 0], times[:, 1], carried, has)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """When outputs of passes have arrived at the next stage.

    Parameters
    ----------
    passes : Occupation
    sends : Sends
    """

    passes: Occupation
    sends: Sends

    def parts(self) -> Iterator[tuple[slice, Occupation, Int64Array]]:
        """Yield passes, part by part: which, what they are, and the pass of the next stage of each (−1: none)."""
        for some in parts(len(self.passes)):
            passes = self.passes.part(some)
            yield some, passes, _next(self.passes, passes)


def sends_of(tables: Tables, passes: Occupation) -> Sends:
    """Return the sends of a folded timeline."""
    ranks = tables.sp_tp[0] * tables.sp_tp[1]
    transfers, own = tables.transfers, passes.key
    place, key = in_order(transfers["replica"], transfers["stage"], transfers["step"])
    rows = np.empty_like(place)
    for some in parts(len(place)):
        rows[place[some]] = np.arange(some.start, some.stop)
    at = np.flatnonzero(passes.stage < tables.stages - 1)
    each = len(at) == len(key) and all(np.array_equal(own[at[some]], key[some]) for some in parts(len(at)))
    if not (each and passes.distinct):  # not one of each pass but those of the last stage
        at = np.searchsorted(own, key)
        known = own[np.minimum(at, len(own) - 1)] == key if len(own) else np.zeros(len(key), bool)
        at, rows = at[known], rows[known]
    has = _once(at)
    if not (at[1:] > at[:-1]).all():
        at, back, has = np.unique(at, return_index=True, return_counts=True)
        rows = rows[back + has - 1]
    times, carried = tables.transfer_times.reshape(-1, 2, ranks), tables.transfer_bytes.reshape(-1, ranks)
    return Sends(at=at, rows=rows, has=has, times=times, carried=carried)


def _next(passes: Occupation, some: Occupation) -> Int64Array:
    """Return the pass of the next stage for each of some passes, −1 where there is none."""
    key = order_key(some.replica, some.stage + 1, some.step)
    low, high = np.searchsorted(passes.key, (key.min(initial=0), key.max(initial=0)), side="left").tolist()
    own = passes.key[low : high + 1]  # there alone
    at = np.minimum(np.searchsorted(own, key), len(own) - 1)
    return np.where(own[at] == key, low + at, -1) if len(own) else np.full(len(key), -1)


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
        keys=groups.keys,
        leaves=None,
        sends_for=None,
    )
    of = out.find(groups.keys)
    at = np.flatnonzero(of >= 0)
    times = np.stack((out.least(columns["start_ns"][sent]), out.most(columns["end_ns"][sent])), axis=1)[:, :, None]
    untold = np.full((len(times), 1), -1)
    return Arrivals(passes=passes, sends=Sends(at=at, rows=of[at], has=_once(at), times=times, carried=untold))


def _once(at: Int64Array) -> Int64Array:
    return np.broadcast_to(np.int64(1), at.shape)
