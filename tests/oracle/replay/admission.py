"""What happens when replicas fail and come back: who is moved, who waits at the front, who is lost.

A replica that fails loses its K/V and its steps in flight. What it served goes through the router again to replicas
that live, and is computed anew there (or is lost, where the fault says so). Without any it waits at the front until
one comes back; if none ever does it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from clustersim.clock import Int64Array
from clustersim.replay.outages import Outage
from clustersim.serving.decision import CANCELLED, LOST
from clustersim.timeline.record import Recorder
from tests.oracle.replay.replica import ClockReplica
from tests.oracle.serving.sequence import Sequence as Request

_BEGINNING: Final = attrgetter("at_ns")


class Admission:
    """Replicas as the router sees them, and the sequences that wait for one.

    Parameters
    ----------
    replicas : sequence of ClockReplica
    entries : int
        How many of them requests arrive at, the first ones.
    outages : sequence of Outage
        Of each replica none that overlap or touch.
    recorder : Recorder
    restart : callable
        Makes a replica fail and prepares it to come back; returns who is to be moved, and who had been given up.
    retry : callable
        Sends a sequence to a replica that lives.
    on_done : callable
        Called with (replica, sequences that ended).
    replica_of : int64 array of shape (requests,)
        Where each request is, or was last; kept up to date by others.
    reasons : dict
        Request → why it ended without its tokens; added to here.
    """

    def __init__(
        self,
        replicas: Sequence[ClockReplica],
        entries: int,
        outages: Sequence[Outage],
        recorder: Recorder,
        restart: Callable[[ClockReplica], tuple[tuple[Request, ...], tuple[Request, ...]]],
        retry: Callable[[Request], None],
        on_done: Callable[[int, tuple[Request, ...]], None],
        replica_of: Int64Array,
        reasons: dict[int, str],
    ) -> None:
        self.replicas = replicas
        self.entry = replicas[:entries]
        self.outages = outages
        self.recorder = recorder
        self.restart = restart
        self.retry = retry
        self.on_done = on_done
        self.replica_of = replica_of
        self.reasons = reasons
        self.waiting: dict[int, Request] = {}

    @property
    def living(self) -> Sequence[ClockReplica]:
        """Replicas that can take a request."""
        return [replica for replica in self.entry if replica.alive] if self.outages else self.entry

    def comes_back(self, now: int, replicas: Sequence[ClockReplica] | None = None) -> bool:
        """Return whether some replica (of those at which requests arrive) lives, or will."""
        dead = {one.replica for one in self.outages if one.until_ns is None and one.at_ns <= now}
        return any(one.index not in dead for one in (self.entry if replicas is None else replicas))

    def change(self, now: int) -> None:
        """Carry out the outages that begin or end now."""
        moved: list[tuple[Request, int, bool]] = []
        for outage in self.outages:
            replica = self.replicas[outage.replica]
            if outage.until_ns == now:
                replica.alive = True
            elif outage.at_ns == now:
                sequences, cancelled = self.restart(replica)
                if cancelled:
                    self.on_done(replica.index, cancelled)
                moved += [(sequence, replica.index, outage.loses) for sequence in sequences]
        kept, self.waiting = self.waiting, {}
        moved += [(sequence, int(self.replica_of[request]), False) for request, sequence in kept.items()]
        for sequence, index, loses in sorted(moved, key=lambda one: one[0].request):
            if loses or not self.comes_back(now):
                self.lose(now, index, sequence, self._why_lost(now, index, loses))
            elif (reason := self.entry[0].scheduler.refusal(sequence)) is not None:
                self.lose(now, index, sequence, f"to be computed anew, it {reason}")
            elif self.living:
                self.retry(sequence)
            else:
                self.waiting[sequence.request] = sequence

    def lose(self, now: int, replica: int, sequence: Request, reason: str) -> None:
        """End a sequence that has no K/V and that nobody takes over."""
        sequence.hands_over = False
        self.tell(now, LOST, replica, sequence)
        self.reasons[sequence.request] = reason
        self.on_done(replica, (sequence,))

    def _why_lost(self, now: int, replica: int, loses: bool) -> str:
        """Return why a request is lost that was at a replica when that failed, or waited for it to come back."""
        last = max((one for one in self.outages if one.replica == replica and one.at_ns <= now), key=_BEGINNING)
        return last.why_lost(at_once=loses)

    def cancel(self, now: int, replica: int, sequence: Request) -> None:
        """Let a sequence go that waits here; ``replica`` is the one that it was at."""
        del self.waiting[sequence.request]
        self.tell(now, CANCELLED, replica, sequence)

    def tell(self, now: int, kind: int, replica: int, sequence: Request) -> None:
        """Record a fact of a sequence without K/V on a replica that is down."""
        self.recorder.replica_facts(replica, [(now, kind, sequence.request, sequence.generated, 0)])
