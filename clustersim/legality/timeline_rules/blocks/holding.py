"""Who held which block when (the table ``held``), against what each sequence computed: KV-2, KV-5, KV-6 and KV-7.

A sequence has ceil(entries / block size) blocks from the start of the step that needs them until the last step that
reads them has ended, and gives them back when it ends or is preempted. ``freed_ns`` −1: it never did.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.timeline_rules.requests.phases import gaps
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.passes import within
from clustersim.values import dataclass

FOREVER = np.iinfo(np.int64).max
_NO_SIZE = "whether blocks hold all entries (block_tokens was not declared)"
_NO_STEPS = "whether blocks hold all entries (no steps, chunks and decodes were recorded)"


@dataclass(frozen=True, kw_only=True, eq=False)
class Holds:
    """Rows of ``held`` in order of (replica, block, instant); ``until`` is ``FOREVER`` where none was told."""

    replica: Int64Array
    block: Int64Array
    request: Int64Array
    taken: Int64Array
    freed: Int64Array
    until: Int64Array
    content: Int64Array

    def __len__(self) -> int:
        return len(self.block)

    def where(self, at: int) -> str:
        return f"replica {self.replica[at]}, block {self.block[at]}"

    def how_long(self, at: int) -> str:
        return "and never gives it back" if self.freed[at] < 0 else f"until {self.freed[at]:,} ns"

    @cached_property
    def before(self) -> Int64Array:
        """Return, of each row, the row among those before it of its block that ends last; −1 for the first."""
        first = np.ones(len(self), bool)
        first[1:] = (self.replica[1:] != self.replica[:-1]) | (self.block[1:] != self.block[:-1])
        found = np.full(len(self), -1, np.int64)
        longest = -1
        until = self.until.tolist()
        for row, opens in enumerate(first.tolist()):
            if not opens:
                found[row] = longest
            if opens or until[row] >= until[longest]:
                longest = row
        return found


def holds_of(reading: Reading) -> Holds | None:
    """Return who held which block when; None where it was not recorded."""
    held = reading.history.held
    if held is None:
        return None
    order = np.lexsort((held["taken_ns"], held["block"], held["replica"]))
    replica, block, request, taken, freed, content = (
        held[name][order].astype(np.int64)
        for name in ("replica", "block", "request", "taken_ns", "freed_ns", "content")
    )
    until = np.where(freed < 0, FOREVER, freed)
    return Holds(replica=replica, block=block, request=request, taken=taken, freed=freed, until=until, content=content)


def lent_to_one(reading: Reading) -> Finding:
    """KV-5: no block has two holders at a time, but for a shared prefix."""
    holds = holds_of(reading)
    if holds is None:
        return lacking("who holds which block (not recorded)")
    before = holds.before
    shared = (holds.content >= 0) & (holds.content == holds.content[before])
    broken = (before >= 0) & (holds.request != holds.request[before]) & ~shared
    broken &= holds.taken < holds.until[before]
    return judged(
        len(holds), broken, Rows(holds),
        "request {request} takes it at {taken:,} ns, request {before.request} has it {before.how_long}",
        "lend a block to one sequence at a time, or share a full prefix block of equal content",
        before=Rows(holds, before),
    )  # fmt: skip


def fits_pool(reading: Reading) -> Finding:
    """KV-6: the blocks that are held at a time, shared ones once, are no more than the pool has."""
    holds, pool = holds_of(reading), reading.declared.pool_blocks
    if holds is None or pool is None or not len(holds):
        return NOTHING
    before = holds.before
    until = np.maximum(holds.until, np.where(before >= 0, holds.until[before], 0))
    opens = (before < 0) | (holds.taken > holds.until[before])  # else it is, or may be, held already
    first = np.flatnonzero(opens)
    taken, replica = holds.taken[first], holds.replica[first]
    freed = until[np.append(first[1:], len(holds)) - 1]
    change = np.repeat((1, -1), len(first))
    time, of = np.concatenate((taken, freed)), np.concatenate((replica, replica))
    order = np.lexsort((change, time, of))  # what is given back at an instant can be lent at that instant
    # Every interval ends, if only at FOREVER: the sum is 0 where the next replica begins.
    live, at, taking = np.cumsum(change[order]), order, change[order] > 0
    last = np.append((time[at][1:] != time[at][:-1]) | (of[at][1:] != of[at][:-1]), True)  # of its instant
    return judged(
        len(holds), (live > pool) & taking & last, "replica {of}",
        "{live:,} blocks are held at {time:,} ns, the pool has {pool:,}", "admit fewer sequences", of=Rows(of, at),
        live=live, time=Rows(time, at), pool=pool,
    )  # fmt: skip


def given_back(reading: Reading) -> Finding:
    """KV-7: a request gives each block back, once, at the latest when it ends or is preempted."""
    holds = holds_of(reading)
    if holds is None:
        return NOTHING
    before = holds.before
    again = judged(
        0, (before >= 0) & (holds.request == holds.request[before]) & (holds.taken < holds.until[before]), Rows(holds),
        "request {request} takes it at {taken:,} ns, but has it already {before.how_long}",
        "take a block that is free", before=Rows(holds, before),
    )  # fmt: skip
    ends, why = _ends(reading, holds)
    late = holds.until > ends
    never = (holds.freed < 0) & (late | (reading.declared.horizon_ns is None))
    known = (ends < FOREVER) | (holds.freed < 0)
    lost = judged(
        int(known.sum()), late | never, Rows(holds),
        "request {request} has it {how_long}, {end}", "give a block back when its sequence ends or is preempted",
        end=lambda i: f"but {why[i]} at {ends[i]:,} ns" if ends[i] < FOREVER else "and the history has no horizon",
    )  # fmt: skip
    missing = reading.history.facts is None
    told = lacking("when blocks must come back (no facts were recorded)") if missing else NOTHING
    return merged(lost, again, told)


def _ends(reading: Reading, holds: Holds) -> tuple[Int64Array, list[str]]:
    """Return the instant by which each block must be back, and what its request does then."""
    found, why = np.full(len(holds), FOREVER, np.int64), ["finishes"] * len(holds)
    preempted: dict[int, list[int]] = {}
    for request, time in zip(*(part.tolist() for part in reading.preempted), strict=True):
        preempted.setdefault(request, []).append(time)
    finished = dict(zip(*(part.tolist() for part in reading.finished), strict=True))
    for row, (request, taken) in enumerate(zip(holds.request.tolist(), holds.taken.tolist(), strict=True)):
        found[row] = finished.get(request, FOREVER)
        gone = next((time for time in preempted.get(request, ()) if time > taken), FOREVER)
        if gone < found[row]:
            found[row], why[row] = gone, "is preempted"
    return found, why


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Needs:
    """Steps of sequences, and the blocks that each needs and has from its start to its end."""

    request: Int64Array
    replica: Int64Array
    step: Int64Array
    begin: Int64Array
    end: Int64Array
    entries: Int64Array
    needed: Int64Array
    had: Int64Array
    early: Int64Array
    """When the first block was given back that would have been needed; −1 where none was."""

    def where(self, at: int) -> str:
        return f"replica {self.replica[at]}, step {self.step[at]}, request {self.request[at]}"

    def blocks(self, at: int) -> str:
        return f"{self.needed[at]:,} {'block' if self.needed[at] == 1 else 'blocks'}"


def enough(reading: Reading) -> Finding:
    """KV-2: a step finds the entries that it reads and writes in blocks of its sequence."""
    needs = _needs(reading)
    if isinstance(needs, Finding):
        return needs
    return judged(
        len(needs.step), (needs.had < needs.needed) & (needs.early < 0), Rows(needs),
        "has {entries:,} entries, which need {blocks}; from {begin:,} to {end:,} ns it holds {had:,}",
        "take the blocks that a step needs before it starts",
    )  # fmt: skip


def kept(reading: Reading) -> Finding:
    """KV-7: no block is given back while a step of its sequence still needs it."""
    needs = _needs(reading)
    if isinstance(needs, Finding):
        return needs
    return judged(
        len(needs.step), (needs.had < needs.needed) & (needs.early >= 0), Rows(needs),
        "runs until {end:,} ns and needs {blocks}, but one was given back at {early:,} ns",
        "free the blocks of a sequence when its last step ends",
    )  # fmt: skip


def _needs(reading: Reading) -> _Needs | Finding:
    holds, pieces, runs, size = holds_of(reading), reading.pieces, reading.runs, reading.declared.block_tokens
    if holds is None:
        return NOTHING
    if pieces is None or runs is None:
        return lacking(_NO_STEPS)
    if size is None:
        return lacking(_NO_SIZE)
    some = np.flatnonzero(reading.plain & ~gaps(reading) & (runs.count[pieces.first_run] == 1))
    many = np.where(pieces.is_chunk[some], 1, pieces.count[some])
    piece, index = np.repeat(some, many), within(many)
    run = pieces.first_run[piece]
    later = index > 0  # the steps of an episode follow each other among those of its micro-batch
    run[later] = runs.run_at_place[runs.place[run[later]] + index[later]]
    entries = pieces.computed[piece] + np.where(pieces.is_chunk[piece], pieces.count[piece], index + 1)
    begin, end = runs.start[run], runs.end[run]
    turn = pieces.begin[_opened(pieces.restarts | ~pieces.follows)][piece]
    had, early = _had(holds, pieces.replica[piece], pieces.request[piece], begin, end, turn)
    needed = -(-entries // size)
    return _Needs(
        request=pieces.request[piece], replica=pieces.replica[piece], step=runs.step[run], begin=begin, end=end,
        entries=entries, needed=needed, had=had, early=early,
    )  # fmt: skip


def _opened(opens: BoolArray) -> Int64Array:
    """Return, of each piece, the last piece up to it that opens a turn."""
    return np.maximum.accumulate(np.where(opens, np.arange(len(opens)), 0))


def _had(
    holds: Holds, replica: Int64Array, request: Int64Array, begin: Int64Array, end: Int64Array, turn: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the blocks held throughout each step, and when the first was given back since its turn began."""
    had, early = np.zeros(len(begin), np.int64), np.full(len(begin), -1, np.int64)
    of_rows = rows_by(holds.replica, holds.request)
    for owner, steps in rows_by(replica, request).items():
        rows = of_rows.get(owner)
        if rows is None:
            continue
        if (begin[steps][1:] < begin[steps][:-1]).any() or (end[steps][1:] < end[steps][:-1]).any():
            had[steps] = FOREVER  # steps that overlap are left to PH-3
            continue
        taken, until = holds.taken[rows], holds.until[rows]
        # Steps of a sequence follow each other, so that a block misses those before it was taken and after it was
        # given back: of all that were taken in time, less those given back too soon.
        first = np.searchsorted(begin[steps], taken, side="left")
        last = np.searchsorted(end[steps], until, side="right")
        change = np.zeros(len(steps) + 1, np.int64)
        whole = last > first
        np.add.at(change, first[whole], 1)
        np.add.at(change, last[whole], -1)
        had[steps] = np.cumsum(change[:-1])
        ended = np.sort(until)
        at = np.searchsorted(ended, turn[steps], side="right")
        declared = np.append(ended, FOREVER)[at]
        early[steps] = np.where(declared < end[steps], declared, -1)
    return had, early


def rows_by(replica: Int64Array, request: Int64Array) -> dict[tuple[int, int], Int64Array]:
    """Return the rows of each replica and request, in their order."""
    order = np.lexsort((request, replica))
    ends = np.flatnonzero((np.diff(replica[order]) != 0) | (np.diff(request[order]) != 0)) + 1
    parts = np.split(order, ends) if len(order) else []
    return {(int(replica[part[0]]), int(request[part[0]])): part for part in parts}
