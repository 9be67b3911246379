"""What is told when nothing can happen any more although requests have not ended: who waits for what.

Where a user's own scheduler decides nothing although it could, that is the user's to mend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustersim.errors import ClustersimError, StallError
from clustersim.serving.stall import user_stall_error
from clustersim.units import plural
from tests.oracle.replay.replica import ClockReplica


def stall_error(
    now: int, unfinished: int, replicas: Sequence[ClockReplica], between: Sequence[str] = ()
) -> ClustersimError:
    """Return the error that tells a stall: an InputError where the scheduler that stands still is the user's own.

    The parameters are those of :func:`stall_story`.
    """
    for replica in replicas:
        found = replica.scheduler.stall(now)
        if found is not None:
            return user_stall_error(unfinished, replica.index, replica.scheduler.pool.total, found)
    return StallError(stall_story(now, unfinished, replicas, between))


def stall_story(now: int, unfinished: int, replicas: Sequence[ClockReplica], between: Sequence[str]) -> str:
    """Return who waits for what, a line each.

    Parameters
    ----------
    now : int
    unfinished : int
        Requests that have not ended.
    replicas : sequence of ClockReplica
    between : sequence of str
        What is between pools.
    """
    lines = [f"nothing can happen after {now} ns, but {plural(unfinished, 'request is', 'requests are')} unfinished"]
    for replica in replicas:
        lines.extend(_waits(replica))
    lines.extend(between)
    return "\n  ".join(lines)


def _waits(replica: ClockReplica) -> Iterator[str]:
    scheduler = replica.scheduler
    if scheduler.waiting or scheduler.running or scheduler.swapped_out:
        waiting = len(scheduler.waiting) + len(scheduler.swapped_out)
        yield (
            f"replica {replica.index}: {waiting} waiting, {len(scheduler.running)} running, "
            f"{sum(scheduler.pool.free)} of {scheduler.pool.total} K/V blocks free"
        )
        if scheduler.waiting:
            head = scheduler.waiting[0]
            yield (
                f"request {head.request} waits for {scheduler.pool.needed(head.to_compute)} K/V blocks "
                f"and a place in the batch"
            )
    yield from replica.story()
