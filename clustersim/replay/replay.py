"""The replay of a run: as lanes where nothing can disturb anything, else by events."""

from __future__ import annotations

from clustersim.replay.by_events import EventReplay
from clustersim.replay.by_lanes import LaneReplay, obstacle
from clustersim.replay.given import Mode, Prepared, Progress, ReplayInput, ReplayResult


def replay(given: ReplayInput, progress: Progress | None = None) -> ReplayResult:
    """Simulate until every request has finished or been rejected, or until the horizon.

    Parameters
    ----------
    given : ReplayInput
    progress : callable, optional
        Called when requests end.

    Raises
    ------
    StallError
        When nothing can happen any more although requests are unfinished.
    """
    prepared = Prepared(given)
    reason = obstacle(prepared)
    if reason:
        return EventReplay(prepared, progress, reason).run()
    return LaneReplay(prepared, progress).run()


__all__ = ["Mode", "Progress", "ReplayInput", "ReplayResult", "replay"]
