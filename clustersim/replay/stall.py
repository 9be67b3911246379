"""What is told when nothing can happen any more although requests have not ended: who waits for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustersim.replay.hand_overs import HandOvers
from clustersim.replay.replica import Replica


def stall_story(now: int, unfinished: int, replicas: Sequence[Replica], hand_overs: HandOvers | None) -> str:
    """Return who waits for what, a line each.

    Parameters
    ----------
    now : int
    unfinished : int
        Requests that have not ended.
    replicas : sequence of Replica
    hand_overs : HandOvers or None
        What is between two pools.
    """
    lines = [f"nothing can happen after {now} ns, but {unfinished} requests are unfinished"]
    for replica in replicas:
        lines.extend(_waits(replica))
    if hand_overs is not None:
        lines.extend(hand_overs.story())
    return "\n  ".join(lines)


def _waits(replica: Replica) -> Iterator[str]:
    scheduler = replica.scheduler
    if scheduler.waiting or scheduler.running or scheduler.aside:
        waiting = len(scheduler.waiting) + len(scheduler.aside)
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
    if replica.pipeline is not None:
        yield from replica.pipeline.story()
