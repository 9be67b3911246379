"""RUN-5 where prefixes are shared: what is cached is taken over, and of what nobody holds the oldest goes first.

::

    free blocks of a pool, in the order in which they are taken:  ── oldest ─── … ─── this one ─── newer ──
                                                                  └──────── ahead ────────┘

A block that nobody holds any longer is taken after those that were free before it, and before those that came free
later. How many were free is recorded, and how many were taken since follows from what was computed. So a block is
surely cached while it is held, or while fewer were taken or taken over since than were ahead, and surely forgotten when
more were taken. In between nothing follows, since who was taken over may have been ahead or not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clustersim.legality.finding import NOTHING, Fault, Finding, lacking, merged
from clustersim.legality.history import ADMITTED, PREEMPTED, REUSED, Declared
from clustersim.legality.timeline_rules.policy.declared import NO_LIMIT, Policies
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.use import returns
from clustersim.timeline.tables import Table

FIX: Final = "take over the longest start of a prompt that is cached, and forget what has been free for longest first"
FILLED, RELEASED, DECIDED = range(3)
DECISIONS: Final = (PREEMPTED,)


@dataclass(slots=True, kw_only=True)
class Pool:
    """Cached blocks of one replica, by content, and whose they are.

    Parameters
    ----------
    time, end, taken : lists of int
        When steps start and end, in order of starts, and how many blocks had been taken before each and by all.
    over_time, over : lists of int
        When blocks are taken over, and how many had been before each and by all.
    holders : dict
        Content → how many hold it.
    free : dict
        Content that nobody holds → since when, and how many free blocks were ahead of it: at least, and at most.
    held : dict
        Request → what it holds.
    """

    time: list[int]
    end: list[int]
    taken: list[int]
    over_time: list[int]
    over: list[int]
    holders: dict[int, int] = field(default_factory=dict)
    free: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    held: dict[int, list[int]] = field(default_factory=dict)

    def hold(self, request: int, contents: list[int]) -> None:
        """Let one more sequence hold blocks."""
        holders = self.holders
        for content in contents:
            holders[content] = holders.get(content, 0) + 1
        self.held.setdefault(request, []).extend(contents)

    def release(self, request: int, now: int, free: int) -> None:
        """Let a sequence give its blocks back, after which so many are free: its last one before its first."""
        holders, ahead = self.holders, free - 1
        for place, content in enumerate(self.held.pop(request, ())):
            left = holders[content] - 1
            if left:
                holders[content] = left
            else:
                del holders[content]
                self.free[content] = now, ahead - place, ahead

    def taken_since(self, since: int, now: int) -> tuple[int, int]:
        """Return how many blocks were taken between instants, at most and at least."""
        begun = bisect_right(self.end, since)  # one under way may take more
        most = self.taken[bisect_right(self.time, now)] - self.taken[min(bisect_left(self.time, since), begun)]
        most += self.over[bisect_right(self.over_time, now)] - self.over[bisect_left(self.over_time, since)]
        after, ended = bisect_right(self.time, since), bisect_right(self.end, now)
        return most, self.taken[ended] - self.taken[after] if ended > after else -NO_LIMIT


def as_cached(reading: Reading, policies: Policies) -> Finding:
    """Judge how much of each prompt is taken over."""
    facts, pieces, contents = reading.history.facts, reading.pieces, reading.prefixes.contents
    if facts is None or pieces is None or "used" not in facts or "value" not in facts:
        return NOTHING
    found = []
    for declared in policies.pools:
        if not declared.prefix_caching or declared.policy is None or declared.policy.scheduler is None:
            continue
        if contents is None or declared.down or not reading.plain.all() or declared.sp_decode == "dp":
            found.append(lacking("whether all that is cached is taken over (several pools, or something fails)"))
            continue
        replicas = range(declared.first_replica, declared.first_replica + declared.dp)
        found += [_of_replica(reading, declared, facts, replica) for replica in replicas]
    return merged(*found)


def _of_replica(reading: Reading, declared: Declared, facts: Table, replica: int) -> Finding:
    pieces, contents, runs, size = reading.pieces, reading.prefixes.contents, reading.runs, declared.block_tokens
    if pieces is None or contents is None or runs is None or size is None or declared.pool_blocks is None:
        return NOTHING
    here = np.flatnonzero(pieces.replica == replica)
    blocks_after = -(-(pieces.computed + pieces.count) // size)[here]
    takes = blocks_after + (-pieces.computed[here] // size)
    order = np.argsort(pieces.begin[here], kind="stable")
    over = np.flatnonzero((facts["kind"] == REUSED) & (facts["replica"] == replica))
    over = over[np.argsort(facts["time_ns"][over], kind="stable")]
    pool = Pool(
        time=pieces.begin[here][order].tolist(), end=np.maximum.accumulate(pieces.end[here][order]).tolist(),
        taken=[0, *np.cumsum(takes[order]).tolist()], over_time=facts["time_ns"][over].tolist(),
        over=[0, *np.cumsum(facts["value"][over].astype(np.int64) // size).tolist()],
    )  # fmt: skip
    reused = {
        (request, time): tokens // size
        for request, time, tokens in zip(
            *(facts[name][over].tolist() for name in ("request", "time_ns", "value")), strict=True
        )
    }
    chunks = here[pieces.is_chunk[here]]
    rows, _, _ = returns(reading.history, pieces, size, reading.hand_overs)
    gone = rows[facts["replica"][rows] == replica]
    came = np.flatnonzero((facts["kind"] == ADMITTED) & (facts["replica"] == replica))
    time = np.concatenate((pieces.end[chunks], facts["time_ns"][gone], facts["time_ns"][came])).astype(np.int64)
    decided = np.isin(facts["kind"][gone], DECISIONS)
    phase = np.concatenate(
        (np.full(len(chunks), FILLED), np.where(decided, DECIDED, RELEASED), np.full(len(came), DECIDED))
    )
    what = np.repeat((FILLED, RELEASED, DECIDED), (len(chunks), len(gone), len(came)))
    row = np.concatenate((chunks, gone, came))
    faults: list[Fault] = []
    last = int(runs.start[runs.replica == replica].max(initial=-1))
    for at in np.lexsort((row, phase, time)).tolist():
        now, kind, one = int(time[at]), int(what[at]), int(row[at])
        if kind == FILLED:
            request, filled = int(pieces.request[one]), int(pieces.computed[one] + pieces.count[one])
            full = min(filled // size, int(contents.blocks[request]))
            first = len(pool.held.get(request, ()))
            pool.hold(request, contents.row(request, first, full).tolist())
            continue
        request = int(facts["request"][one])
        if kind == RELEASED:
            pool.release(request, now, declared.pool_blocks - int(facts["used"][one]))
            continue
        taken = reused.get((request, now), 0)
        most = min(int(contents.blocks[request]), (int(facts["value"][one]) - 1) // size)
        prompt: list[int] = contents.row(request, 0, most).tolist()
        if now <= last and (message := _wrong(pool, prompt, taken, now)):
            where = f"replica {replica}, request {request}"
            faults.append(Fault(where=where, message=f"takes over {taken:,} blocks at {now:,} ns, {message}", fix=FIX))
        pool.hold(request, prompt[:taken])
    return Finding(looked_at=len(came), faults=tuple(faults[:1]))


def _wrong(pool: Pool, prompt: list[int], taken: int, now: int) -> str:
    """Return what is wrong with taking over so many blocks of a prompt; empty where nothing is."""
    last, most, fewest = -1, 0, 0
    for place, content in enumerate(prompt[: taken + 1]):
        cached = content in pool.holders
        if not cached and content not in pool.free:
            return f"and block {place} of its prompt is not cached any longer" if place < taken else ""
        if not cached:
            since, least_ahead, most_ahead = pool.free[content]
            if since != last:
                last, (most, fewest) = since, pool.taken_since(since, now)
            cached = most <= least_ahead
            if place < taken and not cached and fewest > most_ahead:
                return f"and block {place} of its prompt is not cached any longer"
        if place == taken and cached:
            return f"and block {place} of its prompt is cached, too"
    return ""
