"""RUN-5: K/V moves as soon as it may, in the order in which it was asked for.

A rank has a stream on which entries leave it, and one on which they reach it. Transfers leave a rank in the order in
which they were asked for; the next one starts at the instant at which it has been asked for, the one before it has
left, and nothing reaches the other rank; of several that could start towards one rank, the first one asked for.
``views.asked`` says when that was. Layer by layer only what the last chunk of a prompt computes is moved. Of what a
failure or the horizon cut off it follows whether it had started.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np

from clustersim.clock import LATEST_NS, Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.timeline_rules.views.asked import Asked, Reserved, asked_in
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.tables import ALL_LAYERS, Table

SOON: Final = "start a transfer as soon as its ranks are free, in the order in which transfers were asked for"
CUT: Final = "which layers left in a step that was cut off (it is not recorded)"


def as_soon_as_asked(reading: Reading) -> Finding:
    """Judge when transfers from pool to pool start."""
    asked = asked_in(reading)
    if asked is None or (moves := reading.hand_overs.moves) is None:
        return NOTHING
    ready = _ready(asked)
    asked, ready = _with_cut_off(asked, ready)
    mine = np.flatnonzero((asked.row >= 0) & ~asked.vague)
    (kept, by), due = _waited(asked, ready), ready // 2
    early, idle, passed = (some[mine] for some in (asked.start < due, ~kept & (asked.start > due), by >= 0))
    where = "request {move.request}, rank {move.from_rank} to {move.to_rank}"
    columns = {"move": Rows(moves, asked.row[mine]), "due": due[mine]}
    findings = [
        judged(
            len(mine), early, where,
            "starts at {move.start_ns:,} ns, before {due:,} ns, when what was asked for before it has left", SOON,
            **columns,
        ),
        judged(
            0, idle & ~early, where,
            "starts at {move.start_ns:,} ns, and could from {due:,} ns on: then it was asked for, and its ranks were "
            "free",
            SOON, **columns,
        ),
        judged(
            0, passed & ~idle & ~early, where,
            "starts at {move.start_ns:,} ns, after that of request {other.request} to the same rank at "
            "{other.start_ns:,} ns, which was asked for later",
            SOON, other=Rows({"request": asked.request, "start_ns": asked.start}, by[mine]), **columns,
        ),
    ]  # fmt: skip
    findings += [_ahead(asked, moves), _lands(reading, moves)]
    return merged(*findings, lacking(CUT) if asked.vague.any() else NOTHING)


def _lands(reading: Reading, moves: Table) -> Finding:
    """Judge whether a sequence is received of which nothing was on its way any more when something cut that off."""
    reserved, pieces = Reserved(reading), reading.pieces
    assert pieces is not None
    at = reserved.of(moves)
    last = np.full(len(reserved.time), -1)
    np.maximum.at(last, at[at >= 0], moves["end_ns"][at >= 0])
    known = (reserved.until < LATEST_NS) & (reserved.piece >= 0) & (last >= 0)
    known[reserved.lacks(moves)] = False
    there = np.maximum(last, pieces.end[reserved.piece])
    return judged(
        int(known.sum()), known & (there < reserved.until), "request {request}",
        "is not received by replica {target}, where all of it is at {there:,} ns, before {until:,} ns",
        "let a sequence decode as soon as its entries are there", request=reserved.request, target=reserved.target,
        there=there, until=reserved.until,
    )  # fmt: skip


def _ahead(asked: Asked, moves: Table) -> Finding:
    """Judge whether what earlier chunks computed leaves as a whole, ahead of the layers of the last one."""
    some = np.flatnonzero((asked.row >= 0) & (asked.begun >= 0))
    row, begun = asked.row[some], asked.begun[some]
    whole = moves["layer"][row] == ALL_LAYERS
    other = np.where(whole, moves["first"][row] + moves["tokens"][row], moves["first"][row]) != begun
    return judged(
        len(some), other, "request {move.request}, rank {move.from_rank} to {move.to_rank}",
        Rows(("layer {move.layer} leaves from token {move.first:,} on, and its last chunk begins with token {begun:,}",
              "all layers leave up to token {ends:,}, and its last chunk begins with token {begun:,}"), whole),
        "let what earlier chunks computed leave as a whole, ahead of the layers of the last one",
        move=Rows(moves, row), begun=begun, ends=moves["first"][row] + moves["tokens"][row],
    )  # fmt: skip


def _ready(asked: Asked) -> Int64Array:
    """Return twice the instant from which on each could leave; odd where that is after what fails then."""
    left = 2 * asked.end + (asked.row < 0)
    values, place = np.unique(left, return_inverse=True)
    order = np.argsort(asked.source, kind="stable")
    source = asked.source[order]
    opens = np.append(True, source[1:] != source[:-1])[: len(order)]
    last = np.maximum.accumulate(np.cumsum(opens) * (len(values) + 1) + place[order])
    before = np.where(opens, -1, np.append(-1, values[last[:-1] % (len(values) + 1)])[: len(order)])
    found = 2 * asked.due + asked.late
    found[order] = np.maximum(found[order], before)
    return found


def _with_cut_off(asked: Asked, ready: Int64Array) -> tuple[Asked, Int64Array]:
    """Return transfers with the start of each that was cut off; without those that never started."""
    cut = np.flatnonzero(asked.row < 0)
    if not len(cut):
        return asked, ready
    start = asked.start.copy()
    kept: dict[int, list[tuple[int, int, int]]] = {}
    for rank in np.unique(asked.target[cut]).tolist():
        mine = np.flatnonzero((asked.row >= 0) & (asked.target == rank))
        kept[rank] = sorted(zip(start[mine].tolist(), asked.end[mine].tolist(), mine.tolist(), strict=True))
    waiting: dict[int, list[int]] = {}
    for at in cut[::-1].tolist():
        waiting.setdefault(int(asked.source[at]), []).append(at)
    while waiting:
        heads = [(_free(kept[int(asked.target[mine[-1]])], int(ready[mine[-1]]), mine[-1]), mine[-1], rank)
                 for rank, mine in waiting.items()]  # fmt: skip
        begins, at, rank = min(heads)
        if begins < int(asked.end[at]):
            start[at] = begins
            kept[int(asked.target[at])] = sorted([*kept[int(asked.target[at])], (begins, int(asked.end[at]), at)])
        waiting[rank].pop()
        if not waiting[rank]:
            del waiting[rank]
    some, vague = start >= 0, asked.vague.copy()
    for at in cut[asked.vague[cut]].tolist():
        vague |= (asked.target == asked.target[at]) & (start >= asked.due[at]) & (asked.due <= asked.end[at])
    columns = {
        name: getattr(asked, name)[some]
        for name in ("row", "request", "source", "target", "end", "due", "late", "begun")
    }
    return Asked(start=start[some], vague=vague[some], **columns), ready[some]


def _free(kept: list[tuple[int, int, int]], ready: int, number: int) -> int:
    """Return when a rank is free for a transfer that is ready, by those that kept it, in order of their starts."""
    at = bisect_right(kept, (ready // 2, ready // 2 + 1, -1))
    now = ready // 2
    if at and kept[at - 1][1] > now:
        now = kept[at - 1][1]
    while at < len(kept) and kept[at][0] <= now and (kept[at][2] < number or 2 * kept[at][0] < ready):
        now = max(now, kept[at][1])
        at += 1
    return now


def _waited(asked: Asked, ready: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Return whether the target of each transfer was kept from when it was ready until it started, and by whom wrongly.

    That is one that was asked for later, and started since then; −1 where there is none.
    """
    order = np.lexsort((asked.start, asked.target))
    target, start, end, since = asked.target[order], asked.start[order], asked.end[order], ready[order]
    many = len(order)
    goes_on = np.append(False, (target[1:] == target[:-1]) & (start[1:] == end[:-1]))[:many]
    opened = np.maximum.accumulate(np.where(goes_on, 0, np.arange(many)))
    kept, by = np.empty(many, bool), np.full(many, -1)
    kept[order] = start[opened] <= since // 2
    values, place = np.unique(np.maximum(2 * start, since), return_inverse=True)
    base = target * (len(values) + 1)
    low = np.searchsorted(base + place, base + np.searchsorted(values, since))
    waits = np.flatnonzero(low < np.arange(many))
    latest = _latest(order, low[waits], waits)
    by[order[waits]] = np.where(latest > order[waits], latest, -1)
    return kept, by


def _latest(values: Int64Array, low: Int64Array, high: Int64Array) -> Int64Array:
    """Return the largest of ``values[low:high]`` for each pair, none of them empty."""
    found = np.empty(len(low), np.int64)
    width = 1
    while len(low):
        mine = np.flatnonzero((high - low >= width) & (high - low < 2 * width))
        found[mine] = np.maximum(values[low[mine]], values[high[mine] - width])
        if width * 2 > int((high - low).max()):
            break
        values = np.maximum(values[: len(values) - width], values[width:])
        width *= 2
    return found
