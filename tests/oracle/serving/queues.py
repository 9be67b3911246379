"""Sequences that wait, in the order of ``serving.order``."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

from clustersim.serving.order import UNLIMITED, Order
from tests.oracle.serving.sequence import Sequence

RANK: Final = attrgetter("rank")


def queue_of(order: Order) -> Queue:
    """Return an empty queue of an order."""
    return ArrivalQueue() if order.by == "arrival" else RankedQueue()


def rank_in(order: Order, sequence: Sequence) -> tuple[int, int, int]:
    """Return what sequences are sorted by; ties go to the request that arrived first."""
    if order.by == "arrival":
        return 0, 0, sequence.request
    number = sequence.priority if order.by == "priority" else sequence.prompt_tokens
    if order.patience_ns == UNLIMITED:
        return number, sequence.arrived_ns, sequence.request
    return 0, sequence.arrived_ns + order.patience_ns * number, sequence.request


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
