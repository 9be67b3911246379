"""RUN-5: decisions are told when they are taken, with the blocks that are in use right after each.

A replica decides when a step can begin. Who is taken up is in the step that begins then; on a replica of one stage
nobody is taken up, gives way, or comes back from its host while a step is under way. What decisions of one instant take
and give back is told in their order, so that blocks in use lead from one to the next.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FACTS,
    FINISHED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
    Declared,
)
from clustersim.legality.timeline_rules.policy.declared import Policies, keeps_whole
from clustersim.legality.timeline_rules.requests.moments import given_up
from clustersim.legality.timeline_rules.views.grouping import without
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.swaps import held_at
from clustersim.timeline.columns import is_any, taken
from clustersim.timeline.rows_of import RowsOf, in_order

THEN: Final = "tell a decision at the instant at which it is taken: when a step can begin"
COUNT: Final = "tell the blocks that are in use right after each decision"


def as_decided(reading: Reading, policies: Policies) -> Finding:
    """Judge when decisions are told, and which blocks are in use after each."""
    if reading.history.folded is None or reading.pieces is None or reading.runs is None:
        return NOTHING
    return merged(
        _taken_up(reading, policies),
        _between_steps(reading),
        _beside_steps(reading),
        _in_their_order(reading),
        _given_up(reading, policies),
        _numbered(reading),
        _by_request(reading),
    )


def _numbered(reading: Reading) -> Finding:
    """Judge whether steps of each replica are numbered one after the other; one that was cut off has no number."""
    runs = reading.runs
    assert runs is not None
    follows = np.append(False, runs.replica[1:] == runs.replica[:-1])[: len(runs)]
    due = np.where(follows, np.append(0, (runs.step + runs.count)[:-1])[: len(runs)], 0)
    return judged(
        len(runs), runs.step != due, Rows(runs), "is where step {due:,} is to follow",
        "number the steps of a replica one after the other, without those that something cuts off", due=due,
    )  # fmt: skip


def _by_request(reading: Reading) -> Finding:
    """Judge in which order sequences arrive, and leave for or come from another pool or their host, at one instant."""
    facts = reading.history.facts
    assert facts is not None
    rows = np.flatnonzero(is_any(facts["kind"], (ARRIVED, HANDED_OVER, RECEIVED, SWAPPED_OUT)))
    rows = rows[~_freed(reading, rows)]
    kind, time, request, replica = (facts[name][rows] for name in ("kind", "time_ns", "request", "replica"))
    order = in_order(replica, time, kind, rows)
    one, other = order[:-1], order[1:]
    follows = (replica[one] == replica[other]) & (time[one] == time[other]) & (kind[one] == kind[other])
    return judged(
        len(rows), follows & (request[one] > request[other]), "replica {fact.replica}, request {fact.request}",
        "is {kind} at {fact.time_ns:,} ns behind request {before.request}, and comes before it",
        "let what happens to several requests at one instant happen in their order", fact=Rows(facts, rows[other]),
        before=Rows(facts, rows[one]), kind=Rows(FACTS, kind[other]),
    )  # fmt: skip


def _freed(reading: Reading, rows: Int64Array) -> BoolArray:
    """Return which facts are arrivals of turns that may have waited for one that ends then: they come behind others."""
    facts, requests = reading.history.facts, reading.history.requests
    found = np.zeros(len(rows), bool)
    if facts is None or requests is None or "follows" not in requests:
        return found
    request, time = facts["request"][rows], facts["time_ns"][rows]
    some = np.flatnonzero((facts["kind"][rows] == ARRIVED) & (request < len(requests["follows"])))
    before = requests["follows"][request[some]]
    count = max(len(requests["follows"]), int(facts["request"].max(initial=-1)) + 1)
    ended = reading.residency.first_ns(count, FINISHED, CANCELLED, REJECTED, LOST)
    found[some] = (before >= 0) & (ended[before] == time[some])
    return found


def _taken_up(reading: Reading, policies: Policies) -> Finding:
    """Judge whether who is taken up is in the step that begins then, where that was recorded."""
    facts, pieces = reading.history.facts, reading.pieces
    assert facts is not None
    assert pieces is not None
    own = policies.each(lambda _, policy: int(policy.scheduler is None))[facts["replica"]] > 0
    rows = np.flatnonzero((facts["kind"] == ADMITTED) & ~own)
    rows = rows[~np.isin(rows, reading.hand_overs.reserved)]
    at = pieces.opened_by(facts, rows, failures=bool(reading.declared.down))
    begin = np.append(pieces.begin, -1)[at]
    same = np.append(pieces.replica, -1)[at] == facts["replica"][rows]
    return judged(
        len(rows), (at >= 0) & same & (begin != facts["time_ns"][rows]), "request {fact.request}",
        "is admitted at {fact.time_ns:,} ns, and the first step that carries it begins at {begin:,} ns", THEN,
        fact=Rows(facts, rows), begin=begin,
    )  # fmt: skip


def _between_steps(reading: Reading) -> Finding:
    """Judge whether nothing is decided on replicas of one stage while a step is under way there."""
    facts, runs = reading.history.facts, reading.runs
    assert facts is not None
    assert runs is not None
    single = [number for pool in reading.history.pools if pool.pp == 1 for number in _replicas(pool)]
    rows = reading.facts_of(ADMITTED, PREEMPTED, SWAPPED_IN)
    rows = rows[np.isin(facts["replica"][rows], single)]
    fails = np.unique([since for _, since, _ in reading.declared.down])
    rows = rows[~((facts["kind"][rows] == PREEMPTED) & np.isin(facts["time_ns"][rows], fails))]
    at = np.full(len(rows), -1)
    bounds = np.append(runs.bounds, runs.bounds[-1])
    for number, mine in RowsOf(facts["replica"][rows]):
        low, high = (bounds[min(number + more, len(runs.bounds))] for more in (0, 1))
        before = np.searchsorted(runs.start[low:high], facts["time_ns"][rows[mine]]) - 1
        at[mine] = np.where(before >= 0, low + before, -1)
    busy = (at >= 0) & (np.append(runs.recorded_end, -1)[at] > facts["time_ns"][rows])
    return judged(
        len(rows), busy, "replica {fact.replica}, request {fact.request}",
        "is {kind} at {fact.time_ns:,} ns, when a step is under way from {run.start:,} to {run.recorded_end:,} ns",
        THEN, fact=Rows(facts, rows), kind=Rows(FACTS, facts["kind"][rows]), run=Rows(runs, at),
    )  # fmt: skip


def _beside_steps(reading: Reading) -> Finding:
    """Judge whether something begins or ends on a replica when something is decided there.

    Of several stages that may be a pass; these are not looked at where some are cut off, and in two pools. When blocks
    may be set aside for what another pool computes, RUN-3 says.
    """
    facts, runs, passes, moves = reading.history.facts, reading.runs, reading.passes, reading.history.moves
    assert facts is not None
    assert runs is not None
    whole = passes is not None and not reading.declared.down and reading.declared.horizon_ns is None
    some = [number for pool in reading.history.pools if pool.pp == 1 or whole for number in _replicas(pool)]
    decided = is_any(facts["kind"], (ADMITTED, PREEMPTED, SWAPPED_IN))
    rows = without(np.flatnonzero(decided & np.isin(facts["replica"], some)), reading.hand_overs.reserved)
    anywhere = [instant for one in reading.declared.down for instant in one.instants]
    anywhere += [*given_up(reading.history).values()]
    ends = np.empty(0, np.int64) if moves is None else moves["end_ns"].astype(np.int64)
    idle = ~np.isin(facts["time_ns"][rows], np.concatenate((np.array(anywhere, np.int64), ends)))
    steps, others = RowsOf(runs.replica), np.flatnonzero(~decided)
    aside, held = RowsOf(facts["replica"][others]), None if passes is None else RowsOf(passes.replica)
    for number, apart in RowsOf(facts["replica"][rows]):
        if not idle[apart].any():
            continue
        its, more = steps.of(number), others[aside.of(number)]
        mine = held.of(number) if held is not None else its[:0]
        edges = (passes.start[mine], passes.end[mine]) if passes is not None else ()
        happens = (*edges, runs.start[its], runs.recorded_end[its], facts["time_ns"][more])
        idle[apart] &= ~_among(facts["time_ns"][rows[apart]], *happens)
    return judged(
        len(rows), idle, "replica {fact.replica}, request {fact.request}",
        "is {kind} at {fact.time_ns:,} ns, when nothing begins or ends there", THEN, fact=Rows(facts, rows),
        kind=Rows(FACTS, facts["kind"][rows]),
    )  # fmt: skip


def _among(values: Int64Array, *others: Int64Array) -> BoolArray:
    """Return which values are among others: those that are not yet found are looked up in one after the other."""
    found = np.zeros(len(values), bool)
    for each in others:
        left = np.flatnonzero(~found)
        if not len(left) or not len(each):
            continue
        there = each if (each[1:] >= each[:-1]).all() else np.sort(each)
        at = np.minimum(np.searchsorted(there, values[left]), len(there) - 1)
        found[left] = there[at] == values[left]
    return found


def _replicas(pool: Declared) -> range:
    return range(pool.first_replica, pool.first_replica + pool.dp)


def _in_their_order(reading: Reading) -> Finding:
    """Judge what two decisions of one instant that follow each other differ by, where nothing comes between them.

    Nothing does where prompts are taken up one after the other, where blocks are set aside for such as are computed
    elsewhere, and where sequences come back from their host. Of what one takes over from a prefix cache, all or none
    may have been in use.
    """
    facts, size = reading.history.facts, reading.declared.block_tokens
    assert facts is not None
    if size is None or any(pool.prefix_caching and keeps_whole(pool) for pool in reading.history.pools):
        return NOTHING
    used, order = facts["used"].astype(np.int64), reading.facts_in_time
    order = order[facts["kind"][order] != REUSED]  # which tells the same count once more
    follows = is_any(facts["kind"][order[1:]], (ADMITTED, SWAPPED_IN))
    for name in ("kind", "time_ns", "replica"):
        column = taken(facts[name], order)
        follows &= column[1:] == column[:-1]
    both = np.flatnonzero(follows)
    one, other = order[both], order[both + 1]
    change = _change(reading, other, size)
    known = change != 0
    due = used[one] + change
    over = _taken_over(reading, other) // size
    return judged(
        int(known.sum()), known & ((used[other] < due) | (used[other] > due + over)),
        "replica {fact.replica}, request {fact.request}",
        "{fact.used:,} blocks are told to be in use after it was {kind} at {fact.time_ns:,} ns, where {due:,} follow "
        "from what is told before",
        COUNT, fact=Rows(facts, other), kind=Rows(FACTS, facts["kind"][other]), due=due,
    )  # fmt: skip


def _change(reading: Reading, rows: Int64Array, size: int) -> Int64Array:
    """Return how many more blocks are in use after decisions than before; 0 where that does not follow."""
    facts, pieces = reading.history.facts, reading.pieces
    assert facts is not None
    assert pieces is not None
    found = np.zeros(len(rows), np.int64)
    kind = facts["kind"][rows]
    up = np.flatnonzero((kind == ADMITTED) & ~np.isin(rows, reading.hand_overs.reserved))
    at = pieces.opened_by(facts, rows[up], failures=bool(reading.declared.down))
    mine = (at >= 0) & (np.append(pieces.begin, -1)[at] == facts["time_ns"][rows[up]])
    mine &= np.append(pieces.is_chunk, False)[at]
    found[up] = np.where(mine, -(-np.append(pieces.count, 0)[at] // size), 0)
    for place in np.flatnonzero(kind != ADMITTED).tolist():
        row = rows[place]
        held = held_at(pieces, int(facts["request"][row]), int(facts["time_ns"][row]))
        found[place] = -(-held // size)
    aside = np.flatnonzero((kind == ADMITTED) & np.isin(rows, reading.hand_overs.reserved))
    found[aside] = -(-facts["value"][rows[aside]] // size)
    return found


def _taken_over(reading: Reading, rows: Int64Array) -> Int64Array:
    """Return how many tokens a request that is admitted takes over."""
    facts, told = reading.history.facts, reading.facts_of(REUSED)
    assert facts is not None
    found = np.zeros(len(rows), np.int64)
    if not len(told):
        return found
    after = reading.residency.after(np.isin(np.arange(len(facts["kind"])), told))[rows]
    mine = (after >= 0) & (facts["time_ns"][after] == facts["time_ns"][rows])
    return np.where(mine, facts["value"][after].astype(np.int64), found)


def _given_up(reading: Reading, policies: Policies) -> Finding:
    """Judge what is in use after a preemption for a sequence that decodes: it lacked one block, so that none was free.

    That is known of a step that carries all that runs, and no prompt, unless prompts give up their own blocks.
    """
    facts, pieces, runs = reading.history.facts, reading.pieces, reading.runs
    assert facts is not None
    assert pieces is not None
    assert runs is not None
    names = ("prefill_tokens", "batch_requests", "running")
    prefills, carried, running = (runs.column(name) for name in names)
    told = [
        pool.pool_blocks is not None and pool.block_tokens is not None and pool.pp == 1 and not pool.prefix_caching
        and pool.policy is not None and pool.policy.scheduler is not None and not pool.policy.swaps
        and not pool.policy.first_chunk
        for pool in policies.pools
    ]  # fmt: skip
    if reading.several_pools or prefills is None or carried is None or running is None or not any(told):
        return NOTHING
    rows = reading.facts_of(PREEMPTED)
    rows = rows[np.array(told, bool)[policies.pool_at[facts["replica"][rows]]]]
    rows = rows[~np.isin(facts["time_ns"][rows], [since for _, since, _ in reading.declared.down])]
    replica, time = (facts[name][rows].astype(np.int64) for name in ("replica", "time_ns"))
    at = np.full(len(rows), -1)
    start = np.append(runs.start, -1)
    for number, mine in RowsOf(replica):
        low, high = runs.bounds[number : number + 2].tolist() if number + 1 < len(runs.bounds) else (0, 0)
        place = low + np.searchsorted(runs.start[low:high], time[mine])
        at[mine] = np.where((place < high) & (start[place] == time[mine]), place, -1)
    some = (at >= 0) & (prefills[at] == 0) & (carried[at] == running[at]) if len(runs) else at >= 0
    rows = rows[some]
    pools = [policies.pools[number] for number in policies.pool_at[facts["replica"][rows]].tolist()]
    held = [
        -(-held_at(pieces, int(facts["request"][row]), int(facts["time_ns"][row])) // (pool.block_tokens or 1))
        for row, pool in zip(rows.tolist(), pools, strict=True)
    ]
    due = np.array([pool.pool_blocks or 0 for pool in pools], np.int64) - np.array(held, np.int64)
    return judged(
        len(rows), facts["used"][rows] != due, "replica {fact.replica}, request {fact.request}",
        "{fact.used:,} blocks are told to be in use after it was preempted at {fact.time_ns:,} ns, where all were "
        "before, and {due:,} follow",
        COUNT, fact=Rows(facts, rows), due=due,
    )  # fmt: skip
