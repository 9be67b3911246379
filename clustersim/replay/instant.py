"""What happens in which order at one instant.

Completions, network, ends of copies, hand-overs, arrivals, departures (failures, timeouts, cancellations), scheduling,
the end.

Then come serial numbers: SimPy orders events by (time, priority, serial number); what :func:`at` is told to call is in
its queue as such, without an event around it. Completions of one instant commute:
they only count down, set flags and record. What does not commute (shares of links, routing, scheduling) has a phase of
its own, and goes through its participants in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final

from clustersim.clock import LATEST_NS, too_late

if TYPE_CHECKING:
    from simpy import Environment

COMPLETION: Final = 0
NETWORK: Final = 1
COPY: Final = 2


def now_ns(env: Environment) -> int:
    """Return the instant; every delay is an integer, so the clock is one too."""
    return env._now  # type: ignore[return-value]


def at(env: Environment, delay: int, phase: int, action: Callable[[Any], Any], value: Any = None) -> None:
    """Call ``action(value)`` after ``delay`` ns, in the given phase of that instant.

    The clock is a :class:`clustersim.replay.events.clock.Clock`.

    Raises
    ------
    InputError
        When int64 does not hold that instant; in an array it is one of the past.
    """
    now = env._now
    if not 0 <= delay <= LATEST_NS - now:
        raise too_late()
    queue: list[Any] = env._queue
    heappush(queue, (now + delay, phase, next(env._eid), action, value))
