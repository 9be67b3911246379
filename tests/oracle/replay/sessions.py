"""Turns of sessions: a request that is due while the turn before it has not ended is held back until it has.

When a turn ends, for whatever reason, the next one of its session arrives at that instant, behind what arrives then
anyhow; several at one instant arrive in order of their numbers. A client that thinks before it sends the next turn is
as quick as it was when the trace was recorded, or quicker: a turn is sent when it was, or at once if it is late.
"""

from __future__ import annotations

from collections.abc import Callable

from clustersim.workload.requests import Requests


class Sessions:
    """Knows which requests wait for the turn before them.

    Parameters
    ----------
    requests : Requests
    free : callable
        Called when the first turn of an instant is freed: to let what :meth:`freed` returns arrive in due course.
    """

    def __init__(self, requests: Requests, free: Callable[[], None]) -> None:
        follows = requests.follows
        self._before: list[int] = [] if follows is None else follows.tolist()
        self._over = bytearray(len(self._before))
        self._free = free
        self._freed: list[int] = []
        self.held: dict[int, int] = {}
        """Turn that has not ended → the one that is due and waits for it."""

    def holds(self, request: int) -> bool:
        """Hold back a request that is due, where the turn before it has not ended; return whether it is held."""
        before = self._before[request] if self._before else -1
        if before < 0 or self._over[before]:
            return False
        self.held[before] = request
        return True

    def end(self, request: int) -> None:
        """Free the turn behind a request that has ended."""
        if not self._before:
            return
        self._over[request] = True
        after = self.held.pop(request, None)
        if after is not None:
            if not self._freed:
                self._free()
            self._freed.append(after)

    def freed(self) -> list[int]:
        """Return the turns that were freed since this was last called."""
        found, self._freed = sorted(self._freed), []
        return found
