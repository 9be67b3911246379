"""Lanes of one pool where more than lengths and loads decides: other routers, limits and orders of queues, clients.

Between arrivals and decisions of an instant deadlines pass. A run of steps of which one ends just then is ended first,
as that step has; what a client gives up ends a run with the step that is under way. The same with replicas that fail,
two pools, and what is no lane: :mod:`clustersim.replay.events.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, TypeVar

from clustersim.clock import in_time
from clustersim.replay.lanes.clocks.shared_clock import SharedClock
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.replay.lanes.lane_load import LaneLoad
from clustersim.replay.patience import Patience, why_given_up
from clustersim.replay.prepared import Prepared
from clustersim.serving.decision import REJECTED
from clustersim.serving.router import make_router
from clustersim.serving.sequence import Sequence
from clustersim.timeline.record import NOT_POOLED

BY_HEAP: Final = ("round_robin", "least_outstanding")
"""Routers that :class:`SharedClock` has by itself."""
_T = TypeVar("_T")


class DecisionClock(SharedClock):
    """All lanes of a run.

    Parameters
    ----------
    run : Intake
    prepared : Prepared
    """

    def __init__(self, run: Intake, prepared: Prepared) -> None:
        super().__init__(run)
        self.input = inputs = prepared.input
        serving, requests = inputs.entry.serving, inputs.requests
        self.now = 0
        self.limit = serving.queue_limit
        self.keys = prepared.prefix_keys
        self.priorities = None if requests.priorities is None else requests.priorities.tolist()
        self.router = None if serving.router in BY_HEAP else make_router(serving, inputs.seed)
        self.loads_of = [ClockLane(self, index, lane) for index, lane in enumerate(run.lanes)]
        self.deadlines: list[tuple[int, int, int]] = []
        """A heap of (instant, what, request); an entry counts while its request has not ended."""
        self.patience = Patience(
            self._expect, serving.queue_timeout_ns, requests.cancel_after_ns,
            replica_of=lambda request: self.loads_of[run.replica_of[request]],
            reject=self._give_up, on_done=lambda index, gone: self._end(index, list(gone), self.now),
        )  # fmt: skip
        leaves = serving.queue_timeout_ns is not None or requests.cancel_after_ns is not None
        for lane in run.lanes:
            lane.alone = not leaves

    def run(self) -> None:
        """Simulate as :meth:`SharedClock.run` does.

        Raises
        ------
        StallError
            When nothing can happen any more although requests are unfinished.
        InputError
            When that is so because a user's own scheduler chooses nothing.
        """
        super().run()
        left = self.all.total - self.all.ended
        if left and self.all.horizon == NEVER - 1:
            from clustersim.replay.events.stall import stall_error  # which takes a while to import

            raise stall_error(self.now, left, self.loads_of)

    def change(self, index: int, change: Callable[[int, Sequence], _T], sequence: Sequence) -> _T:
        """Change what a lane has, after the step that ends now; what it decides next is due when that one has ended."""
        lane, now = self.lanes[index], self.now
        if lane.ends_step(now):
            self._land(index, now)
        before = lane.end
        found = change(now, sequence)
        if lane.end not in (before, NEVER):
            heappush(self.ends, (lane.end, index))
        self.awake[index] = None
        return found

    def _arrive(self, now: int, closed: bool) -> None:
        self.now = now
        super()._arrive(now, closed)

    def _depart(self, now: int, closed: bool) -> None:
        """Let deadlines pass, which may let further requests arrive."""
        self.now, deadlines = now, self.deadlines
        while deadlines and deadlines[0][0] == now:
            self.patience.expire(now, *heappop(deadlines)[1:])
            if closed and (not deadlines or deadlines[0][0] > now):
                self._arrive(now, closed)
        self.deadline = deadlines[0][0] if deadlines else NEVER

    def _sequence(self, request: int, prompt: int, output: int) -> Sequence:
        found = super()._sequence(request, prompt, output)
        found.arrived_ns = self.now
        if self.priorities is not None:
            found.priority = self.priorities[request]
        if self.keys is not None:
            found.keys = self.keys.of(request)
        return found

    def _route(self, sequence: Sequence) -> int:
        if self.router is None:
            return super()._route(sequence)
        return self.router.route(self.now, sequence, self.loads_of)

    def _queue(self, index: int, sequence: Sequence, now: int) -> None:
        reason = self._crowded(self.loads_of[index])
        if reason is None:
            super()._queue(index, sequence, now)
            self.patience.begin(sequence)
            return
        self.all.refused[sequence.request] = True
        self._reject(sequence, reason)

    def _crowded(self, replica: LaneLoad) -> str | None:
        """Return why a replica's queue takes no more, or None."""
        if self.limit is None or replica.waiting < self.limit:
            return None
        return f"the queue of replica {replica.index} is full: serving.queue_limit is {self.limit}"

    def _give_up(self, sequence: Sequence, reason: str) -> None:
        """End a request that has waited too long."""
        index = int(self.all.replica_of[sequence.request])
        lane = self.lanes[index]
        lane.log.fact(self.now, REJECTED, sequence.request, sequence.prompt_tokens, NOT_POOLED)
        if self.all.balanced:
            self._weigh(lane.outstanding, index)
        self._reject(sequence, reason)

    def _reject(self, sequence: Sequence, reason: str) -> None:
        self.all.reasons[sequence.request] = reason
        self.patience.end(sequence.request)
        self.freed += 1
        self.all.end(1, self.now)

    def _end(self, index: int, done: list[Sequence], now: int) -> None:
        patience = self.patience
        for sequence in done if patience.pending else ():
            patience.end(sequence.request)
            if patience.was_given_up(sequence):
                self.all.reasons[sequence.request] = why_given_up(sequence)
        super()._end(index, done, now)

    def _expect(self, delay: int, what: int, request: int) -> None:
        heappush(self.deadlines, (in_time(self.now + delay), what, request))
        self.deadline = self.deadlines[0][0]

    def _before(self, instant: int) -> int:
        """Return an instant, or when the deadline of a request that has not ended is before it."""
        deadlines, pending = self.deadlines, self.patience.pending
        while deadlines and deadlines[0][2] not in pending:
            heappop(deadlines)
        self.deadline = deadlines[0][0] if deadlines else NEVER
        return min(instant, self.deadline)


class ClockLane(LaneLoad):
    """A lane as the router knows it, and whoever gives up.

    Parameters
    ----------
    clock : DecisionClock
    index : int
    lane : Lane
    """

    def __init__(self, clock: DecisionClock, index: int, lane: Lane) -> None:
        self.clock = clock
        self.index = index
        self.lane = lane
        self.scheduler = lane.scheduler.scheduler
        lane.put = self.scheduler.add
        lane.begun = lambda now: clock.asked == now

    @property
    def now(self) -> int:
        """The present instant."""
        return self.clock.now

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue."""
        self.clock.change(self.index, self.lane.withdraw, sequence)

    def cancel(self, sequence: Sequence) -> bool:
        """Let a sequence go whose client gives it up; return whether it is gone already, no step carries it."""
        return self.clock.change(self.index, self.lane.cancel, sequence)
