"""Which replica a request goes to (``serving.router`` says what each router is)."""

from __future__ import annotations

from typing import Any

from clustersim.core.state import FEWEST_WAITING, LEAST_OUTSTANDING, POWER_OF_TWO


def route(s: Any) -> int:
    """Return the replica of the request that comes next; some lives."""
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
    return living[turn % clock.living]


def lacks_room(clock: Any, rep: Any) -> bool:
    """Whether there may be no room for another request at a replica, or for what it lets happen."""
    return clock.events + 3 > clock.event_room or rep.waiting + rep.max_requests >= clock.queue_room


def _crowd(rep: Any) -> int:
    return 4 * (rep.waiting + rep.away) + rep.running
