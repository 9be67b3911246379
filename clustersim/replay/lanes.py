"""The replay of replicas that nothing can disturb: lanes, the router and arrivals, in order of time.

What happens at one instant happens in the phases of :mod:`clustersim.replay.instant`: steps end, requests arrive,
schedulers decide. Between its own events a lane depends on nothing but arrivals, so there is no event queue of
operators. Where the router asks nobody (one replica, or round robin) each lane runs on its own, from arrival to
arrival, and some of them may run elsewhere (:mod:`clustersim.replay.workers`); else a heap holds when each lane's
step or run ends.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.lane import NEVER, Lane
from clustersim.replay.pipe_lane import PipeLane
from clustersim.serving.decision import ARRIVED, REJECTED
from clustersim.serving.sequence import Sequence
from clustersim.workload.requests import Requests

UNREACHED: Final = -1
REPORTS: Final = 1000
"""About how often progress is reported in a run."""


def ask_nobody(requests: Requests, router: str, replicas: int) -> bool:
    """Whether where a request goes, and when, depends on no replica: then each can be replayed alone."""
    return requests.concurrency is None and (router == "round_robin" or replicas == 1)


class Lanes:
    """Replicas of a run, each a lane: all of them, or some where the router asks nobody.

    Parameters
    ----------
    lanes : list of Lane or PipeLane
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
        lanes: list[Lane | PipeLane],
        replicas: range,
        of: int,
        requests: Requests,
        router: str,
        horizon_ns: int | None,
        progress: Callable[[int, int, int], None] | None,
    ) -> None:
        self.lanes = lanes
        self.replicas = replicas
        self.of = of
        self.requests = requests
        self.balanced = router == "least_outstanding" and of > 1
        self.alone = ask_nobody(requests, router, of)
        self.horizon = NEVER - 1 if horizon_ns is None else horizon_ns
        self.progress = progress
        self.total = len(requests)
        self.replica_of = np.full(self.total, UNREACHED, np.int64)
        self.arrived = np.full(self.total, UNREACHED, np.int64)
        self.reasons: dict[int, str] = {}
        self.ended = 0
        self.reported = 0
        self.refusal = lanes[0].scheduler.scheduler.refusal
        pool = lanes[0].scheduler.scheduler.pool
        needed = -(-(requests.prompt_tokens + np.maximum(requests.output_tokens - 1, 0)) // pool.block_tokens)
        self.refused = (requests.prompt_tokens == 0) | (needed > pool.blocks)

    def run(self) -> None:
        """Simulate until every request is accounted for, until nothing can happen, or until the horizon.

        What a lane recorded is handed on in order of replicas.
        """
        if self.alone:
            for index, lane in zip(self.replicas, self.lanes, strict=True):
                mine = self._alone(lane, index)
                self.arrived[mine] = self.requests.arrived_at_ns[mine]
                self.replica_of[mine] = index
                self._record(lane, np.arange(mine.start, mine.stop, mine.step))
            return
        _Together(self).run()
        came = np.flatnonzero(self.replica_of >= 0)
        came = came[np.argsort(self.replica_of[came], kind="stable")]
        bounds = np.searchsorted(self.replica_of[came], np.arange(self.of + 1)).tolist()
        for lane, (first, last) in zip(self.lanes, pairwise(bounds), strict=True):
            self._record(lane, came[first:last])

    def _record(self, lane: Lane | PipeLane, came: Int64Array) -> None:
        """Hand on what a lane did: the arrivals of its requests, then the rest."""
        lane.stop(self.horizon)
        kinds = np.where(self.refused[came], REJECTED, ARRIVED)
        lane.log.arrivals(self.arrived[came], kinds, came, self.requests.prompt_tokens[came])
        lane.log.flush()

    def reject(self, request: int, now: int) -> None:
        """Turn away a request that can never run."""
        columns = self.requests
        sequence = Sequence(request, int(columns.prompt_tokens[request]), int(columns.output_tokens[request]))
        self.reasons[request] = self.refusal(sequence) or ""
        self.end(1, now)

    def end(self, count: int, now: int) -> None:
        """Count requests that are accounted for."""
        self.ended += count
        if self.progress is not None and self.ended >= min(self.reported + self.total // REPORTS, self.total):
            self.reported = self.ended
            self.progress(now, self.ended, self.total)

    def _alone(self, lane: Lane | PipeLane, index: int) -> slice:
        """Run one lane from arrival to arrival; its requests are every n-th one. Return those that arrived."""
        mine = slice(index, None, self.of)
        requests, horizon, stride = self.requests, self.horizon, self.of
        prompts, outputs = requests.prompt_tokens[mine].tolist(), requests.output_tokens[mine].tolist()
        times, refused = requests.arrived_at_ns[mine].tolist(), self.refused[mine].tolist()
        times.append(NEVER)
        begin, land, arrive = lane.begin, lane.land, lane.arrive
        at, coming = 0, times[0]
        while True:
            now = lane.end
            now = min(now, coming)
            if now > horizon:
                break
            if now == lane.end:
                done = land()
                if done:
                    self.end(done, now)
            while coming == now:
                request = index + at * stride
                if refused[at]:
                    self.reject(request, now)
                else:
                    arrive(now, Sequence(request, prompts[at], outputs[at]))
                at += 1
                coming = times[at]
            if lane.end == NEVER:
                begin(now, coming)
        return slice(index, index + at * stride, stride)


class _Together:
    """Lanes whose arrivals depend on one another: a closed loop, or a router that looks at loads."""

    def __init__(self, run: Lanes) -> None:
        self.all = run
        self.lanes = run.lanes
        requests = run.requests
        self.prompts, self.outputs = requests.prompt_tokens.tolist(), requests.output_tokens.tolist()
        self.times, self.refused = requests.arrived_at_ns.tolist(), run.refused.tolist()
        self.ends: list[tuple[int, int]] = []
        """A heap of (end, replica); an entry counts while it is the end of its lane."""
        self.loads = [(0, index) for index in range(len(run.lanes))]
        """A heap of (outstanding tokens, replica); an entry counts while it is the load of its lane."""
        self.request = 0
        self.freed = 0
        self.awake: dict[int, None] = {}

    def run(self) -> None:
        run, ends, lanes = self.all, self.ends, self.lanes
        closed = run.requests.concurrency is not None
        self.freed = run.requests.concurrency or 0
        now = 0
        while True:
            self._arrive(now, closed)
            for index in self.awake:
                lane = lanes[index]
                if lane.end == NEVER:
                    lane.begin(now, NEVER)
                    if lane.end != NEVER:
                        heappush(ends, (lane.end, index))
            self.awake = {}
            while ends and lanes[ends[0][1]].end != ends[0][0]:
                heappop(ends)
            now = ends[0][0] if ends else NEVER
            if not closed and self.request < run.total:
                now = min(now, self.times[self.request])
            if now > run.horizon:
                return
            while ends and ends[0][0] == now:
                index = heappop(ends)[1]
                if lanes[index].end == now:
                    self._land(index, now)

    def _land(self, index: int, now: int) -> None:
        lane = self.lanes[index]
        done = lane.land()
        self.awake[index] = None
        if done:
            self.freed += done
            self.all.end(done, now)
            if self.all.balanced:
                heappush(self.loads, (lane.outstanding, index))

    def _arrive(self, now: int, closed: bool) -> None:
        run = self.all
        while self.request < run.total:
            if closed:
                if not self.freed:
                    return
                self.freed -= 1
            elif self.times[self.request] != now:
                return
            request = self.request
            self.request += 1
            index = self._route(request)
            run.arrived[request], run.replica_of[request] = now, index
            if self.refused[request]:
                run.reject(request, now)
                self.freed += 1
                continue
            lane = self.lanes[index]
            before = lane.end
            lane.arrive(now, Sequence(request, self.prompts[request], self.outputs[request]))
            if run.balanced:
                heappush(self.loads, (lane.outstanding, index))
            self.awake[index] = None
            if lane.end == now:  # the arrival fell on the end of a step inside a run, which ends it
                self._land(index, now)
            elif lane.end not in (before, NEVER):
                heappush(self.ends, (lane.end, index))

    def _route(self, request: int) -> int:
        if not self.all.balanced:
            return request % len(self.lanes)
        loads = self.loads
        while self.lanes[loads[0][1]].outstanding != loads[0][0]:
            heappop(loads)
        return loads[0][1]
