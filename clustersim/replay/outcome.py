"""What becomes of requests: when and where each came, and why it was rejected."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.input import UNREACHED, Progress
from clustersim.replay.replica_log import ReplicaLog
from clustersim.serving.capacity import ReplicaCapacity
from clustersim.serving.decision import ARRIVED, REJECTED
from clustersim.workload.requests import Requests

REPORTS: Final = 1000
"""About how often progress is reported in a run."""


class Outcome:
    """What becomes of all requests of a run, or of those that come to some of its replicas.

    Parameters
    ----------
    requests : Requests
    capacity : ReplicaCapacity
        Where they come to.
    progress : callable or None
    decoder : ReplicaCapacity, optional
        Of the next pool, where there is one.

    Attributes
    ----------
    replica_of, arrived : int64 array of shape (requests,)
        Where each request went and when it arrived; ``UNREACHED`` where it did not.
    refused : bool array of shape (requests,)
        Whether it was turned away as it came.
    refused_there : bool array of shape (requests,)
        … since it could never decode.
    reasons : dict
        Request → why it was rejected, or left.
    ended : int
        Requests that finished, left or were rejected.
    """

    def __init__(
        self,
        requests: Requests,
        capacity: ReplicaCapacity,
        progress: Progress | None,
        decoder: ReplicaCapacity | None = None,
    ) -> None:
        self.requests = requests
        self.capacity = capacity
        self.progress = progress
        self.replica_of: Int64Array = np.full(len(requests), UNREACHED, np.int64)
        self.arrived: Int64Array = np.full(len(requests), UNREACHED, np.int64)
        self.decoder = decoder
        prompts, outputs = requests.prompt_tokens, requests.output_tokens
        self.refused = capacity.refused(prompts, outputs if decoder is None else np.minimum(outputs, 1))
        self.refused_there = np.zeros(len(requests), bool)
        if decoder is not None:
            self.refused_there = decoder.refused(prompts, outputs) & ~self.refused
            self.refused |= self.refused_there
        self.reasons: dict[int, str] = {}
        self.ended = self.reported = 0

    def explain(self, request: int) -> None:
        """Say why a request can never run."""
        columns = self.requests
        prompt, output = int(columns.prompt_tokens[request]), int(columns.output_tokens[request])
        if self.decoder is None:
            self.reasons[request] = self.capacity.refusal(prompt, output) or ""
            return
        there = self.decoder.refusal(prompt, output)
        self.reasons[request] = self.capacity.refusal(prompt, min(output, 1)) or f"to decode, it {there}"

    def end(self, count: int, now: int) -> None:
        """Count requests that are accounted for."""
        self.ended += count
        total = len(self.requests)
        if self.progress is not None and self.ended >= min(self.reported + total // REPORTS, total):
            self.reported = self.ended
            self.progress(now, self.ended, total)

    def record(self, log: ReplicaLog, came: Int64Array) -> None:
        """Hand on what a replica did: the arrivals of these requests, then the rest."""
        kinds = np.where(self.refused[came], REJECTED, ARRIVED)
        log.arrivals(self.arrived[came], kinds, came, self.requests.prompt_tokens[came])
        log.flush()
