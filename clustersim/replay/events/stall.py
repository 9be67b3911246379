"""What is told when nothing can happen any more although requests have not ended: who waits for what.

Where a user's own scheduler decides nothing although it could, that is the user's to mend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from clustersim.errors import ClustersimError, InputError, Problem, StallError
from clustersim.replay.lanes.lane_load import LaneLoad
from clustersim.replay.replica import ClockReplica
from clustersim.serving.scheduler import Stall
from clustersim.units import plural

_SHOWN: Final = 4
"""Sequences of each kind that are told one by one."""


def stall_error(
    now: int, unfinished: int, replicas: Sequence[ClockReplica | LaneLoad], between: Sequence[str] = ()
) -> ClustersimError:
    """Return the error that tells a stall: an InputError where the scheduler that stands still is the user's own.

    The parameters are those of :func:`stall_story`.
    """
    for replica in replicas:
        found = replica.scheduler.stall(now)
        if found is not None:
            message = _standstill(unfinished, replica.index, replica.scheduler.pool.total, found)
            return InputError(Problem(file=found.file, message=message))
    return StallError(stall_story(now, unfinished, replicas, between))


def _standstill(unfinished: int, replica: int, blocks: int, found: Stall) -> str:
    """Return what the view of a user's scheduler offers when it has chosen nothing, and nothing else can happen."""
    view = found.view
    lines = [
        f"{found.who} chose nothing at {view.now_ns / 1e6:.6f} ms, when nothing else could happen, but "
        f"{plural(unfinished, 'request is', 'requests are')} unfinished; its view offered on replica {replica}:",
        f"{sum(view.free_blocks)} of {blocks} K/V blocks free, at most {view.max_batch_tokens} tokens "
        f"a step and {view.max_batch_requests} running",
    ]
    for state, sequences in (("running", view.running), ("waiting", view.waiting)):
        lines.extend(
            f"request {sequence.request}, {state}: {sequence.to_compute} tokens to compute"
            + (", a decode" if sequence.decodes else "")
            for sequence in sequences[:_SHOWN]
        )
        if len(sequences) > _SHOWN:
            lines.append(f"and {len(sequences) - _SHOWN} more {state}")
    return "\n  ".join(lines)


def stall_story(now: int, unfinished: int, replicas: Sequence[ClockReplica | LaneLoad], between: Sequence[str]) -> str:
    """Return who waits for what, a line each.

    Parameters
    ----------
    now : int
    unfinished : int
        Requests that have not ended.
    replicas : sequence of ClockReplica or LaneLoad
    between : sequence of str
        What is between pools.
    """
    lines = [f"nothing can happen after {now} ns, but {plural(unfinished, 'request is', 'requests are')} unfinished"]
    for replica in replicas:
        lines.extend(_waits(replica))
    lines.extend(between)
    return "\n  ".join(lines)


def _waits(replica: ClockReplica | LaneLoad) -> Iterator[str]:
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
