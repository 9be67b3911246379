"""A lane on the clock of a run: a replica as router, admission, patience and faults know it.

Its end is one event at a time. What arrives or leaves meanwhile may put it off or bring it forward; an event that no
longer counts is told by its version.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from clustersim.replay.events.swaps import Swaps
from clustersim.replay.events.wiring import OnLaunch
from clustersim.replay.instant import COMPLETION, asked, at, now_ns
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.replay.lanes.lane_load import LaneLoad
from clustersim.replay.lanes.layers import Layers
from clustersim.replay.lanes.link_watch import LinkWatch
from clustersim.replay.lanes.stretched_lane import AWAY
from clustersim.serving.decision import Swap
from clustersim.serving.scheduler import Scheduler
from clustersim.serving.sequence import Sequence

if TYPE_CHECKING:
    from simpy import Environment


def _nothing(replica: LaneReplica) -> None:
    """Copy nothing to a host."""


class LaneReplica(LaneLoad):
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
    watch : LinkWatch or None
        Of its links, where K/V on its way may be on them.
    copies : callable or None
        Replica → what copies its K/V to its host and back, at the start and after a failure; None: nothing does.
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
        watch: LinkWatch | None = None,
        copies: Callable[[LaneReplica], Swaps | None] = _nothing,
    ) -> None:
        self.env = env
        self.index = index
        self.anew = anew
        self.undisturbed = undisturbed
        self.on_done = on_done
        self.wake = wake
        self.on_launch: OnLaunch | None = None
        self.layers: Layers | None = None
        self.alive = True
        self._version = 0
        self._armed = NEVER
        self.watch = watch
        self.copies = copies
        if watch is not None:
            watch.listen(self._arm)
        self._begin_with(lane)

    def _begin_with(self, lane: Lane) -> None:
        self.lane = lane
        self.scheduler = lane.scheduler.scheduler
        lane.put = self.scheduler.add
        lane.begun = partial(asked, self.env)
        self.swaps = self.copies(self)

    @property
    def now(self) -> int:
        """The present instant."""
        return now_ns(self.env)

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

    def take_over(self, sequence: Sequence) -> None:
        """Queue a sequence whose prompt was computed elsewhere until there are blocks for it."""
        self.lane.take_over(now_ns(self.env), sequence)
        self._changed()

    def receive(self, sequence: Sequence) -> None:
        """Let a sequence decode whose K/V has arrived."""
        self.lane.receive(now_ns(self.env), sequence)
        self._changed()

    def hand_over(self, sequence: Sequence) -> None:
        """Take back the blocks of a sequence whose K/V is elsewhere now."""
        self._take_back(self.scheduler.handed_over, sequence)

    def expect_no_more(self, sequence: Sequence) -> None:
        """Forget a sequence that was to be received, and has no blocks yet."""
        self.lane.expect_no_more(now_ns(self.env), sequence)
        self._changed()

    def give_up(self, sequence: Sequence) -> None:
        """Take back the blocks that were set aside for a sequence which will not come."""
        self.lane.outstanding -= sequence.prompt_tokens + sequence.output_tokens
        self._take_back(self.scheduler.give_up, sequence)

    def lose(self, sequence: Sequence) -> None:
        """Take back the blocks of a sequence that is computed and can't leave."""
        self._take_back(self.scheduler.lose, sequence)

    def discard(self, sequence: Sequence) -> None:
        """Let a sequence go that is computed and waits to leave, since its client gives it up."""
        self._take_back(self.scheduler.discard, sequence)

    def _take_back(self, release: Callable[[int, Sequence], None], sequence: Sequence) -> None:
        self.lane.take_back(now_ns(self.env), release, sequence)
        self._changed()

    def ends_step(self, now: int) -> bool:
        """Whether a run of steps is under way of which a step ends now; then it ends with that step."""
        found = self.lane.ends_step(now)
        self._arm()
        return found

    def fail(self, successor: Scheduler) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Go down: steps in flight are as if they had never begun, and all K/V is lost; see ``Replica.fail``."""
        failed = self.lane
        if self.swaps is not None:
            self.swaps.abandon()
        found = failed.fail(now_ns(self.env))
        self._begin_with(self.anew(successor))
        self.lane.scheduler.follow(failed.scheduler)
        self.alive = False
        self._arm()
        return found

    def schedule(self) -> None:
        """Start a step or a run of steps, if there is anything to run and nothing under way."""
        if self.lane.end == NEVER:
            now, watch = now_ns(self.env), self.watch
            self.lane.begin(now, self.undisturbed() if watch is None or not watch.foreign else now)
            self._begin_swaps()
            if self.on_launch is not None:
                self._tell_layers(self.on_launch)
            if watch is not None:
                watch.meet()
        self._arm()

    def _begin_swaps(self) -> None:
        """Start the copies that were decided."""
        if self.swaps is not None and self.scheduler.swaps:
            swaps, self.scheduler.swaps = self.scheduler.swaps, []
            for swap in swaps:
                self.swaps.begin(swap)

    def end_swaps(self, ended: list[Swap]) -> None:
        """Account for copies that have ended, after all steps that end at this instant."""
        now, lane = now_ns(self.env), self.lane
        gone = tuple([swap.sequence for swap in ended if swap.copied(now, swap.sequence)])
        lane.scheduler.hand_facts(lane.taken(now))
        for sequence in gone:
            lane.outstanding -= sequence.prompt_tokens + sequence.output_tokens
        if gone:
            self.on_done(self.index, gone)
        self.wake(self.index)

    def _tell_layers(self, on_launch: OnLaunch) -> None:
        """Let who waits for single layers know when the step that begins passes them."""
        lane = self.lane
        assert isinstance(lane, DecodeJumpLane)  # ``replay.lanes.build`` says so
        if lane.end == NEVER or lane.batch is None or not lane.batch.chunks:
            return
        if self.layers is None:
            self.layers = Layers(self.env, lane)
            if self.watch is not None:
                self.watch.layers = self.layers
        self.layers.begin(on_launch(self.index, lane.batch.chunks))

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
        if end < AWAY:
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
