"""What router, admission, patience and faults know of a replica."""

from __future__ import annotations

from typing import Protocol

from tests.oracle.events.launches import OnLaunch
from tests.oracle.serving.routers import Load
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence


class ClockReplica(Load, Protocol):
    """One replica on the clock of a run.

    Attributes
    ----------
    scheduler : Scheduler
        Owns its queue, the sequences that run, and the K/V pool.
    alive : bool
        Whether it can take requests.
    on_launch : callable or None
        None where nobody waits for single layers.
    """

    scheduler: Scheduler
    alive: bool
    on_launch: OnLaunch | None

    def add(self, sequence: Sequence) -> None:
        """Queue an arrived request."""
        ...

    def add_again(self, sequence: Sequence) -> None:
        """Queue a request that has failed elsewhere."""
        ...

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence that waits out of the queue."""
        ...

    def cancel(self, sequence: Sequence) -> bool:
        """Let a sequence go whose client gives it up; return whether it is gone already, no step carries it."""
        ...

    def take_over(self, sequence: Sequence) -> None:
        """Queue a sequence whose prompt was computed elsewhere until there are blocks for it."""
        ...

    def receive(self, sequence: Sequence) -> None:
        """Let a sequence decode whose K/V has arrived."""
        ...

    def hand_over(self, sequence: Sequence) -> None:
        """Take back the blocks of a sequence whose K/V is elsewhere now."""
        ...

    def expect_no_more(self, sequence: Sequence) -> None:
        """Forget a sequence that was to be received, and has no blocks yet."""
        ...

    def give_up(self, sequence: Sequence) -> None:
        """Take back the blocks that were set aside for a sequence which will not come."""
        ...

    def lose(self, sequence: Sequence) -> None:
        """Take back the blocks of a sequence that is computed and can't leave."""
        ...

    def discard(self, sequence: Sequence) -> None:
        """Let a sequence go that is computed and waits to leave, since its client gives it up."""
        ...

    def ends_step(self, now: int) -> bool:
        """Whether a run of steps is under way of which a step ends now; then it ends with that step."""
        ...

    def fail(self, successor: Scheduler) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
        """Go down, and be served by ``successor`` when it is back; return who is to move, and who had been given up."""
        ...

    def schedule(self) -> None:
        """Start what can be started now."""
        ...

    def story(self) -> list[str]:
        """Return who waits for what beside its scheduler, a line each."""
        ...

    def stop(self, now: int) -> None:
        """Record what has ended at the horizon."""
        ...

    def flush(self) -> None:
        """Hand what is recorded to the recorder."""
        ...
