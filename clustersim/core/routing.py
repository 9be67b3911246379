"""Which replica a request goes to (``serving.router`` says what each router is)."""

from __future__ import annotations

from typing import Any

from clustersim.core.state import FEWEST_WAITING, LEAST_OUTSTANDING, POWER_OF_TWO


def route(s: Any) -> int:
    """Return the replica of the request that comes next."""
    clock = s.clock[0]
    turn = clock.turn
    if clock.router == LEAST_OUTSTANDING:
        return s.load_tree[1]
    if clock.router == FEWEST_WAITING:
        found = 0
        for r in range(1, clock.replicas):
            if _crowd(s.replicas[r]) < _crowd(s.replicas[found]):
                found = r
        return found
    if clock.router == POWER_OF_TWO:
        first, second = s.pairs[2 * turn], s.pairs[2 * turn + 1]
        less, more = min(first, second), max(first, second)
        return more if s.replicas[more].outstanding < s.replicas[less].outstanding else less
    return turn % clock.replicas


def _crowd(rep: Any) -> int:
    return 4 * (rep.waiting + rep.away) + rep.running
