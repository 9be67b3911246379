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

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Fault, Finding, lacking, merged
from clustersim.legality.history import ADMITTED, PREEMPTED, REUSED, Declared
from clustersim.legality.timeline_rules.policy.declared import NO_LIMIT, Policies, keeps_whole
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
    holders : int64 array of shape (contents,)
        How many hold each.
    free : int64 array of shape (contents, 3)
        Since when nobody has held each, and how many free blocks were ahead of it: at least, and at most; −1 where it
        was never held.
    held : dict
        Request → what it holds.
    """

    time: list[int]
    end: list[int]
    taken: list[int]
    over_time: list[int]
    over: list[int]
    holders: Int64Array
    free: Int64Array
    held: dict[int, Int64Array] = field(default_factory=dict)

    def hold(self, request: int, contents: Int64Array) -> None:
        """Let one more sequence hold blocks."""
        np.add.at(self.holders, contents, 1)
        before = self.held.get(request)
        self.held[request] = contents if before is None else np.concatenate((before, contents))

    def release(self, request: int, now: int, free: int) -> None:
        """Let a sequence give its blocks back, after which so many are free: its last one before its first."""
        contents = self.held.pop(request, np.empty(0, np.int64))
        np.subtract.at(self.holders, contents, 1)
        places = np.flatnonzero(self.holders[contents] == 0)
        left, ahead = contents[places], free - 1
        self.free[left, 0] = now
        self.free[left, 1] = ahead - places
        self.free[left, 2] = ahead

    def taken_since(self, since: int, now: int) -> tuple[int, int]:
        """Return how many blocks were taken between instants, at most and at least."""
        begun = bisect_right(self.end, since)  # one under way may take more
        most = self.taken[bisect_right(self.time, now)] - self.taken[min(bisect_left(self.time, since), begun)]
        most += self.over[bisect_right(self.over_time, now)] - self.over[bisect_left(self.over_time, since)]
        after, ended = bisect_right(self.time, since), bisect_right(self.end, now)
        return most, self.taken[ended] - self.taken[after] if ended > after else -NO_LIMIT


def as_cached(reading: Reading, policies: Policies) -> Finding:
    """Judge how much of each prompt is taken over."""
    facts, pieces = reading.history.facts, reading.pieces
    if facts is None or pieces is None or "used" not in facts or "value" not in facts:
        return NOTHING
    found = []
    for declared in policies.pools:
        if not declared.prefix_caching or declared.policy is None or declared.policy.scheduler is None:
            continue
        if why := _unknown(reading, declared):
            found.append(lacking(f"whether all that is cached is taken over ({why})"))
            continue
        replicas = range(declared.first_replica, declared.first_replica + declared.dp)
        found += [_of_replica(reading, declared, facts, replica) for replica in replicas]
    return merged(*found)


def _unknown(reading: Reading, declared: Declared) -> str:
    """Return why it does not follow what is cached in a pool; empty where it does."""
    contents = reading.prefixes.contents
    if contents is None:
        return "what prompts hold was not recorded"
    if contents.numbers == 0:
        return ""
    if declared.down:
        return "something fails"
    if keeps_whole(declared):
        return "each SP rank has a cache of its own"
    return "" if reading.plain.all() else "some request changes replicas, or is in two steps at once"


def _of_replica(reading: Reading, declared: Declared, facts: Table, replica: int) -> Finding:
    pieces, contents, runs, size = reading.pieces, reading.prefixes.contents, reading.runs, declared.block_tokens
    if pieces is None or contents is None or runs is None or size is None or declared.pool_blocks is None:
        return NOTHING
    came = np.flatnonzero((facts["kind"] == ADMITTED) & (facts["replica"] == replica))
    if not contents.numbers:  # nothing is known of any prompt: none takes over anything that could be told
        return Finding(looked_at=len(came))
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
        holders=np.zeros(contents.numbers, np.int64), free=np.full((contents.numbers, 3), -1),
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
            pool.hold(request, contents.row(request, first, full))
            continue
        request = int(facts["request"][one])
        if kind == RELEASED:
            pool.release(request, now, declared.pool_blocks - int(facts["used"][one]))
            continue
        taken = reused.get((request, now), 0)
        most = min(int(contents.blocks[request]), (int(facts["value"][one]) - 1) // size)
        prompt = contents.row(request, 0, most)
        if now <= last and (message := _wrong(pool, prompt, taken, now)):
            where = f"replica {replica}, request {request}"
            faults.append(Fault(where=where, message=f"takes over {taken:,} blocks at {now:,} ns, {message}", fix=FIX))
        pool.hold(request, prompt[:taken])
    return Finding(looked_at=len(came), faults=tuple(faults[:1]))


def _wrong(pool: Pool, prompt: Int64Array, taken: int, now: int) -> str:
    """Return what is wrong with taking over so many blocks of a prompt; empty where nothing is."""
    last, most, fewest = -1, 0, 0
    some = prompt[: taken + 1]
    held = pool.holders[some] > 0
    # What somebody holds is cached: only what nobody holds is looked at one by one, and the one that was not taken.
    places = np.append(np.flatnonzero(~held[:taken]), np.arange(taken, len(some)))
    free = pool.free[some[places]].tolist()
    for place, (since, least_ahead, most_ahead) in zip(places.tolist(), free, strict=True):
        cached = bool(held[place])
        if not cached and since < 0:
            return f"and block {place} of its prompt is not cached any longer" if place < taken else ""
        if not cached:
            if since != last:
                last, (most, fewest) = since, pool.taken_since(since, now)
            cached = most <= least_ahead
            if place < taken and not cached and fewest > most_ahead:
                return f"and block {place} of its prompt is not cached any longer"
        if place == taken and cached:
            return f"and block {place} of its prompt is cached, too"
    return ""
