"""The replay of a run: by lanes alone where that is all it needs, else on a clock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from clustersim.replay.by_core import core_obstacle, events_obstacle, replay_by_events
from clustersim.replay.input import Mode, Progress, ReplayInput, ReplayResult
from clustersim.replay.lanes.build import LaneBuilder
from clustersim.replay.prepared import Prepared
from clustersim.replay.shares import replay_lanes


def replay(
    inputs: ReplayInput,
    progress: Progress | None = None,
    processes: int | None = 1,
    executor: Executor | None = None,
    by_events: Callable[[str], None] | None = None,
) -> ReplayResult:
    """Simulate until every request has finished or been rejected, or until the horizon.

    Parameters
    ----------
    inputs : ReplayInput
    progress : callable, optional
        Called when requests end.
    processes : int or None
        In how many processes replicas are replayed that nothing connects (``replay.shares``); None for as many as are
        worth it. The result does not depend on it.
    executor : Executor, optional
        Where these processes are, but for this one; by default on this machine.
    by_events : callable, optional
        Called before it begins with why not all replicas are lanes, where that is so and ``full`` is not asked for.

    Raises
    ------
    StallError
        When nothing can happen any more although requests are unfinished.
    InputError
        When something ends later than int64 nanoseconds can tell.
    """
    prepared = Prepared(inputs.of_replicas)
    lanes = LaneBuilder(prepared)
    if core_obstacle(prepared) and (lanes.obstacle or prepared.needs_fleet):
        if not events_obstacle(prepared):
            return replay_by_events(lanes, progress)
        from clustersim.replay.events.run import EventReplay  # with all that happens on a clock

        if lanes.obstacle and by_events is not None and inputs.mode != "full":
            by_events(lanes.obstacle)
        return EventReplay(prepared, progress, lanes.obstacle, lanes).run()
    return replay_lanes(lanes, progress, processes, executor)


__all__ = ["Mode", "Progress", "ReplayInput", "ReplayResult", "replay"]
