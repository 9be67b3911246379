"""When each transfer of a hand-over was asked for, and in which order: from what was set aside, passes and plans alone.

A decode replica asks for what was computed when it sets blocks aside, and for a layer of a last chunk when that has
been passed, if this is later. Of what is asked for at one instant, layers that are passed come first, in the order of
(request, layer); then what blocks are set aside for, in the order of (replica, blocks in use after it): what earlier
chunks computed, then layers in the order in which they were passed; each in the order of ranks.

Transfers that a failure, or the horizon, cut off are not recorded. Those that must have been asked for are worked out,
with the instant at which they were cut off: until then they kept their ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from clustersim.clock import LATEST_NS, Int64Array
from clustersim.legality.history import ADMITTED
from clustersim.legality.timeline_rules.transfers.owners import owner_at
from clustersim.legality.timeline_rules.views.grouping import last_before
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.written import passed_at
from clustersim.timeline.tables import ALL_LAYERS, Table
from clustersim.values import dataclass

NONE = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """Transfers, those that were recorded before those that were not, in the order in which they were asked for.

    Parameters
    ----------
    row : int64 array of shape (transfers,)
        Of the moves from replica to replica; −1 for what was not recorded.
    request : int64 array
    source, target : int64 arrays
        Ranks.
    start, end : int64 arrays
        Recorded; of others the start is −1, and the end when they were cut off.
    due : int64 array
        When each was asked for.
    late : bool array
        Whether that was with the decisions of that instant, which come after what fails then.
    vague : bool array
        Whether something that the record does not tell may have kept its ranks.
    begun : int64 array
        How many tokens of it were computed before the chunk that leaves layer by layer; −1 where none does, or that is
        not known.
    """

    row: Int64Array
    request: Int64Array
    source: Int64Array
    target: Int64Array
    start: Int64Array
    end: Int64Array
    due: Int64Array
    late: BoolArray
    vague: BoolArray
    begun: Int64Array


class Reserved:
    """Blocks that decode replicas set aside, and what each is for.

    Parameters
    ----------
    reading : Reading
        With facts, pieces and two pools.

    Attributes
    ----------
    request, target, time, used, source : int64 arrays of shape (reservations,)
        In order of (request, replica, time); ``source`` is −1 where no prefill replica admitted the request.
    piece : int64 array
        The last piece of the request that had begun on that; −1 where there is none.
    until : int64 array
        When those of its transfers that had not ended were cut off; the largest number where none was.
    """

    def __init__(self, reading: Reading) -> None:
        history, found, pieces = reading.history, reading.hand_overs, reading.pieces
        facts = history.facts
        assert facts is not None
        assert pieces is not None
        rows = found.reserved
        rows = rows[np.lexsort((facts["time_ns"][rows], facts["replica"][rows], facts["request"][rows]))]
        self.reading, self.rows = reading, rows
        self.request, self.target, self.time, self.used = (
            facts[name][rows].astype(np.int64) for name in ("request", "replica", "time_ns", "used")
        )
        taken = np.flatnonzero((facts["kind"] == ADMITTED) & (facts["replica"] < history.pools[1].first_replica))
        taken = taken[np.lexsort((facts["time_ns"][taken], facts["request"][taken]))]
        who, since, where = (facts[name][taken].astype(np.int64) for name in ("request", "time_ns", "replica"))
        begun = last_before(who, since, self.request, self.time)
        self.source = np.where(begun >= 0, np.append(where, NONE)[begun], NONE)
        at = last_before(pieces.request, pieces.begin, self.request, self.time)
        mine = (at >= 0) & (pieces.replica[at] == self.source) & (pieces.gave[at] > 0)
        mine &= pieces.begin[at] >= np.append(since, NONE)[begun]
        self.piece = np.where(mine, at, NONE)
        self.until = np.full(len(rows), LATEST_NS)
        if history.declared.horizon_ns is not None:
            by_time = np.lexsort((self.time, self.request))
            last = by_time[np.append(np.diff(self.request[by_time]) != 0, True)[: len(rows)]]
            self.until[last[np.isin(self.request[last], found.unused)]] = history.declared.horizon_ns
        if found.reservations is not None:
            order = np.argsort(rows)
            vain = order[np.searchsorted(rows[order], found.reservations.of_vain)]
            self.until[vain] = facts["time_ns"][found.reservations.vain]

    @cached_property
    def by_layer(self) -> BoolArray:
        """Whether what the last chunk computed leaves layer by layer."""
        pieces = self.reading.pieces
        assert pieces is not None
        return (self.piece >= 0) & self.reading.history.layerwise & pieces.is_chunk[self.piece]

    @cached_property
    def unknown(self) -> BoolArray:
        """Whether nothing tells which layers the step has passed that computes the last chunk: it was not recorded."""
        return (self.piece < 0) & self.reading.history.layerwise

    def of(self, moves: Table) -> Int64Array:
        """Return what each transfer was asked for by: the last time that its replica set blocks aside; −1: none."""
        key, asks = (
            (request << 24) | replica
            for request, replica in ((self.request, self.target), (moves["request"], moves["to_replica"]))
        )
        return last_before(key, self.time, asks, moves["start_ns"])

    def passed(self, at: Int64Array, rank: Int64Array, layer: Int64Array) -> Int64Array:
        """Return when layers were passed that leave ranks for reservations; −1 where that is not told."""
        tables, pool, pieces = self.reading.history.folded, self.reading.history.pools[0], self.reading.pieces
        assert tables is not None
        assert pieces is not None
        stage = (rank - pool.first_rank) // pool.stage_ranks % pool.pp
        piece = self.piece[at]
        found = passed_at(tables, self.source[at], stage, pieces.first_step[piece], layer)
        return np.where(self.by_layer[at], found, NONE)

    def lacks(self, moves: Table) -> Int64Array:
        """Return the reservations of which not all transfers were recorded that were to be, or may have been."""
        at = self.of(moves)
        known = np.flatnonzero(at >= 0)
        columns = {name: moves[name][known] for name in ("from_rank", "to_rank", "layer", "start_ns")}
        found: Int64Array = np.append(np.flatnonzero(self.unknown), _cut_off(self, at[known], columns)["at"])
        return found


def asked_in(reading: Reading) -> Asked | None:
    """Return the transfers from pool to pool; None where the record can't tell when they were asked for."""
    history = reading.history
    if history.folded is None or history.facts is None or not history.hands_over:
        return None
    pieces, moves = reading.pieces, reading.hand_overs.moves
    if pieces is None or moves is None:
        return None
    if not len(moves["request"]) or not len(pieces):
        return None
    reserved = Reserved(reading)
    at = reserved.of(moves)
    known = np.flatnonzero(at >= 0)
    at = at[known]
    columns = {name: moves[name][known] for name in ("from_rank", "to_rank", "layer", "start_ns", "end_ns")}
    more = _cut_off(reserved, at, columns)
    at = np.append(at, more["at"])
    row = np.append(known, np.full(len(more["at"]), NONE))
    source, target, layer, start = (
        np.append(columns[name], more[name]) for name in ("from_rank", "to_rank", "layer", "start_ns")
    )
    end = np.append(columns["end_ns"], reserved.until[more["at"]])
    passed = np.full(len(at), NONE)
    single = np.flatnonzero(layer != ALL_LAYERS)
    passed[single] = reserved.passed(at[single], source[single], layer[single])
    aside = (layer == ALL_LAYERS) | (passed <= reserved.time[at])
    due = np.where(aside, reserved.time[at], passed)
    launched = pieces.begin[reserved.piece[at]] == reserved.time[at]  # after what could have blocks before
    order = np.lexsort((
        target, source, layer, np.where(aside, passed, 0), np.where(aside, reserved.used[at], layer),
        np.where(aside, reserved.target[at], reserved.request[at]), aside & launched, aside, due,
    ))  # fmt: skip
    vague = (layer != ALL_LAYERS) & (passed < 0)
    vague |= _near_unknown(reserved, at, np.where(start < 0, end, start), due)
    begun = np.where(reserved.by_layer[at], pieces.computed[reserved.piece[at]], NONE)
    passes = order[(row[order] >= 0) | (due[order] < end[order])]
    return Asked(
        row=row[passes], request=reserved.request[at[passes]], source=source[passes], target=target[passes],
        start=start[passes], end=end[passes], due=due[passes], late=aside[passes], vague=vague[passes],
        begun=begun[passes],
    )  # fmt: skip


