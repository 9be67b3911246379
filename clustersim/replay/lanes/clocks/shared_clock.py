"""Lanes whose arrivals depend on one another, in order of time: a closed loop, or a router that looks at loads.

Two heaps hold when the step or run of each lane ends, and the load of each lane. What is in them is never taken out
when a lane moves on; it is dropped when it comes up and is no longer so.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final

import numpy as np

from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import NEVER
from clustersim.serving.sequence import Sequence
from clustersim.timeline.rows_of import in_order

RECORD_RUNS: Final = 1 << 20
"""Runs of steps after which lanes hand on what they have, where they run together."""


class SharedClock:
    """Lanes whose arrivals depend on one another: a closed loop, or a router that looks at loads."""

    def __init__(self, run: Intake) -> None:
        self.all = run
        self.lanes = run.lanes
        self.stream = run.coming(slice(None))
        self.coming = next(self.stream)
        self.ends: list[tuple[int, int]] = []
        """A heap of (end, replica); an entry counts while it is the end of its lane."""
        self.loads = [(0, index) for index in range(len(run.lanes))]
        """A heap of (outstanding tokens, replica); an entry counts while it is the load of its lane."""
        self.request = 0
        self.freed = 0
        self.deadline = NEVER
        """When something may be due that no step brings and no request."""
        self.asked = -1
        """The last instant at which schedulers were asked."""
        self.awake: dict[int, None] = {}
        self.recorded = 0
        """Requests whose arrival is recorded."""
        self.landed = 0
        """Runs of steps since then."""

    def run(self) -> None:
        """Simulate until every request is accounted for, until nothing can happen, or until the horizon."""
        self._run()
        self._record()

    def _run(self) -> None:
        run, ends, lanes = self.all, self.ends, self.lanes
        closed = run.requests.concurrency is not None
        self.freed = run.requests.concurrency or 0
        now, last = 0, run.horizon + 1
        while True:
            if closed or self.coming[0] == now:
                self._arrive(now, closed)
            if self.deadline <= now:
                self._depart(now, closed)
            if run.ended == run.total:
                break
            until = now if closed else min(self.coming[0], last)
            for index in self.awake:
                lane = lanes[index]
                if lane.end == NEVER:
                    lane.begin(now, until)
                    if lane.end != NEVER:
                        heappush(ends, (lane.end, index))
            self.awake, self.asked = {}, now
            while ends and lanes[ends[0][1]].end != ends[0][0]:
                heappop(ends)
            now = ends[0][0] if ends else NEVER
            if not closed and self.coming[0] < now:
                now = self.coming[0]
            if self.deadline < now:
                now = self._before(now)
            if now > run.horizon:
                break
            until = now if closed else min(self.coming[0], last)
            while ends and ends[0][0] == now:
                index = heappop(ends)[1]
                lane = lanes[index]
                if lane.end == now:
                    if lane.go_on(until):
                        heappush(ends, (lane.end, index))
                    else:
                        self._land(index, now)
            if self.landed >= RECORD_RUNS:
                self._record()
        for lane in lanes:
            lane.stop(run.horizon)

    def _record(self) -> None:
        """Hand on what lanes did, in order of replicas."""
        run = self.all
        routed = run.replica_of[self.recorded : self.request]
        order = in_order(routed)
        bounds = np.searchsorted(routed[order], np.arange(run.of + 1)).tolist()
        for lane, (first, last) in zip(self.lanes, pairwise(bounds), strict=True):
            run.record(lane.log, self.recorded + order[first:last])
        self.recorded, self.landed = self.request, 0

    def _land(self, index: int, now: int) -> None:
        lane = self.lanes[index]
        done = lane.land()
        self.awake[index] = None
        self.landed += 1
        if done:
            self._end(index, done, now)

    def _end(self, index: int, done: list[Sequence], now: int) -> None:
        """Count requests that end at a replica."""
        self.freed += len(done)
        self.all.end(len(done), now)
        if self.all.balanced:
            self._weigh(self.lanes[index].outstanding, index)

    def _depart(self, now: int, closed: bool) -> None:
        """Let happen what is due now."""

    def _before(self, instant: int) -> int:
        """Return an instant, or when something is due before it."""
        return instant

    def _weigh(self, outstanding: int, index: int) -> None:
        """Note the load of a lane; entries that no longer count are dropped before they become many."""
        loads = self.loads
        if len(loads) >= 8 * len(self.lanes):
            loads[:] = [(lane.outstanding, number) for number, lane in enumerate(self.lanes)]
            heapify(loads)
        heappush(loads, (outstanding, index))

    def _arrive(self, now: int, closed: bool) -> None:
        run = self.all
        while self.request < run.total:
            if closed:
                if not self.freed:
                    return
                self.freed -= 1
            elif self.coming[0] != now:
                return
            request = self.request
            _, prompt, output, refused = self.coming
            self.coming = next(self.stream)
            self.request += 1
            sequence = self._sequence(request, prompt, output)
            index = self._route(sequence)
            run.arrived[request], run.replica_of[request] = now, index
            if refused:
                run.reject(request, now)
                self.freed += 1
                continue
            self._queue(index, sequence, now)

    def _sequence(self, request: int, prompt: int, output: int) -> Sequence:
        """Return a request as it arrives."""
        return Sequence(request, prompt, output)

    def _queue(self, index: int, sequence: Sequence, now: int) -> None:
        """Let a request arrive at a lane."""
        lane = self.lanes[index]
        before = lane.end
        lane.arrive(now, sequence)
        if self.all.balanced:
            self._weigh(lane.outstanding, index)
        self.awake[index] = None
        if lane.end == now:  # the arrival fell on the end of a step inside a run, which ends it
            self._land(index, now)
        elif lane.end not in (before, NEVER):
            heappush(self.ends, (lane.end, index))

    def _route(self, sequence: Sequence) -> int:
        if not self.all.balanced:
            return sequence.request % len(self.lanes)
        loads = self.loads
        while self.lanes[loads[0][1]].outstanding != loads[0][0]:
            heappop(loads)
        return loads[0][1]
