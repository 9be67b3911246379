"""Slices beside those of devices: nested ones on rows of their own, as requests and steps are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from clustersim.clock import Int64Array
from clustersim.values import dataclass

REQUESTS: Final = -1
"""The group of rows that requests have; the others are replicas, by their numbers."""
NOWHERE: Final = -1
"""Of an argument that a slice does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of slices: where it stands, its name, and its place among those of its group."""

    group: int
    name: str
    order: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slices:
    """Slices in the order in which they open: on a row one that is deeper lies within the one before it.

    Parameters
    ----------
    rows : sequence of (number, Row)
        Those that no earlier piece had.
    row, depth, start_ns, end_ns : int64 arrays of shape (slices,)
    name, category : int64 arrays of shape (slices,)
        Numbers of texts, which ``texts`` has.
    number : int64 array of shape (slices,)
        Written behind the name; −1: none.
    arguments : mapping
        Name → value of each slice; −1 where it has none.
    out, into : int64 arrays of shape (slices, most arrows)
        Numbers of the arrows that begin and that end in each slice; 0: none.
    texts : sequence of str
        The same for all pieces of a trace.
    """

    rows: Sequence[tuple[int, Row]]
    row: Int64Array
    depth: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    name: Int64Array
    category: Int64Array
    number: Int64Array
    arguments: Mapping[str, Int64Array]
    out: Int64Array
    into: Int64Array

    def __len__(self) -> int:
        """Return how many slices there are."""
        return len(self.row)

    def opened_and_closed(self) -> tuple[Int64Array, Int64Array]:
        """Return slices in the order in which they open and close, and whether each closes there (1), else 0."""
        count = len(self)
        following = np.full(count, count, np.int64)
        for depth in np.unique(self.depth).tolist():
            mine, shallow = np.flatnonzero(self.depth == depth), np.flatnonzero(self.depth <= depth)
            after = np.searchsorted(shallow, mine, side="right")
            following[mine] = np.append(shallow, count)[after]
        both = np.arange(count, dtype=np.int64)
        closes = np.repeat([0, 1], count)
        place = np.concatenate((both, following))
        deeper = np.concatenate((self.depth, -self.depth))
        order = np.lexsort((deeper, 1 - closes, place))
        return np.concatenate((both, both))[order], closes[order]


class Around(Protocol):
    """What a trace shows beside the operators of its window: slices piece by piece, and their words."""

    @property
    def texts(self) -> Sequence[str]:
        """Names and categories."""

    @property
    def arguments(self) -> Sequence[str]:
        """Names of all arguments."""

    def __iter__(self) -> Iterator[Slices]: ...


def no_arrows(count: int) -> Int64Array:
    """Return arrows of slices that have none."""
    return np.zeros((count, 0), np.int64)


def arrows_of(count: int, of: Int64Array, numbers: Int64Array) -> Int64Array:
    """Return the numbers of arrows by slice: of shape (slices, most arrows of one), 0 where there are fewer."""
    if not len(of):
        return no_arrows(count)
    order = np.argsort(of, kind="stable")
    of, numbers = of[order], numbers[order]
    place = np.arange(len(of)) - np.searchsorted(of, of, side="left")
    found = np.zeros((count, int(place.max()) + 1), np.int64)
    found[of, place] = numbers
    return found
