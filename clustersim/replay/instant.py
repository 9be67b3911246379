"""What happens in which order at one instant.

Completions, network, hand-overs, arrivals, departures (failures, timeouts, cancellations), scheduling, the end.

Then come serial numbers: SimPy orders events by (time, priority, serial number). Completions of one instant commute:
they only count down, set flags and record. What does not commute (shares of links, routing, scheduling) has a phase of
its own, and goes through its participants in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simpy import Environment, Event

from clustersim.clock import LATEST_NS, too_late

COMPLETION: Final = 0
NETWORK: Final = 1
HAND_OVER: Final = 2
ARRIVAL: Final = 3
DEPARTURE: Final = 4
SCHEDULING: Final = 5
END: Final = 6


class Clock(Environment):
    """The clock of a run.

    Attributes
    ----------
    asked_ns : int
        The last instant at which schedulers were asked: what happens then and afterwards finds the steps begun that
        begin at that instant.
    """

    asked_ns: int = -1


def asked(env: Environment, now: int) -> bool:
    """Whether schedulers have been asked at this instant already."""
    return isinstance(env, Clock) and env.asked_ns == now


def now_ns(env: Environment) -> int:
    """Return the instant; every delay is an integer, so the clock is one too."""
    return env._now  # type: ignore[return-value]


def _act(event: Event) -> None:
    action, value = event._value
    action(value)


def at(env: Environment, delay: int, phase: int, action: Callable[[Any], Any], value: Any = None) -> Event:
    """Call ``action(value)`` after ``delay`` ns, in the given phase of that instant.

    Raises
    ------
    InputError
        When int64 does not hold that instant; in an array it is one of the past.
    """
    if not 0 <= delay <= LATEST_NS - env._now:
        raise too_late()
    event = Event(env)
    event._ok = True
    event._value = action, value
    event.callbacks = [_act]
    env.schedule(event, phase, delay)  # type: ignore[arg-type]
    return event
