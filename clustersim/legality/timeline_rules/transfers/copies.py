"""RUN-5: sequences are copied to their host and back as soon as that is decided, one after the other on each rank.

A rank copies out, and in, one sequence at a time, in the order in which that was decided. Of a copy in the decision is
told (``swapped_in``); of a copy out it is where some rank had nothing to copy before: then it starts with the decision,
at an instant at which its replica decides. ``swapped_out`` is told when the last rank has copied.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import SWAPPED_IN
from clustersim.legality.timeline_rules.requests.moments import given_up
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.tables import HOST

AT_ONCE: Final = "copy a sequence as soon as that is decided, and those before it on its rank have been copied"
TOLD: Final = "give the blocks of a sequence back when its last rank has copied them"


def as_soon_as_decided(reading: Reading) -> Finding:
    """Judge when copies between ranks and their hosts start, and when it is told that they have ended."""
    swaps, moves, facts = reading.swaps, reading.history.moves, reading.history.facts
    if not swaps or moves is None or facts is None or reading.history.folded is None:
        return NOTHING
    before = _before(moves["from_rank"], moves["to_rank"], moves["start_ns"], moves["end_ns"])
    out, back = (
        np.array([(row, at) for at, swap in enumerate(swaps) for row in getattr(swap, side)], np.int64).reshape(-1, 2).T
        for side in ("out", "back")
    )
    replica, out_at, in_at = (
        np.array([getattr(swap, name) for swap in swaps], np.int64) for name in ("replica", "out_at", "in_at")
    )
    where = "swap of request {move.request}, rank {move.from_rank} to {move.to_rank}"
    started, ended = (moves[name].astype(np.int64) for name in ("start_ns", "end_ns"))

    def late(rows: Int64Array, due: Int64Array, what: str) -> Finding:
        return judged(
            len(rows), started[rows] != due, where,
            "starts at {move.start_ns:,} ns, and was to start at {due:,} ns, when " + what, AT_ONCE,
            move=Rows(moves, rows), due=due,
        )  # fmt: skip

    row, at = back
    findings = [
        late(row, np.maximum(in_at[at], before[row]), "it was given blocks and its rank was free"),
        _in_turn(reading),
    ]
    row, at = out
    groups, free = Groups(at), started[row] > before[row]
    decided = groups.most(np.where(free, started[row], -1))
    told = (decided >= 0)[groups.find(at)]
    row, at = row[told], at[told]
    due = np.maximum(decided[groups.find(at)], before[row])
    findings.append(late(row, due, "another rank copies it, and this one was free"))
    keys = groups.keys
    known = decided >= 0
    strange = np.zeros(len(keys), bool)
    for number in np.unique(replica[keys[known]]).tolist():
        mine = known & (replica[keys] == number) & ~_in_the_dark(reading, number, decided)
        strange[mine] = ~np.isin(decided[mine], _instants(reading, number))
    findings.append(judged(
        0, strange, "swap of request {swap.request}, replica {swap.replica}",
        "is copied out from {decided:,} ns on, when nothing ends or begins on its replica", AT_ONCE,
        swap=Rows(swaps, keys), decided=decided,
    ))  # fmt: skip
    last = groups.most(ended[out[0]])
    findings.append(judged(
        len(keys), last != out_at[keys], "swap of request {swap.request}, replica {swap.replica}",
        "gives its blocks back at {swap.out_at:,} ns, and is copied until {last:,} ns", TOLD, swap=Rows(swaps, keys),
        last=last,
    ))  # fmt: skip
    return merged(*findings)


def _before(source: Int64Array, target: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """Return when the copy before each on its rank, in its direction, has ended; −1 where there is none."""
    found = np.full(len(start), -1, np.int64)
    for near, far in ((source, target), (target, source)):
        rows = np.flatnonzero((far == HOST) & (near != HOST))
        rows = rows[np.lexsort((end[rows], start[rows], near[rows]))]
        same = near[rows][1:] == near[rows][:-1]
        found[rows[1:]] = np.where(same, end[rows][:-1], -1)
    return found


def _in_turn(reading: Reading) -> Finding:
    """Judge whether sequences that come back at one instant are copied in the order in which they were given blocks."""
    facts, moves = reading.history.facts, reading.history.moves
    assert facts is not None
    assert moves is not None
    told = {
        (request, time): used
        for request, time, used in zip(
            *(facts[name][reading.facts_of(SWAPPED_IN)].tolist() for name in ("request", "time_ns", "used")),
            strict=True,
        )
    }
    rows, turns = list[int](), list[tuple[int, int]]()
    for swap in reading.swaps:
        rows += swap.back
        turns += [(swap.in_at, told.get((swap.request, swap.in_at), -1))] * len(swap.back)
    row, turn = np.array(rows, np.int64), np.array(turns, np.int64).reshape(-1, 2)
    order = np.lexsort((moves["start_ns"][row], moves["to_rank"][row]))
    row, turn = row[order], turn[order]
    broken: BoolArray = (turn[1:, 0] < turn[:-1, 0]) | ((turn[1:, 0] == turn[:-1, 0]) & (turn[1:, 1] < turn[:-1, 1]))
    broken &= moves["to_rank"][row][1:] == moves["to_rank"][row][:-1]
    return judged(
        0, broken, "swap of request {move.request}, rank {move.to_rank}",
        "starts at {move.start_ns:,} ns, after that of request {other.request}, which was given blocks later", AT_ONCE,
        move=Rows(moves, row[1:]), other=Rows(moves, row),
    )  # fmt: skip


def _in_the_dark(reading: Reading, replica: int, instants: Int64Array) -> BoolArray:
    """Return at which instants a step that a horizon or failure cuts off, so that it lacks, may have left a stage."""
    runs, declared = reading.runs, reading.declared
    found = np.zeros(len(instants), bool)
    if runs is None or declared.pp == 1:
        return found
    cuts = [since for failed, since, _ in declared.down if failed == replica]
    cuts += [] if declared.horizon_ns is None else [declared.horizon_ns]
    begun = runs.start[runs.replica == replica]
    for cut in cuts:
        found |= (instants > begun[begun < cut].max(initial=-1)) & (instants <= cut)
    return found


def _instants(reading: Reading, replica: int) -> Int64Array:
    """Return the instants at which something ends or begins on a replica, or may."""
    runs, facts, passes, moves = reading.runs, reading.history.facts, reading.passes, reading.history.moves
    declared = reading.declared
    assert facts is not None
    assert moves is not None
    found = [facts["time_ns"][facts["replica"] == replica], moves["end_ns"][moves["from_replica"] == replica]]
    if runs is not None:
        mine = runs.replica == replica
        found += [runs.start[mine], runs.recorded_end[mine]]
    if passes is not None and declared.pp > 1:
        found.append(passes.end[(passes.replica == replica) & (passes.stage == 0)])
    found += [np.array([*given_up(reading.history).values()], np.int64)]
    found += [np.array(one.instants, np.int64) for one in declared.down]
    return np.concatenate(found)
