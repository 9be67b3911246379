"""When each replica had which request: from the facts alone, of requests that were moved, lost or given up, too.

A request is at a replica from the first fact about it there until it finishes, is handed over, cancelled or lost, or
until what served it fails. A replica that fails gives back all its blocks at that instant, which no other preemption
does: that one is for want of blocks, and whoever needs them holds some.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.serving.decision import ADMITTED, CANCELLED, FINISHED, HANDED_OVER, LOST, PREEMPTED, REJECTED
from clustersim.timeline.columns import is_any, is_one, taken
from clustersim.timeline.rows_of import RowsOf, in_order
from clustersim.timeline.tables import Table, Tables
from clustersim.values import dataclass

BoolArray = npt.NDArray[np.bool_]

_LEAVES: Final = (FINISHED, CANCELLED, LOST, HANDED_OVER)
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residency:
    """Requests at replicas, one by one: in [come, gone), which is the largest number where it stays to the end."""

    replica: Int64Array
    come_ns: Int64Array
    gone_ns: Int64Array


def moved(facts: Table) -> BoolArray:
    """Say which facts are sequences that lost their blocks to no other one: to a fault, or to a client that gave up.

    Those are preempted at the instant at which their replica gives back all its blocks, or at which the request is
    lost or given up, or loses those where its prompt was computed in that way.
    """
    preempted: BoolArray = facts["kind"] == PREEMPTED
    if not preempted.any():
        return preempted
    found = preempted & _among(facts, "replica", preempted & _empties(facts))
    leaves = found | is_any(facts["kind"], (CANCELLED, LOST))
    away: BoolArray = preempted & (found | _among(facts, "request", leaves))
    return away


def _empties(facts: Table) -> BoolArray:
    """Say which facts are at an instant at which a replica gave back its last block without a last token."""
    return _among(facts, "replica", is_any(facts["kind"], (PREEMPTED, CANCELLED)) & (facts["used"] == 0))


def _among(facts: Table, of: str, chosen: BoolArray) -> BoolArray:
    """Say which facts are at the instant of a chosen one, and of the same replica, or request."""
    if not chosen.any():
        return np.zeros(len(chosen), bool)
    pairs = np.stack([facts[of].astype(np.int64), facts["time_ns"]], axis=1)
    _, number = np.unique(pairs, axis=0, return_inverse=True)
    return np.isin(number.ravel(), number.ravel()[chosen])


def residency_of(tables: Tables) -> Residency:
    """Return when which replica had a request.

    Parameters
    ----------
    tables : Tables
        Of a timeline; facts of a replica are in order.
    """
    facts = tables.facts
    away = moved(facts)
    fell = np.flatnonzero(away & _empties(facts) if away.any() else away)
    rows = np.flatnonzero(facts["kind"] != REJECTED)
    if is_one(facts["replica"]):
        rows = rows[in_order(facts["request"][rows])]
    else:
        rows = rows[in_order(facts["request"][rows], facts["replica"][rows])]
    replica, request, time, kind = (taken(facts[name], rows) for name in ("replica", "request", "time_ns", "kind"))
    leaves = is_any(kind, _LEAVES) | away[rows]
    falls = np.where(leaves, time, _NEVER)  # when it is there no more, as far as facts of its own and of faults tell
    for one in np.unique(facts["replica"][fell]).tolist():
        mine = np.flatnonzero((replica == one) & ~leaves)
        down = np.append(np.sort(facts["time_ns"][fell][facts["replica"][fell] == one]), _NEVER)
        falls[mine] = down[np.searchsorted(down, time[mine])]
    opens = np.ones(len(rows), bool)
    opens[1:] = (replica[1:] != replica[:-1]) | (request[1:] != request[:-1]) | (falls[:-1] < time[1:]) | leaves[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(rows))[: len(first)] - 1
    found = Residency(replica=replica[first], come_ns=time[first], gone_ns=falls[last])
    if away.any():
        _end_elsewhere(found, request[first], tables)
    return found


def _end_elsewhere(found: Residency, request: Int64Array, tables: Tables) -> None:
    """End stays of requests that waited where nothing ran that failed: they are admitted elsewhere, as new ones are."""
    facts = tables.facts
    entry = tables.layout.of_replica(facts["replica"]) == 0
    came = np.flatnonzero((facts["kind"] == ADMITTED) & entry)
    for at in np.flatnonzero(found.gone_ns == _NEVER).tolist():
        mine = came[(facts["request"][came] == request[at]) & (facts["replica"][came] != found.replica[at])]
        later = facts["time_ns"][mine][facts["time_ns"][mine] > found.come_ns[at]]
        found.gone_ns[at] = later.min(initial=_NEVER)


def empties_ns(rows: Table, of: Residency) -> Int64Array:
    """Return from when on a replica had no request, after each step and before its next one; −1 where it had some.

    Parameters
    ----------
    rows : Table
        ``replica``, ``start_ns`` and ``end_ns`` of steps, in order of replicas and instants.
    of : Residency
    """
    replica = rows["replica"]
    found = np.full(len(replica), -1, np.int64)
    stays = RowsOf(of.replica)
    for one, mine in RowsOf(replica):
        start, until = rows["start_ns"][mine], np.maximum.accumulate(rows["end_ns"][mine])
        gaps = np.append(np.flatnonzero(until[:-1] < start[1:]), len(mine) - 1)
        until, following = until[gaps], np.append(start[gaps[:-1] + 1], _NEVER)
        since = _without_requests(of, stays.of(one))
        instant = np.maximum(since[0][np.searchsorted(since[1], until, side="right")], until)
        empties = instant < following
        found[mine[gaps[empties]]] = instant[empties]
    return found


def _without_requests(of: Residency, mine: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return when a replica with some stays has no request: since when, and until when; the last is never."""
    come, gone = of.come_ns[mine], of.gone_ns[mine]
    gone = gone[gone < _NEVER]
    at, number = np.unique(np.concatenate([[-1], come, gone]), return_inverse=True)
    change = np.bincount(number.ravel(), np.repeat([0, 1, -1], [1, len(come), len(gone)]), len(at))
    free = np.append(np.cumsum(change) == 0, False)
    begins = np.flatnonzero(free & ~np.append(False, free[:-1]))
    ends = np.flatnonzero(~free & np.append(False, free[:-1]))
    bounds = np.append(at, _NEVER)
    return np.append(bounds[begins], _NEVER), bounds[ends]
