"""Which replica a request goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Outstanding = Sequence[int]
"""Per replica: prompt and output tokens of its unfinished requests."""

Router = Callable[[int, Outstanding], int]
"""(number of requests routed so far, outstanding tokens) → replica."""


def round_robin(routed: int, outstanding: Outstanding) -> int:
    """Return the replicas in turn."""
    return routed % len(outstanding)


def least_outstanding(routed: int, outstanding: Outstanding) -> int:
    """Return the replica with fewest outstanding tokens, the first among equals."""
    del routed
    return min(range(len(outstanding)), key=lambda replica: (outstanding[replica], replica))


ROUTERS: Final[dict[str, Router]] = {"round_robin": round_robin, "least_outstanding": least_outstanding}