def _near_unknown(reserved: Reserved, at: Int64Array, start: Int64Array, due: Int64Array) -> BoolArray:
    """Return which transfers may have waited for some of which the record does not tell that they were asked for."""
    found = np.zeros(len(at), bool)
    for one in np.flatnonzero(reserved.unknown).tolist():
        same = (reserved.source[at] == reserved.source[one]) | (reserved.target[at] == reserved.target[one])
        found |= same & (due <= reserved.until[one]) & (start >= reserved.time[one])
    return found


def _cut_off(reserved: Reserved, at: Int64Array, recorded: Table) -> dict[str, Int64Array]:
    """Return the transfers of reservations that were asked for and are not recorded."""
    names = ("at", "from_rank", "to_rank", "layer", "start_ns")
    cut = np.flatnonzero((reserved.source >= 0) & (reserved.until < LATEST_NS))
    some = np.isin(at, cut)
    told = {*zip(at[some].tolist(), *(recorded[name][some].tolist() for name in names[1:4]), strict=True)}
    rows = [(*one, NONE) for one in _all_of(reserved, cut) if one not in told]
    columns = np.array(rows, np.int64).reshape(-1, len(names)).T
    return dict(zip(names, columns, strict=True))


def _all_of(reserved: Reserved, some: Int64Array) -> Iterator[tuple[int, int, int, int]]:
    """Yield reservation, ranks and layer of all transfers by which sequences leave."""
    history, pieces = reserved.reading.history, reserved.reading.pieces
    assert pieces is not None
    carriage = history.declared.carriage
    if carriage is None:
        return
    setting = carriage.setting
    source, target = setting.pools
    owners = np.zeros((2, len(some)), np.int64)
    for side, (pool, replica) in enumerate(((source, reserved.source[some]), (target, reserved.target[some]))):
        if pool.plan.sp.degree > 1 and pool.plan.sp.decode == "dp" and history.folded is not None:
            owners[side] = owner_at(history.folded.owners, replica, reserved.request[some], reserved.time[some])
    for number, one in enumerate(some.tolist()):
        layered, begun = bool(reserved.by_layer[one]), int(pieces.computed[reserved.piece[one]])
        for shard in setting.shards if not reserved.unknown[one] else ():
            (stage, t), (to_stage, to_t) = shard.source, shard.target
            leaves = source.rank(int(reserved.source[one]), stage, int(owners[0, number]) * source.plan.tp + t)
            reaches = target.rank(int(reserved.target[one]), to_stage, int(owners[1, number]) * target.plan.tp + to_t)
            if begun or not layered:
                yield one, leaves, reaches, ALL_LAYERS
            for layer in shard.layers if layered else ():
                yield one, leaves, reaches, layer
