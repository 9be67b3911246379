"""Sets of instants as sorted, disjoint intervals: how much of one lies outside another."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intervals:
    """Disjoint half-open intervals in order, in ns.

    Parameters
    ----------
    starts, ends : int64 arrays of shape (intervals,)
    """

    starts: Int64Array
    ends: Int64Array

    @property
    def length_ns(self) -> int:
        """What they cover."""
        return int((self.ends - self.starts).sum())

    def before(self, instants: Int64Array) -> Int64Array:
        """Return how much is covered before each instant, in ns."""
        lengths = self.ends - self.starts
        total = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        begun = np.searchsorted(self.starts, instants, side="right")
        at = np.maximum(begun - 1, 0)
        if not len(lengths):
            return np.zeros(len(instants), np.int64)
        over = np.where(begun > 0, np.maximum(self.ends[at] - instants, 0), 0)
        found: Int64Array = total[begun] - over
        return found

    def outside(self, other: Intervals) -> int:
        """Return how much of these is not covered by ``other``, in ns."""
        return self.length_ns - int((other.before(self.ends) - other.before(self.starts)).sum())


def union(starts: Int64Array, ends: Int64Array) -> Intervals:
    """Return what any of the intervals [start, end) covers; they may come in any order, overlap or be empty.

    Examples
    --------
    >>> both = union(np.array([0, 5, 3]), np.array([4, 6, 5]))
    >>> both.starts.tolist(), both.ends.tolist()
    ([0], [6])
    """
    some = np.flatnonzero(ends > starts)
    order = some[np.argsort(starts[some], kind="stable")]
    first, until = starts[order].astype(np.int64), np.maximum.accumulate(ends[order].astype(np.int64))
    opens = np.concatenate((np.ones(min(len(first), 1), np.bool_), first[1:] > until[:-1]))
    begins = np.flatnonzero(opens)
    return Intervals(starts=first[begins], ends=until[np.append(begins[1:], len(first))[: len(begins)] - 1])
