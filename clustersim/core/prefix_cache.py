"""Blocks of prompts that outlive their sequences, so that prompts with an equal start compute it once.

``serving.prefix_cache`` says the rules. Blocks are kept in runs: of each the first are cached, of these the first are
held, and the others became free from the last one on. Free blocks are a queue of *extents*: blocks of one run that
became free together, or blocks without content. What was taken from the queue is forgotten when somebody looks
(:func:`forget_taken`), so that steps which only decode count their blocks and do nothing else.
"""

from __future__ import annotations

from typing import Any, Final

from clustersim.compiled import Record
from clustersim.core.progress import decodes_next, free_of, take_free

NOTHING: Final = 0
"""The run of blocks without content, and the extent before the first and behind the last one; others have 1 or more."""


class PrefixCache(Record):
    """Of an owner's pool: blocks in its queue, how many extents were made, and the first of those that are spare."""

    __slots__ = ("free", "made", "spare")


class PrefixRun(Record):
    """What an owner's pool has of a run of blocks.

    ``cached`` and ``held`` count its first blocks. Of its ``holders``, ``longest`` hold as many as ``held`` says. Its
    free blocks are in its ``latest`` extents, as many as are cached and not held.
    """

    __slots__ = ("cached", "held", "holders", "latest", "longest")


class Extent(Record):
    """Free blocks of a run, those ``before`` and ``behind`` it in the queue, and the ``earlier`` ones of its run."""

    __slots__ = ("before", "behind", "blocks", "earlier", "run")


class PrefixRouting(Record):
    """When a router follows the cache (``serving.config.PrefixRouting``)."""

    floats = ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold")
    __slots__ = floats


# ---- the queue of free blocks ---------------------------------------------------------------------------------------
def drop_extent(cache: Any, extents: Any, at: int) -> None:
    """Take an extent out of the queue."""
    before, behind = extents[at].before, extents[at].behind
    extents[before].behind = behind
    extents[behind].before = before
    extents[at].behind = cache.spare
    cache.spare = at


def free_blocks(cache: Any, extents: Any, runs: Any, run: int, blocks: int) -> None:
    """Put blocks of a run, or without content, behind the other free ones."""
    if blocks == 0:
        return
    cache.free += blocks
    last, at = extents[NOTHING].before, cache.spare
    if run == NOTHING and last != NOTHING and extents[last].run == NOTHING:
        extents[last].blocks += blocks
        return
    if at == NOTHING:
        at = cache.made
        cache.made += 1
    else:
        cache.spare = extents[at].behind
    extent = extents[at]
    extent.run, extent.blocks, extent.before, extent.behind = run, blocks, last, NOTHING
    extents[last].behind = extents[NOTHING].before = at
    extent.earlier, runs[run].latest = runs[run].latest, at


def forget_taken(cache: Any, extents: Any, runs: Any, free: int) -> None:
    """Forget what the blocks held that were taken, the first of the queue, so that so many are free.

    Links to an extent that goes by that are not followed any more: those of its run that are free are behind it.
    """
    left = max(cache.free - free, 0)
    cache.free -= left
    while left > 0:
        at = extents[NOTHING].behind
        extent = extents[at]
        taken = min(left, extent.blocks)
        extent.blocks -= taken
        left -= taken
        runs[extent.run].cached -= taken
        if extent.blocks == 0:
            drop_extent(cache, extents, at)


# ---- runs -----------------------------------------------------------------------------------------------------------
def hold(cache: Any, extents: Any, run: Any, before: int, after: int) -> int:
    """Let a sequence hold more of the first blocks of a run, which are cached; return how many of them were free."""
    found = max(0, after - run.held)
    add_holder(run, before, after)
    cache.free -= found
    left = found
    while left > 0:
        at = run.latest
        taken = min(left, extents[at].blocks)
        extents[at].blocks -= taken
        left -= taken
        if extents[at].blocks == 0:
            run.latest = extents[at].earlier
            drop_extent(cache, extents, at)
    return found


def add_holder(run: Any, before: int, after: int) -> None:
    """Let a sequence hold so many blocks of a run ``after``, and ``before`` as many or fewer."""
    if after == 0:
        return
    if before == 0:
        run.holders += 1
    elif before == run.held:
        run.longest -= 1
    if after > run.held:
        run.held, run.longest = after, 0
    if after == run.held:
        run.longest += 1


