"""One replica: its scheduler decides, its pipeline executes, and what happened is recorded when a step ends."""

from __future__ import annotations

from collections.abc import Callable

from clustersim.replay.instant import now_ns
from clustersim.serving.view import ReplicaView
from tests.oracle.events.decode_jumps import DecodeJumps
from tests.oracle.events.pipelines import is_free
from tests.oracle.events.stepper import requests_of
from tests.oracle.serving.decision import Swap
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence


class Replica(DecodeJumps):
    """Scheduler, pipeline and record of one replica.

    What others ask of it is here; how its steps run, in :class:`~tests.oracle.events.stepper.Stepper` (with
    the parameters) and :class:`~tests.oracle.events.decode_jumps.DecodeJumps`.
    """

    equip: Callable[[], None]
    """Gives it what steps and copies run on, at the start and after a failure."""

    def story(self) -> list[str]:
        """Return who waits for what in its pipeline, a line each."""
        return [] if self.pipeline is None else list(self.pipeline.story())

    @property
    def waiting(self) -> int:
        """Sequences that wait: to be admitted, to be received, or to come back from the host."""
        scheduler = self.scheduler
        return len(scheduler.waiting) + len(scheduler.swapped_out) + len(scheduler.arriving)

    @property
    def running(self) -> int:
        """Sequences that run, or whose K/V is on its way here."""
        return len(self.scheduler.running) + self.scheduler.receiving

    def view(self, request: Sequence) -> ReplicaView:
        """Return what a user's router is shown."""
        scheduler, pool = self.scheduler, self.scheduler.pool
        self._catch_up(now_ns(self.env))
        return ReplicaView(
            replica=self.index,
            waiting=self.waiting,
            running=self.running,
            outstanding_tokens=self.outstanding,
            waiting_tokens=sum(s.to_compute for s in (*scheduler.waiting, *scheduler.running) if not s.decodes),
            free_blocks=sum(pool.free),
            pool_blocks=pool.total,
            cached_tokens=self.cached_tokens(request),
        )

    def cached_tokens(self, request: Sequence) -> int:
        """Return how many leading tokens of a prompt one of the pools has cached."""
        pool = self.scheduler.caching
        if pool is None:
            return 0
        self._catch_up(now_ns(self.env))  # decodes may have taken blocks that were cached ones
        return pool.block_tokens * max(pool.cached_blocks(owner, request) for owner in range(len(pool.free)))

    def add(self, sequence: Sequence) -> None:
        """Queue an arrived request."""
        self.scheduler.add(sequence)
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        scheduler = self.scheduler  # those before it are kept out as ever
        if self.run is not None and (scheduler.heeds_all or scheduler.waiting[0] is sequence):
            self._cut(now_ns(self.env))
        self.wake(self.index)

    def take_over(self, sequence: Sequence) -> None:
        """Queue a sequence whose prompt was computed elsewhere until there are blocks for it."""
        scheduler = self.scheduler
        scheduler.arriving.append(sequence)
        self.outstanding += sequence.prompt_tokens + sequence.output_tokens
        if self.run is not None and scheduler.arriving[0] is sequence:
            self._cut(now_ns(self.env))
        self.wake(self.index)

    def receive(self, sequence: Sequence) -> None:
        """Let a sequence decode whose K/V has arrived."""
        now = now_ns(self.env)
        self._catch_up(now)
        self.scheduler.received(now, sequence)
        if self.run is not None:
            self._cut(now)
        self.wake(self.index)

    def hand_over(self, sequence: Sequence) -> None:
        """Take back the blocks of a sequence whose K/V is elsewhere now."""
        self.scheduler.handed_over(now_ns(self.env), sequence)
        self.flush()
        self.wake(self.index)

    def expect_no_more(self, sequence: Sequence) -> None:
        """Forget a sequence that was to be received, and has no blocks yet."""
        self.scheduler.arriving.remove(sequence)
        self._left((sequence,))
        self._decide_anew()

    def give_up(self, sequence: Sequence) -> None:
        """Take back the blocks that were set aside for a sequence which will not come."""
        now = now_ns(self.env)
        self._catch_up(now)
        self.scheduler.give_up(now, sequence)
        self._left((sequence,))
        self.flush()
        self._decide_anew()

    def lose(self, sequence: Sequence) -> None:
        """Take back the blocks of a sequence that is computed and can't leave."""
        self.scheduler.lose(now_ns(self.env), sequence)
        self.flush()
        self._decide_anew()

    def discard(self, sequence: Sequence) -> None:
        """Let a sequence go that is computed and waits to leave, since its client gives it up."""
        self.scheduler.discard(now_ns(self.env), sequence)
        self.flush()
        self._decide_anew()

    def add_again(self, sequence: Sequence) -> None:
        """Queue a request that has failed elsewhere.

        No fact says when, so a run of steps ends, and the next row of steps tells how many wait.
        """
        self.add(sequence)
        self._decide_anew()

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue."""
        self.scheduler.withdraw(sequence)
        self._left((sequence,))
        self._decide_anew()

    def cancel(self, sequence: Sequence) -> bool:
        """Let a sequence go whose client gives it up; return whether it is gone already, no step carries it."""
        now = now_ns(self.env)
        self._catch_up(now)
        gone = self.scheduler.cancel(now, sequence)
        if gone:
            self._left((sequence,))
            self.recorder.finished(self.index, (sequence.request,))
            self.flush()
        self._decide_anew()
        return gone

    def fail(self, successor: Scheduler) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Go down: steps in flight are as if they had never begun, and all K/V is lost.

        Parameters
        ----------
        successor : Scheduler
            With nothing in it: the one that decides when the replica is back.

        Returns
        -------
        (sequences, sequences)
            See :meth:`Scheduler.evict`.
        """
        now = now_ns(self.env)
        self._cut_off(now)
        if self.swaps is not None:
            self.swaps.abandon()
        evicted, cancelled = self.scheduler.evict(now)
        self.recorder.finished(self.index, requests_of((*evicted, *cancelled)))
        self.flush()
        self.alive, self.in_flight, self.outstanding = False, 0, 0
        self.rows.clear()
        self.scheduler = successor
        self.equip()
        return evicted, cancelled

    def _cut_off(self, now: int) -> None:
        """Account for the steps that have ended, and forget the others."""
        if self.run is None:
            self.steps -= self.in_flight
        else:
            self.run.abandon()
            self.stop(now)
            self.run = None
        self._pipeline.abandon()

    def _decide_anew(self) -> None:
        """Decide anew when the step that is under way has ended."""
        if self.run is not None:
            self._cut(now_ns(self.env))
        self.wake(self.index)

    def schedule(self) -> None:
        """Start steps while the first stage is free and there is something to run."""
        pipeline = self._pipeline
        while self.run is None and is_free(pipeline) and self.in_flight < len(pipeline.stages):
            decision = self.scheduler.schedule(now_ns(self.env))
            self.begin_swaps()
            if decision is None:
                return
            batch = self.batch_of(decision)
            if self.jumps and decision.steady and not pipeline.is_slowed(0):
                self._jump(decision, batch)
            else:
                self._step(decision, batch)

    def end_swaps(self, ended: list[Swap]) -> None:
        """Account for copies that have ended, after all steps that end at this instant."""
        gone = tuple(swap.sequence for swap in ended if swap.copied(now_ns(self.env), swap.sequence))
        if gone:
            self._left(gone)
            self.flush()
            self.on_done(self.index, gone)
        self.wake(self.index)

    def begin_swaps(self) -> None:
        """Start the copies that were decided."""
        if self.swaps is not None:
            swaps, self.scheduler.swaps = self.scheduler.swaps, []
            for swap in swaps:
                if swap.out:
                    self.recorder.finished(self.index, (swap.sequence.request,))
                self.swaps.begin(swap)
