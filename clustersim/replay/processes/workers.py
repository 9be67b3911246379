"""Replicas that nothing connects, replayed in several processes; the result is that of one, bit for bit.

Where the router asks nobody, lanes share nothing: no link (``replay.links.contention``), no scheduler, no load to
compare. So replicas are shared out in ranges. This process takes the first, others start meanwhile and take the rest,
and what they recorded is appended in order of replicas (``timeline.merge``). That is also the order in which one
process records them, and no number in a table tells which process it came from.

A worker (:mod:`clustersim.replay.processes.worker`) that cannot start, dies or raises costs time and nothing else: this
process replays its replicas itself, and so meets the same error in the same place as if it had been alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from typing import Final

from clustersim.cost.table import TableCost
from clustersim.replay.input import Progress, ReplayInput, ReplayResult
from clustersim.replay.lanes.alone import ask_nobody
from clustersim.replay.lanes.build import LaneBuilder
from clustersim.replay.lanes.part import result_of
from clustersim.replay.lanes.run import LaneReplay
from clustersim.replay.prepared import Prepared
from clustersim.replay.processes.worker import Worker, job_of
from clustersim.timeline.merge import absorb
from clustersim.workload.requests import Requests

WORTH_S: Final = 1.0
"""Seconds of expected work that a process is worth; starting one and taking in what it did costs some 0.5 s."""
REQUEST_S: Final = 30e-6
TOKEN_S: Final = 0.1e-6
"""Roughly what a request and an output token cost, where many tokens share a step."""
_PATIENCE_S: Final = 0.1


def processes_for(prepared: Prepared, asked: int | None) -> tuple[int, str]:
    """Return how many processes replay the lanes of a run, and why not more.

    Parameters
    ----------
    prepared : Prepared
        Of a run that lanes can replay.
    asked : int or None
        As many as this; by default one per usable core, and fewer where there is little to do.
    """
    inputs, contention = prepared.input, prepared.contention
    replicas = inputs.plan.dp
    if replicas == 1:
        return 1, "there is one replica"
    if contention.stages or contention.boundaries:
        return 1, "communications can meet on a link"
    if inputs.requests.concurrency is not None:
        return 1, "in a closed loop the end of one request starts another, on any replica"
    if not ask_nobody(inputs.requests, str(inputs.serving.router), replicas):
        return 1, f"router {inputs.serving.router} compares the loads of all replicas"
    if isinstance(inputs.pricer.cost, TableCost):
        return 1, "prices outside of the measured table are counted in one place"
    if asked is not None:
        few = min(asked, replicas)
        return few, "there are no more replicas" if few < asked else "no more were asked for"
    cores = _usable_cores()
    worth = int(_expected_s(inputs.requests) / WORTH_S)
    found = max(1, min(cores, replicas, worth))
    if found == cores:
        return found, "there are no more cores to use"
    return found, "there are no more replicas" if found == replicas else "there is too little to do"


def _usable_cores() -> int:
    with suppress(AttributeError, OSError):  # not every platform knows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _expected_s(requests: Requests) -> float:
    return REQUEST_S * len(requests) + TOKEN_S * int(requests.output_tokens.sum())


def replay_lanes(lanes: LaneBuilder, progress: Progress | None, processes: int | None) -> ReplayResult:
    """Replay a run that lanes can replay, in one process or several.

    Parameters
    ----------
    lanes : LaneBuilder
    progress : callable or None
    processes : int or None
        See :func:`processes_for`.

    Raises
    ------
    StallError
        When nothing can happen any more although requests are unfinished.
    """
    prepared, inputs = lanes.prepared, lanes.prepared.input
    count, undivided = processes_for(prepared, processes)
    bounds = [inputs.plan.dp * number // count for number in range(count + 1)]
    first, *others = [range(begin, end) for begin, end in pairwise(bounds)]
    with _started(inputs, others) as workers:
        board = _Board(progress, workers)
        parts = [LaneReplay(lanes, board.tell, first).part()]
        board.close_part()
        failed = 0
        for worker in workers:
            board.wait_for(worker)
            if worker.found is None:
                failed += 1
                worker.ended = 0
                parts.append(LaneReplay(lanes, board.tell, worker.replicas).part())
                board.close_part()
            else:
                parts.append(worker.found.part)
                absorb(prepared.recorder, worker.found.tables)
                worker.found = None
    if failed:
        count, undivided = count - failed, f"{failed} more could not do their part, which was done here"
    return result_of(prepared, parts, count, undivided)


@contextmanager
def _started(inputs: ReplayInput, shares: Sequence[range]) -> Iterator[list[Worker]]:
    """Start a worker for each share of replicas, and end all of them with the block."""
    with ExitStack() as stack:
        workers = []
        if shares:
            job = job_of(inputs)
            for replicas in shares:
                workers.append(Worker(job, replicas))
                stack.callback(workers[-1].end)
        yield workers


class _Board:
    """Adds up how far everybody is."""

    def __init__(self, progress: Progress | None, workers: Sequence[Worker]) -> None:
        self.progress = progress
        self.workers = workers
        self.total = self.now = self.here = self.before = 0

    def tell(self, now: int, ended: int, total: int) -> None:
        """Take the progress of the part that runs here, and show that of all."""
        self.now, self.here, self.total = now, self.before + ended, total
        self._show()

    def close_part(self) -> None:
        """Note that the part that ran here is complete."""
        self.before = self.here

    def wait_for(self, worker: Worker) -> None:
        """Wait until a worker is done or has failed."""
        while worker.is_busy:
            worker.wait(_PATIENCE_S)
            self._show()

    def _show(self) -> None:
        if self.progress is not None and self.total:
            now = max([self.now, *(worker.now for worker in self.workers)])
            self.progress(now, self.here + sum(worker.ended for worker in self.workers), self.total)
