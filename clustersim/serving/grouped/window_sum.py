"""Keys that a decode group attends to within a sliding window, as two sums that a step changes in constant time.

A member that joined at clock c with k computed tokens attends to min(k − c + clock + 1, window) keys. As long as that
is less than the window the member counts with its *offset* k − c; from the clock window − 1 − (k − c) on, with the
window. A heap tells when the next one fills its window.
"""

from __future__ import annotations

from heapq import heappop, heappush

from clustersim.serving.sequence import Sequence


class WindowSum:
    """The members of one group whose context is shorter than the window.

    Parameters
    ----------
    window : int
        Tokens that a token attends to, itself included.
    """

    __slots__ = ("filling", "offsets", "total", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.total = 0
        """Sum of the offsets."""
        self.offsets: dict[int, int] = {}
        """Place of each such member → its offset."""
        self.filling: list[tuple[int, int]] = []
        """A heap of (clock from which the window is full, place); entries of members that left may remain."""

    def join(self, sequence: Sequence, clock: int) -> None:
        """Take in a member that joins the group at ``clock``."""
        offset = sequence.computed - clock
        full = self.window - 1 - offset
        if full > clock:
            self.offsets[sequence.place] = offset
            self.total += offset
            heappush(self.filling, (full, sequence.place))

    def leave(self, sequence: Sequence) -> None:
        """Let a member go."""
        self.total -= self.offsets.pop(sequence.place, 0)

    def advance(self, clock: int) -> None:
        """Note that the group's clock is ``clock`` now."""
        filling = self.filling
        while filling and (filling[0][0] <= clock or filling[0][1] not in self.offsets):
            self.total -= self.offsets.pop(heappop(filling)[1], 0)

    def keys(self, members: int, clock: int) -> int:
        """Return the keys that the next step's tokens of ``members`` in all attend to."""
        growing = len(self.offsets)
        return self.window * (members - growing) + self.total + growing * (clock + 1)

    @property
    def growth(self) -> int:
        """Keys more with every step, until :attr:`changes_at`."""
        return len(self.offsets)

    @property
    def changes_at(self) -> int | None:
        """The clock at which the next member's window is full; None when all are."""
        return self.filling[0][0] if self.filling else None
