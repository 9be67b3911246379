"""The replay of a run: by the core, whose steps run by events where it can't simulate them by itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

from clustersim.replay.by_core import core_obstacle, replay_by_events
from clustersim.replay.input import Mode, Progress, ReplayInput, ReplayResult
from clustersim.replay.prepared import Prepared
from clustersim.replay.shares import replay_by_core


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
        Called before it begins with why the core can't simulate all steps, where it can't and ``full`` is not asked.

    Raises
    ------
    StallError
        When nothing can happen any more although requests are unfinished.
    InputError
        When something ends later than int64 nanoseconds can tell.
    """
    prepared = Prepared(inputs.of_replicas)
    obstacle = core_obstacle(prepared)
    if not obstacle:
        return replay_by_core(prepared, progress, processes, executor)
    if by_events is not None and inputs.mode != "full":
        by_events(obstacle)
    return replay_by_events(prepared, progress, obstacle)


__all__ = ["Mode", "Progress", "ReplayInput", "ReplayResult", "replay"]
