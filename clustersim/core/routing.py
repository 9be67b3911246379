"""Which replica a request goes to (``serving.router`` says what each router is)."""

from __future__ import annotations

from typing import Any

from clustersim.compiled import rare
from clustersim.core.prefix_cache import CACHING, cached_blocks, may_lose
from clustersim.core.state import (
    ASK_ROUTE,
    CUSTOM,
    FEWEST_WAITING,
    LEAST_OUTSTANDING,
    NEVER,
    POWER_OF_TWO,
    PREFIX_AWARE,
)
from clustersim.core.steps import taken_at_most, taken_by_run


def route(s: Any, p: Any, request: int, known: int) -> int:
    """Return the replica of a request that comes, of which so many tokens are known; some lives.

    It is −1 where a user's router is to be asked.
    """
    clock = s.clock[0]
    turn, living = clock.choices, s.living
    if clock.router == LEAST_OUTSTANDING:
        return s.load_tree[1]
    if clock.router == FEWEST_WAITING:
        found = living[0]
        for place in range(1, clock.living):
            if _crowd(s.replicas[living[place]]) < _crowd(s.replicas[found]):
                found = living[place]
        return found
    if clock.router == POWER_OF_TWO and clock.living > 1:
        at = 2 * (turn - clock.first_pair)
        first, second = s.pairs[at], s.pairs[at + 1]
        less, more = living[min(first, second)], living[max(first, second)]
        return more if s.replicas[more].outstanding < s.replicas[less].outstanding else less
    if CACHING and clock.router == PREFIX_AWARE:
        return follow_prefix(s, p, request, known)
    return clock.chosen if clock.router == CUSTOM else living[turn % clock.living]


@rare
def show_replicas(s: Any, p: Any, request: int) -> int:
    """Ask a user's router for the replica of a request: it is shown the blocks that runs have taken by now."""
    clock = s.clock[0]
    for r in range(clock.replicas):
        s.replicas[r].taken = taken_by_run(s, p, r)
    clock.lane = request
    return ASK_ROUTE


def follow_prefix(s: Any, p: Any, request: int, known: int) -> int:
    """Return the replica that has most of a prompt cached, if that is worth it, else that with fewest tokens."""
    clock, routing, living = s.clock[0], s.prefix_routing[0], s.living
    most, least, emptiest = 0, NEVER, living[0]
    for place in range(clock.living):
        rep = s.replicas[living[place]]
        count = rep.waiting + rep.running
        most, least = max(most, count), min(least, count)
        if rep.outstanding < s.replicas[emptiest].outstanding:
            emptiest = living[place]
    if most - least > routing.balance_abs_threshold and most > routing.balance_rel_threshold * least:
        return emptiest
    found, longest = emptiest, 0
    for place in range(clock.living):
        r = living[place]
        taken = taken_by_run(s, p, r) if may_lose(s, r, request, taken_at_most(s, r)) else 0
        cached = cached_blocks(s, r, request, known, taken)
        if cached > longest or (cached == longest and s.replicas[r].outstanding < s.replicas[found].outstanding):
            found, longest = r, cached
    tokens = longest * s.replicas[found].block_tokens
    return found if tokens >= routing.cache_threshold * s.prompts[request] else emptiest


def lacks_room(clock: Any, rep: Any) -> bool:
    """Whether there may be no room for another request at a replica, or for what it lets happen."""
    return clock.events + 3 > clock.event_room or rep.waiting + rep.max_requests >= clock.queue_room


def _crowd(rep: Any) -> int:
    return 4 * (rep.waiting + rep.away) + rep.running
