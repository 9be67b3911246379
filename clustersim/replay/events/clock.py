"""The clock of a run: SimPy's, which takes calls beside events (:mod:`clustersim.replay.instant`)."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Final

from simpy import Environment

_CALL: Final = 5
"""Fields of a call in the queue: time, phase, serial number, what is called, and with what; of an event there are 4."""


class Clock(Environment):
    """The clock of a run."""

    def run_instant(self, now: int) -> None:
        """Do all that is due at an instant, whatever that brings about at the same instant included."""
        queue: list[Any] = self._queue
        while queue and queue[0][0] == now:
            first = heappop(queue)
            if len(first) == _CALL:
                self._now, _, _, action, value = first
                action(value)
            else:
                heappush(queue, first)
                super().step()

    def step(self) -> None:
        """Make the calls that come next, and process the event of SimPy's behind them."""
        queue: list[Any] = self._queue
        pop = heappop
        while queue:
            first = pop(queue)
            if len(first) != _CALL:
                heappush(queue, first)
                break
            self._now, _, _, action, value = first
            action(value)
        super().step()
