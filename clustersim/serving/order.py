"""In which order waiting sequences are taken up, and how long one may overtake another.

Each sequence has a rank that never changes, so that preemption and skipping cannot disturb the order: its arrival,
put off by what it costs. ::

    arrival           rank = arrival
    priority          rank = arrival + patience × priority        (lower numbers go first, as in vLLM)
    shortest_prompt   rank = arrival + patience × prompt tokens

The lowest rank goes first. Nobody starves: a sequence is overtaken only by those that arrive at most patience ×
(its own number − theirs) after it. Without limit to the patience the number decides before the arrival does; then
a stream of urgent requests keeps the others waiting for as long as it lasts, which is what strict priorities mean.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, Literal

from clustersim.serving.sequence import Sequence
from clustersim.values import dataclass

OrderName = Literal["arrival", "priority", "shortest_prompt"]

DEFAULT_PATIENCE_NS: Final = {"arrival": 0, "priority": 10_000_000_000, "shortest_prompt": 10_000_000}
"""What a level of priority, or a token of the prompt, is worth by default: 10 s and 10 ms (assumed)."""

UNLIMITED: Final = -1

RANK: Final = attrgetter("rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How waiting sequences are ranked.

    Parameters
    ----------
    by : str
        ``arrival``, ``priority`` or ``shortest_prompt``.
    patience_ns : int
        What one level of priority or one token of the prompt is worth in waiting; ``UNLIMITED``: more than any wait.
    """

    by: OrderName = "arrival"
    patience_ns: int = 0

    def queue(self) -> Queue:
        """Return an empty queue of this order."""
        return ArrivalQueue() if self.by == "arrival" else RankedQueue()

    def rank(self, sequence: Sequence) -> tuple[int, int, int]:
        """Return what sequences are sorted by; ties go to the request that arrived first."""
        if self.by == "arrival":
            return 0, 0, sequence.request
        number = sequence.priority if self.by == "priority" else sequence.prompt_tokens
        if self.patience_ns == UNLIMITED:
            return number, sequence.arrived_ns, sequence.request
        return 0, sequence.arrived_ns + self.patience_ns * number, sequence.request


class ArrivalQueue(deque[Sequence]):
    """Waiting sequences in order of arrival; requests are numbered so. Both ends take constant time."""

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into its place: the end, unless it was preempted."""
        if not self or self[-1].request < sequence.request:
            self.append(sequence)
            return
        place = next(i for i, other in enumerate(self) if other.request > sequence.request)
        self.insert(place, sequence)


class RankedQueue:
    """Waiting sequences, the lowest rank first; taking the first takes constant time."""

    def __init__(self, sequences: Iterable[Sequence] = ()) -> None:
        self._reversed = sorted(sequences, key=RANK, reverse=True)

    def __len__(self) -> int:
        return len(self._reversed)

    def __iter__(self) -> Iterator[Sequence]:
        return reversed(self._reversed)

    def __getitem__(self, place: int) -> Sequence:
        return self._reversed[-1 - place]

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into its place."""
        insort(self._reversed, sequence, key=_descending)

    def popleft(self) -> Sequence:
        """Take the first."""
        return self._reversed.pop()

    def remove(self, sequence: Sequence) -> None:
        """Take one from wherever it is.

        Raises
        ------
        ValueError
            When it isn't waiting.
        """
        place = bisect_left(self._reversed, _descending(sequence), key=_descending)
        if place == len(self._reversed) or self._reversed[place] is not sequence:
            raise ValueError(f"request {sequence.request} isn't waiting")
        del self._reversed[place]


Queue = ArrivalQueue | RankedQueue


def _descending(sequence: Sequence) -> tuple[int, int, int]:
    first, second, third = sequence.rank
    return -first, -second, -third
