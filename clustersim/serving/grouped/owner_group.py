"""Sequences that decode together where each SP rank keeps whole sequences: the sums of a group, owner by owner."""

from __future__ import annotations

from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.window_sum import WindowSum
from clustersim.serving.sequence import Sequence


class OwnerSums:
    """The members of one group that one owner keeps.

    Parameters
    ----------
    block_tokens : int
    windows : tuple of int

    Attributes
    ----------
    count, computed, phases, windows
        What they are in :class:`~clustersim.serving.grouped.decode_group.DecodeGroup`.
    """

    __slots__ = ("computed", "count", "phases", "windows")

    def __init__(self, block_tokens: int, windows: tuple[int, ...]) -> None:
        self.count = 0
        self.computed = 0
        self.phases = [0] * block_tokens
        self.windows = tuple(WindowSum(window) for window in windows)

    def join(self, sequence: Sequence, clock: int) -> None:
        """Take in a member that joins the group at ``clock``."""
        self.count += 1
        self.computed += sequence.computed
        self.phases[(clock - sequence.computed) % len(self.phases)] += 1
        for window in self.windows:
            window.join(sequence, clock)

    def leave(self, sequence: Sequence, clock: int) -> None:
        """Let a member go that is up to date at ``clock``."""
        self.count -= 1
        self.computed -= sequence.computed
        self.phases[(clock - sequence.computed) % len(self.phases)] -= 1
        for window in self.windows:
            window.leave(sequence)


class OwnerGroup(DecodeGroup):
    """Members, clock and sums of all, and of each owner.

    Parameters
    ----------
    block_tokens : int
    windows : tuple of int
    owners : int

    Attributes
    ----------
    of : tuple of OwnerSums
        By owner.
    """

    __slots__ = ("of",)

    def __init__(self, block_tokens: int, windows: tuple[int, ...], owners: int) -> None:
        super().__init__(block_tokens, windows)
        self.of = tuple(OwnerSums(block_tokens, windows) for _ in range(owners))

    @property
    def counts(self) -> tuple[int, ...]:
        """Members by owner."""
        return tuple([own.count for own in self.of])

    def keys(self, owner: int, window: int | None) -> tuple[int, int]:
        """Return the keys that an owner's members attend to in the next step, and how many more in each further one."""
        own = self.of[owner]
        if window is None:
            return own.computed + own.count, own.count
        (sums,) = (one for one in own.windows if one.window == window)
        return sums.keys(own.count, self.clock), sums.growth

    def join(self, sequence: Sequence) -> None:
        """Take in a sequence whose next step is a decode step."""
        super().join(sequence)
        self.of[sequence.owner].join(sequence, self.clock)

    def advance(self, steps: int) -> list[Sequence]:
        """Let every member take ``steps`` tokens; return those that are complete now, up to date, by place."""
        done = super().advance(steps)
        for own in self.of:
            own.computed += steps * own.count
        for sequence in done:
            self.of[sequence.owner].leave(sequence, self.clock)
        for own in self.of:
            for window in own.windows:
                window.advance(self.clock)
        return done

    def leave(self, sequence: Sequence) -> None:
        """Let a member go that has not all its tokens, up to date."""
        super().leave(sequence)
        self.of[sequence.owner].leave(sequence, self.clock)

    def growths(self) -> list[int]:
        """Return the blocks that members enter in the next step, by owner."""
        at = self.clock % self.block_tokens
        return [own.phases[at] for own in self.of]
