"""Which replica a request goes to (``serving.router`` says what each router is)."""

from __future__ import annotations

from typing import Any

from clustersim.core.prefix_cache import cached_blocks, may_lose
from clustersim.core.state import (
    ASK_ROUTE,
    CUSTOM,
    FEWEST_WAITING,
    LEAST_OUTSTANDING,
    NEVER,
    POWER_OF_TWO,
    PREFIX_AWARE,
)
from clustersim.core.steps import taken_at_most, taken_by_run, taken_of_owner


def route(s: Any, p: Any, number: int, request: int, known: int) -> int:
    """Return the replica of a pool for a request, of which so many tokens are known; some lives.

    It is −1 where a user's router is to be asked.
    """
    pool, living = s.pools[number], s.living
    turn, place = pool.choices, pool.first
    if pool.router == LEAST_OUTSTANDING:
        return s.load_tree[pool.tree_at + 1]
    if pool.router == FEWEST_WAITING:
        found = living[place]
        for other in range(place + 1, place + pool.living):
            if _crowd(s.replicas[living[other]]) < _crowd(s.replicas[found]):
                found = living[other]
        return found
    if pool.router == POWER_OF_TWO and pool.living > 1:
        at = pool.pairs_at + 2 * (turn - pool.first_pair)
        first, second = s.pairs[at], s.pairs[at + 1]
        less, more = living[place + min(first, second)], living[place + max(first, second)]
        return more if s.replicas[more].outstanding < s.replicas[less].outstanding else less
    if pool.router == PREFIX_AWARE:
        return follow_prefix(s, p, request, known)
    return s.clock[0].chosen if pool.router == CUSTOM else living[place + turn % pool.living]


def show_replicas(s: Any, p: Any, request: int, known: int) -> int:
    """Ask a user's router for the replica of a request: it is shown what runs have taken by now, and what is cached."""
    clock = s.clock[0]
    for r in range(clock.replicas):
        rep = s.replicas[r]
        rep.taken = taken_by_run(s, p, r)
        if rep.caching and rep.is_down == 0:
            rep.cached = 0
            for owner in range(rep.owners):
                taken = taken_of_owner(s, p, r, owner)
                rep.cached = max(rep.cached, cached_blocks(s, r, owner, request, known, taken))
    clock.asking = request
    return ASK_ROUTE


def follow_prefix(s: Any, p: Any, request: int, known: int) -> int:
    """Return the replica that has most of a prompt cached, if that is worth it, else that with fewest tokens."""
    count_living, routing, living = s.pools[0].living, s.prefix_routing[0], s.living
    most, least, emptiest = 0, NEVER, living[0]
    for place in range(count_living):
        rep = s.replicas[living[place]]
        count = rep.waiting + rep.running
        most, least = max(most, count), min(least, count)
        if rep.outstanding < s.replicas[emptiest].outstanding:
            emptiest = living[place]
    if most - least > routing.balance_abs_threshold and most > routing.balance_rel_threshold * least:
        return emptiest
    found, longest = emptiest, 0
    for place in range(count_living):
        r = living[place]
        cached = 0
        for owner in range(s.replicas[r].owners):
            loses = may_lose(s, r, owner, request, taken_at_most(s, r))
            taken = taken_of_owner(s, p, r, owner) if loses else 0
            cached = max(cached, cached_blocks(s, r, owner, request, known, taken))
        if cached > longest or (cached == longest and s.replicas[r].outstanding < s.replicas[found].outstanding):
            found, longest = r, cached
    tokens = longest * s.replicas[found].block_tokens
    return found if tokens >= routing.cache_threshold * s.prompts[request] else emptiest


def lacks_room(clock: Any, rep: Any) -> bool:
    """Whether there may be no room for another request at a replica, or for what it lets happen."""
    return clock.events + 3 > clock.event_room or rep.waiting + rep.max_requests >= clock.queue_room


def _crowd(rep: Any) -> int:
    return 4 * (rep.waiting + rep.away + rep.arriving) + rep.running + rep.receiving