def find_longest(s: Any, r: int, one: int, key: int) -> None:
    """Find out how many blocks of a run are held when one of its holders goes."""
    rep, run, owner = s.replicas[r], s.prefix_runs[cache_of(s, r, one)][key], s.sequences[one].owner
    run.held = run.longest = 0
    for place in range(rep.running if run.holders > 0 else 0):
        other = s.order[r][place]
        mine = blocks_held(s, other, key) if other != one and s.sequences[other].owner == owner else 0
        if mine > run.held:
            run.held, run.longest = mine, 0
        if mine > 0 and mine == run.held:
            run.longest += 1
    other = rep.first_kept
    while other >= 0:
        mine = blocks_held(s, other, key) if other != one and s.sequences[other].owner == owner else 0
        if mine > run.held:
            run.held, run.longest = mine, 0
        if mine > 0 and mine == run.held:
            run.longest += 1
        other = s.sequences[other].behind


def blocks_held(s: Any, one: int, key: int) -> int:
    """Return how many blocks a sequence holds of a run."""
    seq, begin = s.sequences[one], 0
    for at in range(s.prefix_first[seq.request], s.prefix_end[seq.request]):
        if begin >= seq.shared:
            break
        if s.prefix_of[at] == key:
            return min(s.prefix_blocks[at], seq.shared - begin)
        begin += s.prefix_blocks[at]
    return 0


# ---- sequences ------------------------------------------------------------------------------------------------------
def cache_of(s: Any, r: int, one: int) -> int:
    """Return which cache is of the pool that keeps a sequence."""
    return s.replicas[r].first_owner + s.sequences[one].owner


def cached_blocks(s: Any, r: int, owner: int, request: int, tokens: int, taken: int) -> int:
    """Return how many blocks of an owner's a request of so many tokens could take over: not the last of them.

    A run of steps has ``taken`` blocks meanwhile.
    """
    rep, cache, found = s.replicas[r], s.replicas[r].first_owner + owner, 0
    runs, free = s.prefix_runs[cache], free_of(s, r, owner) - taken
    if s.caches[cache].free > free:
        forget_taken(s.caches[cache], s.extents[cache], runs, free)
    most = (tokens - 1) // rep.block_tokens
    for at in range(s.prefix_first[request], s.prefix_end[request]):
        cached, blocks = runs[s.prefix_of[at]].cached, s.prefix_blocks[at]
        found += min(cached, blocks)
        if cached < blocks or found >= most:
            break
    return min(found, most)


def owner_with_most(s: Any, r: int, request: int, tokens: int) -> int:
    """Return the owner of whom a request can take over most, and among these the emptiest pool."""
    found, most = 0, cached_blocks(s, r, 0, request, tokens, 0)
    for owner in range(1, s.replicas[r].owners):
        cached = cached_blocks(s, r, owner, request, tokens, 0)
        if cached > most or (cached == most and free_of(s, r, owner) > free_of(s, r, found)):
            found, most = owner, cached
    return found


def may_lose(s: Any, r: int, owner: int, request: int, taken: int) -> bool:
    """Whether cached blocks of a prompt are forgotten where so many blocks were taken by a run of steps."""
    cache = s.replicas[r].first_owner + owner
    extents = s.extents[cache]
    left, at = s.caches[cache].free - free_of(s, r, owner) + taken, extents[NOTHING].behind
    while left > 0 and at != NOTHING:
        for place in range(s.prefix_first[request], s.prefix_end[request]):
            if s.prefix_of[place] == extents[at].run:
                return True
        left -= extents[at].blocks
        at = extents[at].behind
    return False


def count_free(s: Any, r: int, one: int, blocks: int) -> int:
    """Return how many of the first blocks of the prompt of a sequence, which are cached, are free."""
    found, left, at, cache = 0, blocks, s.prefix_first[s.sequences[one].request], cache_of(s, r, one)
    while left > 0:
        mine = min(left, s.prefix_blocks[at])
        found += max(0, mine - s.prefix_runs[cache][s.prefix_of[at]].held)
        left -= mine
        at += 1
    return found


def count_shared(s: Any, r: int, owner: int) -> int:
    """Return how many blocks fewer an owner would have free if those that run shared none."""
    rep = s.replicas[r]
    found = free_of(s, r, owner) - rep.blocks // rep.owners
    for place in range(rep.running):
        seq = s.sequences[s.order[r][place]]
        found += seq.blocks if seq.owner == owner else 0
    other = rep.first_kept
    while other >= 0:
        found += s.sequences[other].blocks if s.sequences[other].owner == owner else 0
        other = s.sequences[other].behind
    return found


