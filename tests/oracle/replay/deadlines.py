"""Requests that end by themselves: those that waited too long to be taken up, and those whose clients give them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from clustersim.clock import Int64Array
from clustersim.replay.patience import WHY_GIVEN_UP, why_waited
from tests.oracle.replay.departures import CANCELLATION, TIMEOUT
from tests.oracle.serving.sequence import Sequence


class Served(Protocol):
    """A replica that requests may leave."""

    @property
    def index(self) -> int:
        """Number of the replica."""
        ...

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue."""
        ...

    def cancel(self, sequence: Sequence) -> bool:
        """Let a sequence go whose client gives it up; return whether it is gone already, no step carries it."""
        ...


class Patience:
    """Deadlines of requests that are at a replica.

    Parameters
    ----------
    expect : callable
        Called with (ns from now, what, request): has :meth:`expire` called then.
    timeout_ns : int or None
        For how long a request waits to be taken up.
    cancel_after_ns : int64 array or None
        By request: after how long its client gives it up; −1: never.
    replica_of : callable
        Request → the replica where it is.
    reject : callable
        Ends a request that waited too long, with the reason.
    on_done : callable
        Called with (replica, sequences that ended).
    """

    def __init__(
        self,
        expect: Callable[[int, int, int], None],
        timeout_ns: int | None,
        cancel_after_ns: Int64Array | None,
        replica_of: Callable[[int], Served],
        reject: Callable[[Sequence, str], None],
        on_done: Callable[[int, tuple[Sequence, ...]], None],
    ) -> None:
        self.expect = expect
        self.timeout_ns = timeout_ns
        self.cancel_after_ns = cancel_after_ns
        self.replica_of = replica_of
        self.reject = reject
        self.on_done = on_done
        self.pending: dict[int, Sequence] = {}
        """Requests that have a deadline and have not ended."""
        self.given_up: set[int] = set()
        """Requests whose clients have given them up."""

    def begin(self, sequence: Sequence) -> None:
        """Set the deadlines of a request that has arrived."""
        timeout, cancels, request = self.timeout_ns, self.cancel_after_ns, sequence.request
        if timeout is not None:
            self.expect(timeout, TIMEOUT, request)
        if cancels is not None and cancels[request] >= 0:
            self.expect(int(cancels[request]), CANCELLATION, request)
        if timeout is not None or cancels is not None:
            self.pending[request] = sequence

    def end(self, request: int) -> None:
        """Forget the deadlines of a request that has ended."""
        self.pending.pop(request, None)

    def was_given_up(self, sequence: Sequence) -> bool:
        """Return whether a sequence that ended left because its client gave it up: before its last token."""
        return sequence.request in self.given_up and not sequence.answered

    def expire(self, now: int, what: int, request: int) -> None:
        """Let a deadline pass, if the request has not ended before."""
        sequence = self.pending.get(request)
        if sequence is None:
            return
        if what == CANCELLATION:
            self.given_up.add(request)
            self._cancel(now, sequence)
        elif not sequence.admitted:
            self._give_up(now, sequence)

    def _give_up(self, now: int, sequence: Sequence) -> None:
        self._withdraw(sequence)
        self.reject(sequence, why_waited(now - sequence.arrived_ns))

    def _withdraw(self, sequence: Sequence) -> None:
        self.replica_of(sequence.request).withdraw(sequence)

    def _cancel(self, now: int, sequence: Sequence) -> None:
        del now
        replica = self.replica_of(sequence.request)
        if replica.cancel(sequence):
            self.on_done(replica.index, (sequence,))


def why_given_up(sequence: Sequence) -> str:
    """Return in words how far a request had come when its client gave it up."""
    return WHY_GIVEN_UP[0 if not sequence.admitted else 1 if sequence.generated == 0 else 2]
