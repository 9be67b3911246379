"""What happens at instants of its own: devices that fail, requests that wait too long, clients that give up.

All that is due at one instant happens at once, in a phase between arrivals and scheduling, so that the decisions of
that instant know of it: failures and repairs first, then timeouts, then cancellations, each in order of its number.
A run of steps of which one ends at that very instant is ended first: in ``full`` that step has ended by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from clustersim.replay.instant import at, now_ns
from tests.oracle.replay.instant import DEPARTURE
from tests.oracle.replay.replica import ClockReplica

if TYPE_CHECKING:
    from simpy import Environment

FAULT: Final = 0
TIMEOUT: Final = 1
CANCELLATION: Final = 2

Due = tuple[int, int]
"""(what, number of the fault or the request)"""


class Departures:
    """Collects what is due, and hands it on in its order.

    Parameters
    ----------
    env : simpy.Environment
    replicas : sequence of ClockReplica
    carry_out : callable
        Called with what is due at this instant.
    """

    def __init__(
        self, env: Environment, replicas: Sequence[ClockReplica], carry_out: Callable[[Sequence[Due]], None]
    ) -> None:
        self.env = env
        self.replicas = replicas
        self.carry_out = carry_out
        self.due: list[Due] = []

    def expect(self, delay: int, what: int, number: int) -> None:
        """Let something happen after ``delay`` ns."""
        at(self.env, delay, DEPARTURE, self._collect, (what, number))

    def _collect(self, due: Due) -> None:
        if not self.due:
            at(self.env, 0, DEPARTURE, self._begin)
        self.due.append(due)

    def _begin(self, _: None) -> None:
        now = now_ns(self.env)
        ended = [replica.ends_step(now) for replica in self.replicas]
        if any(ended):
            at(self.env, 0, DEPARTURE, self._begin)
            return
        due, self.due = sorted(self.due), []
        self.carry_out(due)