def keep_blocks(s: Any, r: int, one: int) -> None:
    """Let a sequence hold its blocks that does not run any more, until its K/V has moved."""
    s.sequences[one].behind = s.replicas[r].first_kept
    s.replicas[r].first_kept = one


def keep_no_more(s: Any, r: int, one: int) -> None:
    """Forget a sequence that held blocks for its K/V to be moved."""
    rep, before = s.replicas[r], s.replicas[r].first_kept
    if before == one:
        rep.first_kept = s.sequences[one].behind
        return
    while s.sequences[before].behind != one:
        before = s.sequences[before].behind
    s.sequences[before].behind = s.sequences[one].behind


def take_over(s: Any, r: int, one: int, blocks: int) -> None:
    """Let a sequence that is admitted hold cached blocks, which count as computed."""
    rep, seq, left, cache = s.replicas[r], s.sequences[one], blocks, cache_of(s, r, one)
    at = s.prefix_first[seq.request]
    while left > 0:
        mine = min(left, s.prefix_blocks[at])
        held = hold(s.caches[cache], s.extents[cache], s.prefix_runs[cache][s.prefix_of[at]], 0, mine)
        take_free(s, r, seq.owner, held)
        left -= mine
        at += 1
    seq.shared = blocks
    seq.computed = blocks * rep.block_tokens
    seq.decodes = 1 if decodes_next(seq) else 0  # of one that is recomputed, all but the last token may be cached


def store(s: Any, r: int, first: int, last: int) -> None:
    """Cache the full blocks of prompts that a step has filled: those of its members from ``first`` to ``last``.

    A copy of what is cached already is given back.
    """
    rep = s.replicas[r]
    for place in range(first, last):
        seq, begin, number = s.sequences[s.members[r][place]], 0, cache_of(s, r, s.members[r][place])
        cache, extents, runs = s.caches[number], s.extents[number], s.prefix_runs[number]
        forget_taken(cache, extents, runs, free_of(s, r, seq.owner))
        full = (seq.computed + seq.taken) // rep.block_tokens
        for at in range(s.prefix_first[seq.request], s.prefix_end[seq.request]):
            if begin >= full:
                break
            blocks, run = s.prefix_blocks[at], runs[s.prefix_of[at]]
            if begin + blocks > seq.shared:
                before, after = max(0, seq.shared - begin), min(blocks, full - begin)
                there = max(before, min(after, run.cached))
                take_free(s, r, seq.owner, before - there + hold(cache, extents, run, before, there))
                add_holder(run, there, after)
                run.cached = max(run.cached, after)
                free_blocks(cache, extents, runs, NOTHING, there - before)
                seq.shared += after - before
            begin += blocks


def release(s: Any, r: int, one: int) -> None:
    """Take back all that a sequence holds, its last block first."""
    seq, number = s.sequences[one], cache_of(s, r, one)
    cache, extents, runs = s.caches[number], s.extents[number], s.prefix_runs[number]
    forget_taken(cache, extents, runs, free_of(s, r, seq.owner))
    free_blocks(cache, extents, runs, NOTHING, seq.blocks - seq.shared)
    take_free(s, r, seq.owner, seq.shared - seq.blocks)
    begin, at = 0, s.prefix_first[seq.request]
    while begin < seq.shared:
        begin += s.prefix_blocks[at]
        at += 1
    while at > s.prefix_first[seq.request]:
        at -= 1
        begin -= s.prefix_blocks[at]
        run, mine = runs[s.prefix_of[at]], min(s.prefix_blocks[at], seq.shared - begin)
        held = run.held
        run.holders -= 1
        if mine == held:
            run.longest -= 1
            if run.longest == 0:
                find_longest(s, r, one, s.prefix_of[at])
                free_blocks(cache, extents, runs, s.prefix_of[at], held - run.held)
                take_free(s, r, seq.owner, run.held - held)
    seq.blocks = seq.shared = 0


def empty(s: Any, r: int) -> None:
    """Forget all that the blocks of a replica hold where nobody runs."""
    rep = s.replicas[r]
    for cache in range(rep.first_owner, rep.first_owner + rep.owners):
        forget_taken(s.caches[cache], s.extents[cache], s.prefix_runs[cache], 0)
        free_blocks(s.caches[cache], s.extents[cache], s.prefix_runs[cache], NOTHING, rep.blocks // rep.owners)
