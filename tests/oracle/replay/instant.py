"""Phases of an instant after those of ``clustersim.replay.instant``, and whether schedulers were asked at it."""

from __future__ import annotations

from typing import Final

from simpy import Environment

from clustersim.replay.events.clock import Clock

HAND_OVER: Final = 3
ARRIVAL: Final = 4
DEPARTURE: Final = 5
SCHEDULING: Final = 6
END: Final = 7


class AskedClock(Clock):
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
    return getattr(env, "asked_ns", None) == now
