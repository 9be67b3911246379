"""KV-7: facts that allocate blocks, or come between those that do, count no more and no fewer than can be in use."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import Finding, Rows, judged, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FACTS,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    REUSED,
    SWAPPED_IN,
)
from clustersim.legality.timeline_rules.requests.told import from_to
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.use import Use
from clustersim.timeline.columns import is_any

COUNT = "tell the blocks that are in use right after each decision"


def told_right(reading: Reading, use: Use) -> Finding:
    """Judge what facts tell of blocks in use that do not end a request.

    What one instant decides is recorded in its order, and what each decision takes is not: in between, anything from
    what was in use before, without what is given back, to that with all that is taken may be right. The last
    admission of an instant has all that the step takes, and so has the last that comes back from its host.
    """
    facts, runs = reading.history.facts, reading.runs
    assert facts is not None
    assert runs is not None
    kind, replica, time, used = (facts[name].astype(np.int64) for name in ("kind", "replica", "time_ns", "used"))
    findings = []
    if reading.history.folded is not None:
        apart = np.isin(kind, (ARRIVED, REJECTED))
        findings.append(judged(
            0, np.where(apart, used != -1, (used < 0) | ((kind == LOST) & (used != 0))),
            "replica {fact.replica}, request {fact.request}",
            "when it is {kind}, {fact.used:,} blocks are told to be in use", COUNT, fact=Rows(facts),
            kind=Rows(FACTS, kind),
        ))  # fmt: skip
    if reading.history.folded is not None:
        findings += [_nothing_left(reading, replica, time, used), _given_up(reading)]
    rows = use.others[np.append(reading.sound, False)[np.minimum(replica[use.others], len(reading.sound))]]
    rows = rows[used[rows] >= 0]
    place = np.searchsorted(use.others, rows)
    low, high = use.least[place], use.greatest[place]
    order = reading.facts_in_time
    last = np.append((replica[order][1:] != replica[order][:-1]) | (time[order][1:] != time[order][:-1]), True)
    final = np.zeros(len(kind), bool)
    final[order] = last[: len(order)]
    at, by_replica = runs.bounds[replica[rows]], np.argsort(replica[rows], kind="stable")
    edges = np.searchsorted(replica[rows][by_replica], np.arange(len(runs.bounds)))
    for number in runs.replicas:
        mine = by_replica[edges[number] : edges[number + 1]]
        inside = slice(int(runs.bounds[number]), int(runs.bounds[number + 1]))
        at[mine] += np.searchsorted(runs.start[inside], time[rows[mine]])
    exact = (
        final[rows] & np.isin(kind[rows], (ADMITTED, REUSED, SWAPPED_IN)) & ~np.isin(rows, reading.hand_overs.reserved)
    )
    exact &= reading.history.folded is not None  # elsewhere blocks may be taken later, when the step begins
    after = np.append(use.at_run, 0)[at]
    low, high = np.where(exact, after, low), np.where(exact, after, high)
    findings.append(judged(
        len(rows), (used[rows] < low) | (used[rows] > high), "replica {fact.replica}, request {fact.request}",
        "after it was {kind} at {fact.time_ns:,} ns, {fact.used:,} blocks are told to be in use, where {blocks} follow "
        "from the tokens",
        COUNT, fact=Rows(facts, rows), kind=Rows(FACTS, kind, rows), blocks=lambda i: from_to(low[i], high[i]),
    ))  # fmt: skip
    return merged(*findings)


def _nothing_left(reading: Reading, replica: Int64Array, time: Int64Array, used: Int64Array) -> Finding:
    """Judge whether no block is in use after the last that is decided of a replica when it fails."""
    last = []
    for failed, since, _ in reading.declared.down:
        there = np.flatnonzero((replica == failed) & (time == since) & (used >= 0))
        last += there[-1:].tolist()
    rows = np.array(last, np.int64)
    return judged(
        len(rows), used[rows] != 0, "replica {replica}",
        "fails at {time:,} ns, and {used:,} blocks are told to be in use then",
        "take all blocks back when a replica fails", replica=Rows(replica, rows), time=Rows(time, rows),
        used=Rows(used, rows),
    )  # fmt: skip


def _given_up(reading: Reading) -> Finding:
    """Judge what is in use while a replica that fails gives its sequences up: each gives back what it holds.

    It holds blocks for the entries that it had, and for no more than its tokens: a step that was cut off may have taken
    them. After the last none is left.
    """
    facts, size, rows, low, high = reading.history.facts, reading.declared.block_tokens, [], [], []
    assert facts is not None
    assert size is not None
    for failed, since, _ in reading.declared.down:
        if not reading.sound[failed : failed + 1].all():
            continue
        there = np.flatnonzero((facts["replica"] == failed) & (facts["time_ns"] == since))
        other = np.flatnonzero(~is_any(facts["kind"][there], (PREEMPTED, CANCELLED, LOST, ARRIVED)))
        there = there[int(other.max(initial=-1)) + 1 :]
        there = there[is_any(facts["kind"][there], (PREEMPTED, CANCELLED))]
        for row, after in zip(there[:-1].tolist(), there[1:].tolist(), strict=True):
            left = int(facts["used"][after])
            least, most = (-(-tokens // size) for tokens in _entries(reading, after))
            rows.append(row)
            low.append(left if reading.prefixes.share_on(failed) else left + least)
            high.append(left + most)
    at = np.array(rows, np.int64)
    used = facts["used"][at].astype(np.int64)
    return judged(
        len(at), (used < np.array(low, np.int64)) | (used > np.array(high, np.int64)),
        "replica {fact.replica}, request {fact.request}",
        "after it was given up at {fact.time_ns:,} ns by a replica that fails, {fact.used:,} blocks are told to be in "
        "use, where {blocks} follow from what the next one gives back",
        COUNT, fact=Rows(facts, at), blocks=lambda i: from_to(low[i], high[i]),
    )  # fmt: skip


def _entries(reading: Reading, row: int) -> tuple[int, int]:
    """Return the entries for which a sequence that is given up has blocks, at least and at most."""
    facts, pieces, prompts = reading.history.facts, reading.pieces, reading.prompts
    assert facts is not None
    assert pieces is not None
    assert prompts is not None
    request, replica, since = (int(facts[name][row]) for name in ("request", "replica", "time_ns"))
    most = int(prompts[request : request + 1].sum()) + int(facts["value"][row])
    mine = reading.residency.among((facts["request"] == request) & (facts["replica"] == replica))
    before = mine[: int(np.flatnonzero(mine == row)[0])]
    last = int(before[-1]) if len(before) else row
    if facts["kind"][last] not in (ADMITTED, REUSED, RECEIVED):
        return 0, most
    came = facts["kind"][last] == RECEIVED or last in reading.hand_overs.reserved
    least = int(facts["value"][last]) if came or facts["kind"][last] == REUSED else 0
    low, high = np.searchsorted(pieces.request, (request, request + 1))
    ended = np.arange(low, high)
    ended = ended[(pieces.replica[ended] == replica) & (pieces.end[ended] <= since)]
    ended = ended[pieces.begin[ended] >= facts["time_ns"][last]]
    return int((pieces.computed + pieces.count)[ended].max(initial=least)), most
