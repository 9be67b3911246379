"""RUN-5 where prefixes are shared: what is cached is taken over, and of what nobody holds the oldest goes first.

::

    free blocks of a pool, in the order in which they are taken:  ── oldest ─── … ─── this one ─── newer ──

A block that nobody holds any longer is taken after those that were free before it, and before those that came free
later; of one sequence first those without content, then its last block before its first. Each fact, and each step,
tells how many blocks are in use after it; so what was taken since the one before follows, and with it what is
forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Final

import numpy as np

from clustersim.legality.finding import NOTHING, Fault, Finding, lacking, merged
from clustersim.legality.history import ADMITTED, PREEMPTED, REUSED, Declared
from clustersim.legality.timeline_rules.policy.declared import Policies, keeps_whole
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.use import returns
from clustersim.timeline.columns import is_any
from clustersim.timeline.tables import Table
from clustersim.values import dataclass

FIX: Final = "take over the longest start of a prompt that is cached, and forget what has been free for longest first"
COUNT: Final = "tell the blocks that are in use right after each decision"
FILLED, RELEASED, DECIDED, BEGUN = range(4)
"""What happens in which order at one instant."""
DECISIONS: Final = (PREEMPTED,)


@dataclass(slots=True, kw_only=True)
class Pool:
    """The blocks of one replica.

    Parameters
    ----------
    free : int
        How many nobody holds.
    queue : OrderedDict of int to int
        These in the order in which they are taken: content → 1, or a negative number → so many without content.
    holders : dict
        Content → how many hold it; 0 while it is cached only.
    held : dict
        Request → the contents that it holds.
    runs : int
        The last of those negative numbers.
    """

    free: int
    queue: OrderedDict[int, int]
    holders: dict[int, int] = field(default_factory=dict)
    held: dict[int, list[int]] = field(default_factory=dict)
    runs: int = -1

    def take(self, blocks: int) -> bool:
        """Take free blocks and forget what they hold; return whether there were so many."""
        if not 0 <= blocks <= self.free:
            return False
        self.free -= blocks
        while blocks:
            content, many = self.queue.popitem(last=False)
            if content >= 0:
                del self.holders[content]
            elif many > blocks:
                self.queue[content] = many - blocks
                self.queue.move_to_end(content, last=False)
            blocks -= min(many, blocks)
        return True

    def give(self, blocks: int) -> None:
        """Let blocks without content be free."""
        if blocks:
            self.runs -= 1
            self.queue[self.runs] = blocks
            self.free += blocks

    def hold(self, request: int, contents: list[int]) -> None:
        """Let one more sequence hold what is cached."""
        for content in contents:
            if not self.holders[content]:
                del self.queue[content]
                self.free -= 1
            self.holders[content] += 1
        self.held.setdefault(request, []).extend(contents)

    def fill(self, request: int, contents: list[int]) -> None:
        """Let blocks of a sequence have a content; where that is cached already, the copy is free."""
        for content in contents:
            if content in self.holders:
                self.hold(request, [content])
                self.give(1)
            else:
                self.holders[content] = 1
                self.held.setdefault(request, []).append(content)

    def release(self, request: int, blocks: int) -> None:
        """Let a sequence give so many blocks back, its last one before its first; contents stay."""
        contents = self.held.pop(request, [])
        self.give(blocks - len(contents))
        for content in reversed(contents):
            self.holders[content] -= 1
            if not self.holders[content]:
                self.queue[content] = 1
                self.free += 1

    def comes_back(self, request: int, blocks: int) -> int:
        """Return how many of the blocks that a sequence gives back nobody else holds."""
        contents = self.held.get(request, [])
        return blocks - len(contents) + sum(self.holders[content] == 1 for content in contents)

    def cached(self, contents: list[int]) -> int:
        """Return how many of the first contents are cached."""
        return next((at for at, content in enumerate(contents) if content not in self.holders), len(contents))

    def unheld(self, contents: list[int]) -> int:
        """Return how many of some contents nobody holds."""
        return sum(not self.holders.get(content, 1) for content in contents)


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
    contents, size = reading.prefixes.contents, declared.block_tokens
    here = reading.rows_at(facts["replica"], replica)
    came = here[facts["kind"][here] == ADMITTED]
    if reading.pieces is None or contents is None or reading.runs is None or size is None:
        return NOTHING
    if declared.pool_blocks is None or "kv_blocks_used" not in reading.runs.table:
        return NOTHING
    if not contents.numbers:  # nothing is known of any prompt: none takes over anything that could be told
        return Finding(looked_at=len(came))
    faults = tuple(_wrong(reading, declared.pool_blocks, size, facts, came, replica))
    return Finding(looked_at=len(came), faults=faults[:1])


def _wrong(reading: Reading, blocks: int, size: int, facts: Table, came: Any, replica: int) -> Iterator[Fault]:
    """Yield admissions that take over more, or less, than is cached."""
    pieces, runs, contents = reading.pieces, reading.runs, reading.prefixes.contents
    assert pieces is not None
    assert runs is not None
    assert contents is not None
    used = runs.column("kv_blocks_used")
    assert used is not None
    begun, chunks = (reading.rows_at(one.replica, replica) for one in (runs, pieces))
    chunks = chunks[pieces.is_chunk[chunks]]
    rows, _, amount = returns(reading.history, pieces, size, reading.hand_overs)
    mine = facts["replica"][rows] == replica
    gone, gives = rows[mine], dict(zip(rows[mine].tolist(), amount[mine].tolist(), strict=True))
    over = reading.rows_at(facts["replica"], replica)
    over = over[facts["kind"][over] == REUSED]
    told = zip(*(facts[name][over].tolist() for name in ("request", "time_ns", "value")), strict=True)
    reused = {(request, time): tokens // size for request, time, tokens in told}
    opens = dict(zip(came.tolist(), pieces.opened_by(facts, came, failures=False).tolist(), strict=True))
    last = int(runs.start[begun].max(initial=-1))
    decides = is_any(facts["kind"][gone], DECISIONS)
    events = (
        (FILLED, pieces.end[chunks], chunks),
        (RELEASED, facts["time_ns"][gone[~decides]], gone[~decides]),
        (DECIDED, facts["time_ns"][gone[decides]], gone[decides]),
        (DECIDED, facts["time_ns"][came], came),
        (BEGUN, runs.start[begun], begun),
    )
    time, row = (np.concatenate([event[at] for event in events]).astype(np.int64) for at in (1, 2))
    phase = np.repeat([event[0] for event in events], [len(event[2]) for event in events])
    single, decided = reading.declared.pp == 1, -1
    pool = Pool(free=blocks, queue=OrderedDict({-1: blocks}))
    for at in np.lexsort((row, phase, time)).tolist():
        now, kind, one = int(time[at]), int(phase[at]), int(row[at])
        if kind == FILLED:
            request, filled = int(pieces.request[one]), int(pieces.computed[one] + pieces.count[one])
            full = min(filled // size, int(contents.blocks[request]))
            pool.fill(request, contents.row(request, len(pool.held.get(request, ())), full).tolist())
            continue
        if kind == BEGUN:
            if not pool.take(pool.free - blocks + int(used[one])):
                return
            continue
        request, free = int(facts["request"][one]), blocks - int(facts["used"][one])
        if one in gives:
            decided = -1
            if not pool.take(pool.free + pool.comes_back(request, gives[one]) - free):
                return
            pool.release(request, gives[one])
            continue
        taken, opened = reused.get((request, now), 0), opens[one]
        if now > last or opened < 0:
            return  # how many blocks each of the cut-off step took does not follow
        most = min(int(contents.blocks[request]), (int(facts["value"][one]) - 1) // size)
        prompt = contents.row(request, 0, most).tolist()
        own = -(-(taken * size + int(pieces.count[opened])) // size) - taken
        grown = pool.free - pool.unheld(prompt[:taken]) - own - free
        if single and now == decided and grown:
            due = blocks - pool.free + pool.unheld(prompt[:taken]) + own
            yield Fault(
                where=f"replica {replica}, request {request}",
                message=f"{blocks - free:,} blocks are told to be in use after it was admitted at {now:,} ns, where "
                f"{due:,} follow from what is told before",
                fix=COUNT,
            )
        decided = now
        if not pool.take(grown):
            return
        cached = pool.cached(prompt)
        if taken != cached:
            where, what = f"replica {replica}, request {request}", f"takes over {taken:,} blocks at {now:,} ns, "
            why = f"and block {min(taken, cached)} of its prompt is "
            why += "cached, too" if taken < cached else "not cached any longer"
            yield Fault(where=where, message=what + why, fix=FIX)
            return
        pool.hold(request, prompt[:taken])
        if not pool.take(own):
            return
