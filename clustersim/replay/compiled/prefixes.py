"""What K/V pools of lanes keep of prompts, as arrays of integers: ``serving.prefix_cache``, for a compiler.

All of it is in ``c`` (names below), None where nothing is kept. A run of blocks has a number, and per lane a row of
``RUN``: who holds most of it is counted, so that others are looked at only when the last of these lets go. Free blocks
are a list of places, which each run has a list of, too. What decodes took is forgotten when somebody looks
(:func:`catch_up`).
"""

from __future__ import annotations

from typing import Any, Final

from numba import njit

OPTIONS: Final[dict[str, Any]] = {
    "error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip
INNER: Final = njit(**OPTIONS, forceinline=False)
"""Of what is called from compiled functions alone: nothing is made for callers outside."""
NOTHING: Final = -1

PREFIXES: Final = ("pools", "runs", "places", "bounds", "keys", "sizes", "routing", "asked")
POOLS, RUNS, PLACES, BOUNDS, KEYS, SIZES, ROUTING, ASKED = range(len(PREFIXES))
"""By lane ``POOL``, ``RUN`` and ``PLACE``; where the runs of each request begin, their numbers, and how many blocks it
has of each; ``PrefixRouting``, where the router goes by prefixes; the last instant at which schedulers were asked."""
POOL: Final = ("free", "first", "last", "made", "spare")
FREE, FIRST, LAST, MADE, SPARE = range(len(POOL))
"""Free blocks, of which those are not yet taken that decodes took; the first and the last place; places made, and the
first of these that is none any more."""
RUN: Final = ("cached", "held", "many", "most", "earliest", "latest")
CACHED, HELD, MANY, MOST, EARLIEST, LATEST = range(len(RUN))
"""Blocks that are cached, and held; how many sequences hold any, and how many hold most; the run's places."""
PLACE: Final = ("key", "blocks", "before", "behind", "earlier", "later")
KEY, BLOCKS, BEFORE, BEHIND, EARLIER, LATER = range(len(PLACE))
"""The run, or ``NOTHING``, and how many blocks; the places beside it, of all and of its run, −1 where there is none."""


@INNER
def leading(c, lane, request, most):
    """Return how many of the first ``most`` blocks of a prompt are cached before one is not."""
    runs, found = c[RUNS][lane], 0
    for at in range(c[BOUNDS][request], c[BOUNDS][request + 1]):
        cached, blocks = runs[c[KEYS][at], CACHED], c[SIZES][at]
        found += min(cached, blocks)
        if cached < blocks or found >= most:
            break
    return min(found, most)


@INNER
def unheld(c, lane, request, blocks):
    """Return how many of the first ``blocks`` cached blocks of a prompt nobody holds."""
    found, left, at = 0, blocks, c[BOUNDS][request]
    while left > 0:
        mine = min(left, c[SIZES][at])
        found += max(0, mine - c[RUNS][lane, c[KEYS][at], HELD])
        left -= mine
        at += 1
    return found


@INNER
def _grow(run, before, after):
    """Let a sequence hold more of a run, of which it held ``before``."""
    if after == 0:
        return
    if before == 0:
        run[MANY] += 1
    elif before == run[HELD]:
        run[MOST] -= 1
    if after > run[HELD]:
        run[HELD], run[MOST] = after, 0
    if after == run[HELD]:
        run[MOST] += 1


@INNER
def _part(pool, places, run, at):
    """Let a place be none any more."""
    place = places[at]
    before, behind, earlier, later = place[BEFORE], place[BEHIND], place[EARLIER], place[LATER]
    if before < 0:
        pool[FIRST] = behind
    else:
        places[before, BEHIND] = behind
    if behind < 0:
        pool[LAST] = before
    else:
        places[behind, BEFORE] = before
    if place[KEY] != NOTHING:
        if earlier < 0:
            run[EARLIEST] = later
        else:
            places[earlier, LATER] = later
        if later < 0:
            run[LATEST] = earlier
        else:
            places[later, EARLIER] = earlier
    place[BEHIND] = pool[SPARE]
    pool[SPARE] = at


@INNER
def _put(pool, places, run, key, blocks):
    """Put blocks behind the other free ones."""
    at = pool[SPARE]
    if at < 0:
        at = pool[MADE]
        pool[MADE] += 1
    else:
        pool[SPARE] = places[at, BEHIND]
    place = places[at]
    place[KEY], place[BLOCKS], place[BEFORE], place[BEHIND] = key, blocks, pool[LAST], -1
    if pool[LAST] < 0:
        pool[FIRST] = at
    else:
        places[pool[LAST], BEHIND] = at
    pool[LAST] = at
    pool[FREE] += blocks
    if key != NOTHING:
        place[EARLIER], place[LATER] = run[LATEST], -1
        if run[LATEST] < 0:
            run[EARLIEST] = at
        else:
            places[run[LATEST], LATER] = at
        run[LATEST] = at


@INNER
def _hold(c, lane, key, before, after):
    """Let a sequence hold more of the first cached blocks of a run; return how many of them were free."""
    pool, places, run = c[POOLS][lane], c[PLACES][lane], c[RUNS][lane, key]
    found = max(0, after - run[HELD])
    _grow(run, before, after)
    pool[FREE] -= found
    left = found
    while left > 0:
        at = run[LATEST]
        taken = min(left, places[at, BLOCKS])
        places[at, BLOCKS] -= taken
        left -= taken
        if places[at, BLOCKS] == 0:
            _part(pool, places, run, at)
    return found


@INNER
def give(c, lane, blocks):
    """Put blocks without content behind the other free ones."""
    pool, places = c[POOLS][lane], c[PLACES][lane]
    if blocks == 0:
        return
    if pool[LAST] >= 0 and places[pool[LAST], KEY] == NOTHING:
        places[pool[LAST], BLOCKS] += blocks
        pool[FREE] += blocks
    else:
        _put(pool, places, c[RUNS][lane, 0], NOTHING, blocks)


@INNER
def catch_up(c, lane, free):
    """Forget what the blocks held that were taken meanwhile, so that so many are free."""
    pool, places, runs = c[POOLS][lane], c[PLACES][lane], c[RUNS][lane]
    left = pool[FREE] - free
    pool[FREE] = free
    while left > 0:
        at = pool[FIRST]
        taken, key = min(left, places[at, BLOCKS]), places[at, KEY]
        places[at, BLOCKS] -= taken
        left -= taken
        run = runs[max(key, 0)]
        if key != NOTHING:
            run[CACHED] -= taken
        if places[at, BLOCKS] == 0:
            _part(pool, places, run, at)


@INNER
def take_over(c, lane, request, blocks):
    """Let an admitted sequence hold cached blocks."""
    left, at = blocks, c[BOUNDS][request]
    while left > 0:
        mine = min(left, c[SIZES][at])
        _hold(c, lane, c[KEYS][at], 0, mine)
        left -= mine
        at += 1


@INNER
def store(c, lane, request, shared, full):
    """Cache the full prompt blocks that a step has filled, behind those that a sequence has shared.

    Returns
    -------
    (int, int)
        How many it has shared now, and how many blocks are free that were not, less those that are not any more.
    """
    begin, freed = 0, 0
    for at in range(c[BOUNDS][request], c[BOUNDS][request + 1]):
        blocks, key = c[SIZES][at], c[KEYS][at]
        if begin >= full:
            break
        if begin + blocks > shared:
            before, after = max(0, shared - begin), min(blocks, full - begin)
            run = c[RUNS][lane, key]
            there = max(before, min(after, run[CACHED]))
            freed -= _hold(c, lane, key, before, there)
            _grow(run, there, after)
            run[CACHED] = max(run[CACHED], after)
            give(c, lane, there - before)
            freed += there - before
            shared += after - before
        begin += blocks
    return shared, freed


@INNER
def _held(c, request, shared, key):
    """Return how many blocks a sequence holds of a run."""
    begin = 0
    for at in range(c[BOUNDS][request], c[BOUNDS][request + 1]):
        if begin >= shared:
            break
        if c[KEYS][at] == key:
            return min(c[SIZES][at], shared - begin)
        begin += c[SIZES][at]
    return 0


@INNER
def release(c, lane, one, blocks, requests, shares, running, count):
    """Take back all that a sequence holds, its last block first; return how many blocks are free that were not.

    Parameters
    ----------
    c : tuple
    lane, one, blocks : int
        The slot, and how many blocks it has.
    requests, shares : int64 arrays
        By slot: what runs there, and how many blocks it has shared.
    running : int64 array
    count : int
        So many slots run.
    """
    pool, places, request, shared = c[POOLS][lane], c[PLACES][lane], requests[one], shares[one]
    freed = blocks - shared
    give(c, lane, freed)
    begin, stop = 0, c[BOUNDS][request]
    while begin < shared:
        begin += c[SIZES][stop]
        stop += 1
    for at in range(stop - 1, c[BOUNDS][request] - 1, -1):
        begin -= c[SIZES][at]
        key, mine = c[KEYS][at], min(c[SIZES][at], shared - begin)
        run = c[RUNS][lane, key]
        run[MANY] -= 1
        if mine < run[HELD]:
            continue
        run[MOST] -= 1
        if run[MOST] > 0:
            continue
        held = 0
        for place in range(count if run[MANY] > 0 else 0):
            other = running[place]
            if other == one:
                continue
            seen = _held(c, requests[other], shares[other], key)
            if seen > held:
                held, run[MOST] = seen, 0
            if seen == held:
                run[MOST] += 1
        found = run[HELD] - held
        run[HELD] = held
        if held == 0:
            run[MOST] = 0
        if found > 0:
            _put(pool, places, run, key, found)
            freed += found
    shares[one] = 0
    return freed
