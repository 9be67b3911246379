"""The requests of lanes: which come when, where each went, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.serving.decision import ARRIVED, REJECTED
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence
from clustersim.timeline.tokens import BoolArray
from clustersim.workload.requests import Requests

UNREACHED: Final = -1
REPORTS: Final = 1000
"""About how often progress is reported in a run."""
BLOCK: Final = 1 << 15
"""Requests that are taken from their columns at once."""

Coming = tuple[int, int, int, bool]
"""(arrival in ns, prompt tokens, output tokens, whether the request can never run)"""


class Intake:
    """Replicas of a run, each a lane, and all requests: all replicas, or some where the router asks nobody.

    Parameters
    ----------
    lanes : list of Lane
    replicas : range
        Their numbers.
    of : int
        Replicas of the run.
    requests : Requests
        All requests of the run.
    router : str
    horizon_ns : int or None
    progress : callable or None
        Called with (now in ns, requests accounted for, requests) now and then.

    Attributes
    ----------
    replica_of, arrived : int64 array of shape (requests,)
        Where each request went and when it arrived; ``UNREACHED`` where it did not.
    reasons : dict
        Request → why it was rejected.
    ended : int
        Requests that finished or were rejected.
    """

    def __init__(
        self,
        lanes: list[Lane],
        replicas: range,
        of: int,
        requests: Requests,
        router: str,
        horizon_ns: int | None,
        progress: Callable[[int, int, int], None] | None,
    ) -> None:
        self.lanes = lanes
        for lane in lanes:
            lane.alone = True
        self.replicas = replicas
        self.of = of
        self.requests = requests
        self.balanced = router == "least_outstanding" and of > 1
        self.horizon = NEVER - 1 if horizon_ns is None else horizon_ns
        self.progress = progress
        self.total = len(requests)
        self.replica_of = np.full(self.total, UNREACHED, np.int64)
        self.arrived = np.full(self.total, UNREACHED, np.int64)
        self.reasons: dict[int, str] = {}
        self.ended = 0
        self.reported = 0
        scheduler = lanes[0].scheduler.scheduler
        self.refusal = scheduler.refusal
        self.refused = refused_by(scheduler, requests.prompt_tokens, requests.output_tokens)

    def record(self, lane: Lane, came: Int64Array) -> None:
        """Hand on what a lane did: the arrivals of these requests, then the rest."""
        kinds = np.where(self.refused[came], REJECTED, ARRIVED)
        lane.log.arrivals(self.arrived[came], kinds, came, self.requests.prompt_tokens[came])
        lane.log.flush()

    def reject(self, request: int, now: int) -> None:
        """Turn away a request that can never run."""
        self.explain(request)
        self.end(1, now)

    def explain_refused(self, mine: slice) -> None:
        """Say why some of these requests can never run, where they can't."""
        for request in np.arange(self.total)[mine][self.refused[mine]].tolist():
            self.explain(request)

    def explain(self, request: int) -> None:
        """Say why a request can never run."""
        columns = self.requests
        sequence = Sequence(request, int(columns.prompt_tokens[request]), int(columns.output_tokens[request]))
        self.reasons[request] = self.refusal(sequence) or ""

    def end(self, count: int, now: int) -> None:
        """Count requests that are accounted for."""
        self.ended += count
        if self.progress is not None and self.ended >= min(self.reported + self.total // REPORTS, self.total):
            self.reported = self.ended
            self.progress(now, self.ended, self.total)

    def coming(self, mine: slice) -> Iterator[Coming]:
        """Yield (arrival, prompt tokens, output tokens, refused) of some requests, and at last one that never comes."""
        requests = self.requests
        columns = (requests.arrived_at_ns, requests.prompt_tokens, requests.output_tokens, self.refused)
        chosen = [column[mine] for column in columns]
        for first in range(0, len(chosen[0]), BLOCK):
            yield from zip(*(column[first : first + BLOCK].tolist() for column in chosen), strict=True)
        yield NEVER, 0, 0, False


def refused_by(scheduler: Scheduler, prompts: Int64Array, outputs: Int64Array) -> BoolArray:
    """Return which requests a replica can never run (:meth:`Scheduler.refusal`)."""
    pool, window, discarded = scheduler.pool, scheduler.config.context_window, scheduler.config.discarded_tokens
    none = (prompts == 0) | (outputs == 0)
    refused: BoolArray = none | (prompts + np.maximum(outputs - 1, 0) > pool.blocks * pool.block_tokens)
    return refused if window is None else refused | (prompts + outputs - discarded > window)
