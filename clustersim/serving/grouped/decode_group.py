"""Sequences that decode together, as a few numbers that a step changes in constant time.

Each step gives every member one token. So a clock that counts steps tells all progress: a member that joined at
clock c with k computed tokens has k + clock − c of them now, finishes at the clock c + tokens left, and enters a
new K/V block in every step whose clock is ≡ c − k (mod block size). A heap of finish clocks, a count of members
per phase of the block and the sum of computed tokens are all that scheduling and pricing ask for; the members
themselves are brought up to date (:meth:`DecodeGroup.refresh`) only when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Final

from clustersim.serving.grouped.window_sum import WindowSum
from clustersim.serving.sequence import Sequence

NEVER: Final = 1 << 64
by_place: Final[Callable[[Sequence], int]] = attrgetter("place")
"""Returns the place of admission, to sort by."""


class DecodeGroup:
    """Members, clock and sums.

    Parameters
    ----------
    block_tokens : int
        Tokens per K/V block.
    windows : tuple of int
        Sliding windows of the model.

    Attributes
    ----------
    clock : int
        Decode steps so far.
    count : int
        Members.
    computed : int
        Computed tokens of all members together.
    finishes : list of (clock, place, Sequence)
        A heap: when each member has all its tokens.
    phases : list of int
        Members by the clock, modulo ``block_tokens``, at which they enter a new block.
    fresh : list of Sequence
        Members that the group has not carried yet.
    latest : int
        The latest place of admission among those that ever joined.
    slot, last_step : int
        Slot of decodes that it used last, and the last step that carried it; −1 before.
    windows : tuple of WindowSum
        One per sliding window.
    """

    __slots__ = (
        "block_tokens", "clock", "computed", "count", "finishes", "fresh", "last_step", "latest", "phases", "slot",
        "windows",
    )  # fmt: skip

    def __init__(self, block_tokens: int, windows: tuple[int, ...] = ()) -> None:
        self.block_tokens = block_tokens
        self.clock = 0
        self.count = 0
        self.computed = 0
        self.finishes: list[tuple[int, int, Sequence]] = []
        self.phases = [0] * block_tokens
        self.fresh: list[Sequence] = []
        self.latest = -1
        self.slot = -1
        self.last_step = -1
        self.windows = tuple(WindowSum(window) for window in windows)

    def join(self, sequence: Sequence) -> None:
        """Take in a sequence whose next step is a decode step."""
        clock, place, computed = self.clock, sequence.place, sequence.computed
        sequence.joined = clock
        heappush(self.finishes, (clock + sequence.output_tokens - sequence.generated, place, sequence))
        self.phases[(clock - computed) % self.block_tokens] += 1
        self.computed += computed
        self.count += 1
        self.fresh.append(sequence)
        self.latest = max(self.latest, place)
        for window in self.windows:
            window.join(sequence, clock)

    @property
    def left(self) -> int:
        """Steps until the first member has all its tokens."""
        return self.finishes[0][0] - self.clock

    @property
    def growth(self) -> int:
        """Blocks that members enter in the next step."""
        return self.phases[self.clock % self.block_tokens]

    def growth_after_first(self, steps: int) -> int:
        """Return the blocks that members enter in the next ``steps`` steps but the first."""
        size, phases = self.block_tokens, self.phases
        rounds, rest = divmod(steps - 1, size)
        start = (self.clock + 1) % size
        entered = sum(phases[start : start + rest])
        if start + rest > size:
            entered += sum(phases[: start + rest - size])
        return rounds * self.count + entered

    def affordable(self, limit: int, free: int) -> int:
        """Return how many of the next ``limit`` steps have their blocks, when all but the first take from ``free``."""
        size, phases = self.block_tokens, self.phases
        if (limit // size + 1) * self.count <= free:
            return limit
        for step in range(1, limit):
            free -= phases[(self.clock + step) % size]
            if free < 0:
                return step
        return limit

    @property
    def unchanged_windows(self) -> int:
        """Steps until the context of a member fills a sliding window."""
        return min([NEVER, *(w.changes_at - self.clock for w in self.windows if w.changes_at is not None)])

    def advance(self, steps: int) -> list[Sequence]:
        """Let every member take ``steps`` tokens; return those that are complete now, up to date, by place."""
        self.clock = clock = self.clock + steps
        self.computed += steps * self.count
        finishes = self.finishes
        done: list[Sequence] = []
        while finishes and finishes[0][0] <= clock:
            sequence = heappop(finishes)[2]
            size, joined = self.block_tokens, sequence.joined
            self.phases[(joined - sequence.computed) % size] -= 1
            sequence.computed += clock - joined
            sequence.generated = sequence.output_tokens
            sequence.blocks = -(-sequence.computed // size)
            self.computed -= sequence.computed
            self.count -= 1
            done.append(sequence)
        for window in self.windows:
            for sequence in done:
                window.leave(sequence)
            window.advance(clock)
        return done

    def leave(self, sequence: Sequence) -> None:
        """Let a member go that has not all its tokens, up to date."""
        clock, size = self.clock, self.block_tokens
        self.phases[(sequence.joined - sequence.computed) % size] -= 1
        for window in self.windows:
            window.leave(sequence)
        _bring(sequence, clock, size)
        self.computed -= sequence.computed
        self.count -= 1
        self.finishes = [entry for entry in self.finishes if entry[2] is not sequence]
        heapify(self.finishes)
        if sequence in self.fresh:
            self.fresh.remove(sequence)
        else:
            sequence.last_step = self.last_step

    def refresh(self) -> list[Sequence]:
        """Bring every member up to date and return them, by place."""
        members = [entry[2] for entry in self.finishes]
        clock, size = self.clock, self.block_tokens
        for sequence in members:
            _bring(sequence, clock, size)
        members.sort(key=by_place)
        return members


def _bring(sequence: Sequence, clock: int, block_tokens: int) -> None:
    """Bring a member up to date."""
    grown = clock - sequence.joined
    sequence.joined = clock
    sequence.computed += grown
    sequence.generated += grown
    sequence.blocks = -(-sequence.computed // block_tokens)
