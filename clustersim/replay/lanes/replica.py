"""A lane on the clock of a run: a replica as router, admission, patience and faults know it.

Its end is one event at a time. What arrives or leaves meanwhile may put it off or bring it forward; an event that no
longer counts is told by its version.
"""

from __future__ import annotations

from collections.abc import Callable

from simpy import Environment

from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence
from clustersim.serving.view import ReplicaView


class LaneReplica:
    """One replica.

    Parameters
    ----------
    env : simpy.Environment
    index : int
    lane : Lane
    anew : callable
        A scheduler with nothing in it → the lane that takes over from one that failed, with the same log.
    undisturbed : callable
        Returns an instant before which no request arrives anywhere.
    on_done : callable
        Called with (replica, sequences that ended).
    wake : callable
        Asks for a scheduling decision at this instant.
    """

    def __init__(
        self,
        env: Environment,
        index: int,
        lane: Lane,
        anew: Callable[[Scheduler], Lane],
        undisturbed: Callable[[], int],
        on_done: Callable[[int, tuple[Sequence, ...]], None],
        wake: Callable[[int], None],
    ) -> None:
        self.env = env
        self.index = index
        self.anew = anew
        self.undisturbed = undisturbed
        self.on_done = on_done
        self.wake = wake
        self.alive = True
        self._version = 0
        self._armed = NEVER
        self._begin_with(lane)

    def _begin_with(self, lane: Lane) -> None:
        self.lane = lane
        self.scheduler = lane.scheduler.scheduler
        lane.put = self.scheduler.add

    @property
    def outstanding(self) -> int:
        """Prompt and output tokens of unfinished requests."""
        return self.lane.outstanding

    @property
    def waiting(self) -> int:
        """Sequences that wait."""
        return len(self.scheduler.waiting)

    @property
    def running(self) -> int:
        """Sequences that run."""
        return len(self.scheduler.running)

    def cached_tokens(self, request: Sequence) -> int:
        """Return how many leading tokens of a prompt are cached: none, a lane keeps no prefixes."""
        del request
        return 0

    def view(self, request: Sequence) -> ReplicaView:
        """Return what a user's router is shown."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        return ReplicaView(
            replica=self.index,
            waiting=self.waiting,
            running=self.running,
            outstanding_tokens=self.outstanding,
            waiting_tokens=sum(s.to_compute for s in (*scheduler.waiting, *scheduler.running) if not s.decodes),
            free_blocks=sum(pool.free) - self.lane.taken(now_ns(self.env)),
            pool_blocks=pool.total,
            cached_tokens=self.cached_tokens(request),
        )

    def add(self, sequence: Sequence) -> None:
        """Queue an arrived request."""
        self.lane.arrive(now_ns(self.env), sequence)
        self._changed()

    def add_again(self, sequence: Sequence) -> None:
        """Queue a request that has failed elsewhere; a run of steps ends, as no fact says when."""
        self.lane.arrive(now_ns(self.env), sequence)
        self.lane.reconsider(now_ns(self.env))
        self._changed()

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue."""
        self.lane.withdraw(now_ns(self.env), sequence)
        self._changed()

    def cancel(self, sequence: Sequence) -> bool:
        """Let a sequence go whose client gives it up; return whether it is gone already, no step carries it."""
        gone = self.lane.cancel(now_ns(self.env), sequence)
        self._changed()
        return gone

    def ends_step(self, now: int) -> bool:
        """Whether a run of steps is under way of which a step ends now; then it ends with that step."""
        found = self.lane.ends_step(now)
        self._arm()
        return found

    def fail(self, successor: Scheduler) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Go down: steps in flight are as if they had never begun, and all K/V is lost; see ``Replica.fail``."""
        failed = self.lane
        found = failed.fail(now_ns(self.env))
        self._begin_with(self.anew(successor))
        self.lane.scheduler.follow(failed.scheduler)
        self.alive = False
        self._arm()
        return found

    def schedule(self) -> None:
        """Start a step or a run of steps, if there is anything to run and nothing under way."""
        if self.lane.end == NEVER:
            self.lane.begin(now_ns(self.env), self.undisturbed())
        self._arm()

    def story(self) -> list[str]:
        """Return who waits for what beside its scheduler: nobody does."""
        return []

    def stop(self, now: int) -> None:
        """Record what has ended at the horizon."""
        self.lane.stop(now)

    def flush(self) -> None:
        """Hand what is recorded to the recorder."""
        self.lane.log.flush()

    def _changed(self) -> None:
        self._arm()
        self.wake(self.index)

    def _arm(self) -> None:
        """Wait for the end of the lane, where that is another one than before."""
        end = self.lane.end
        if end == self._armed:
            return
        self._armed = end
        self._version += 1
        if end != NEVER:
            at(self.env, end - now_ns(self.env), COMPLETION, self._ended, self._version)

    def _ended(self, version: int) -> None:
        if version != self._version:
            return
        self._armed = NEVER
        if self.lane.go_on(self.undisturbed()):
            self._arm()
            return
        ended = self.lane.land()
        if ended:
            self.on_done(self.index, tuple(ended))
        self.wake(self.index)
