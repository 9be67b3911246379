"""The requests of lanes: which come when, where each went, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clustersim.replay.input import Progress
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.replay.outcome import Outcome
from clustersim.workload.requests import Requests

BLOCK: Final = 1 << 15
"""Requests that are taken from their columns at once."""

Coming = tuple[int, int, int, bool]
"""(arrival in ns, prompt tokens, output tokens, whether the request can never run)"""


class Intake(Outcome):
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
    """

    def __init__(
        self,
        lanes: list[Lane],
        replicas: range,
        of: int,
        requests: Requests,
        router: str,
        horizon_ns: int | None,
        progress: Progress | None,
    ) -> None:
        super().__init__(requests, lanes[0].scheduler.scheduler, progress)
        self.lanes = lanes
        self.replicas = replicas
        self.of = of
        self.balanced = router == "least_outstanding" and of > 1
        self.horizon = NEVER - 1 if horizon_ns is None else horizon_ns
        self.total = len(requests)

    def reject(self, request: int, now: int) -> None:
        """Turn away a request that can never run."""
        self.explain(request)
        self.end(1, now)

    def coming(self, mine: slice) -> Iterator[Coming]:
        """Yield (arrival, prompt tokens, output tokens, refused) of some requests, and at last one that never comes."""
        requests = self.requests
        columns = (requests.arrived_at_ns, requests.prompt_tokens, requests.output_tokens, self.refused)
        chosen = [column[mine] for column in columns]
        for first in range(0, len(chosen[0]), BLOCK):
            yield from zip(*(column[first : first + BLOCK].tolist() for column in chosen), strict=True)
        yield NEVER, 0, 0, False
