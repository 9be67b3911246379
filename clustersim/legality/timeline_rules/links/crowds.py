"""Whether what was on a link fits on it: transfers between two instants take no more of the link than it has.

A transfer has its bytes on the link between an instant at which they can first be there and one at which it has ended,
and never faster than when it has all its links to itself. So of two instants it is known how much of it was carried
between them at least: all, where it lies between them as a whole; else what it can't have carried before and after,
which is its part of the time where it was as fast as alone. Together that may take no more than this time of the link
(energetic reasoning; without the pace: Horn, Some simple scheduling algorithms, 1974). Two that each had all of a link
while they overlapped take more, and so do two that were as fast as alone where the link has not enough for both.

Looked at are, within every :data:`NEIGHBOURS` transfers that follow each other without a gap, all intervals from a
start to an end with what lies between as a whole; within every :data:`NEAR`, all intervals between two starts or ends;
and where more than the former follow each other, all longer intervals without what was under way before and after.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.values import dataclass

NEIGHBOURS: Final = 64
NEAR: Final = (4, 8)
"""Transfers that entered before one, and from it on."""
AT_A_TIME: Final = 1 << 19
"""Values of a block of intervals."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crowds:
    """Transfers on a link, in order of ``enter``, cut where none is under way.

    Parameters
    ----------
    enter, end : float arrays of shape (transfers,)
        Between which instants each has its bytes on the link, ns.
    alone : float array of shape (transfers,)
        For how long it has them there at least: alone, ns.
    first, size : int64 arrays of shape (crowds,)
    """

    enter: FloatArray
    end: FloatArray
    alone: FloatArray
    first: Int64Array
    size: Int64Array

    @property
    def of(self) -> Int64Array:
        """Crowd of each transfer."""
        return np.repeat(np.arange(len(self.size)), self.size)

    def lacks(self, need: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the interval of each crowd in which most time lacks, and how much, ns: of shape (crowds,).

        Parameters
        ----------
        need : float array of shape (transfers,)
            For how long each needs the whole link, ns.
        """
        found = np.stack((np.zeros(len(self.size)), np.zeros(len(self.size)), np.full(len(self.size), -np.inf)))
        of = self.of

        def take(rows: Int64Array, among: tuple[FloatArray, FloatArray, FloatArray]) -> None:
            lack = among[2]
            order = np.argsort(lack, kind="stable")
            order = order[
                lack[order] > found[2, of[rows[order]]]
            ]  # of several the last one stays: of the greatest lack
            found[:, of[rows[order]]] = np.stack(among)[:, order]

        width = 2
        while width <= NEIGHBOURS:
            fits = (self.size > width // 2) & ((self.size <= width) | (width == NEIGHBOURS))
            rows = np.flatnonzero(fits[of])
            for some in range(0, len(rows), AT_A_TIME // width):
                part = rows[some : some + AT_A_TIME // width]
                take(part, self._among(part, (self.first + self.size)[of[part]], width, need))
            width *= 2
        for least, most, near in ((2, 2, (1, 2)), (3, 4, (3, 4)), (5, len(of), NEAR)):
            rows = np.flatnonzero(
                ((self.size >= least) & (self.size <= most))[of] & (found[2, of] <= 0.0)
            )  # others fit no way at all
            many = AT_A_TIME // (4 * sum(near) ** 2)
            for part in (rows[some : some + many] for some in range(0, len(rows), many)):
                for at in (self.enter, self.end):
                    take(part, self._near(part, of, need, at[part], near))
        for crowd in np.flatnonzero(self.size > NEIGHBOURS).tolist():
            throughout = self._throughout(slice(self.first[crowd], self.first[crowd] + self.size[crowd]), need)
            if throughout[2] > found[2, crowd]:
                found[:, crowd] = throughout
        return found[0], found[1], found[2]

    def _among(
        self, rows: Int64Array, behind: Int64Array, width: int, need: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Look from the start of each row to the ends of the next ones: start, and the end to which most lacks."""
        at = rows[:, None] + np.arange(width)
        inside = at < behind[:, None]
        at = np.where(inside, at, rows[:, None])
        begin = self.enter[rows]
        ends = self.end[at]
        order = np.argsort(ends, axis=1)
        ends = np.take_along_axis(ends, order, axis=1)
        taken = np.cumsum(np.take_along_axis(np.where(inside, need[at], 0.0), order, axis=1), axis=1)
        lack = taken - (ends - begin[:, None])
        best = lack.argmax(axis=1)[:, None]
        return begin, np.take_along_axis(ends, best, axis=1)[:, 0], np.take_along_axis(lack, best, axis=1)[:, 0]

    def _near(
        self, rows: Int64Array, of: Int64Array, need: FloatArray, begin: FloatArray, near: tuple[int, int]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Look from an instant for each row to starts and ends near it, at all that was carried until then at least."""
        at = rows[:, None] + np.arange(-near[0], near[1])
        inside = (at >= 0) & (at < len(of))
        at = np.where(inside, at, rows[:, None])
        inside &= of[at] == of[rows][:, None]
        enter, end, alone = self.enter[at], self.end[at], self.alone[at]
        taken = np.where(inside, need[at], 0.0)
        before = np.maximum(begin[:, None] - enter, 0.0)
        until = np.concatenate((enter, end), axis=1)
        after = np.maximum(end[:, None, :] - until[:, :, None], 0.0)  # rows, instants, transfers
        outside = before[:, None, :] + after + (after > 0.0)  # instants are whole nanoseconds
        surely = np.maximum(1.0 - outside / np.maximum(alone - 1.0, 1e-3)[:, None, :], 0.0)
        lack = np.einsum("rit,rt->ri", surely, taken) - (until - begin[:, None])
        lack = np.where(until > begin[:, None], lack, -np.inf)
        best = lack.argmax(axis=1)[:, None]
        return begin, np.take_along_axis(until, best, axis=1)[:, 0], np.take_along_axis(lack, best, axis=1)[:, 0]

    def _throughout(self, mine: slice, need: FloatArray) -> tuple[float, float, float]:
        """Look from every start of a crowd to every later end, without what began before and ends after that."""
        enter, end, need = self.enter[mine], self.end[mine], need[mine]
        order = np.argsort(end)
        before = np.cumsum(need) - need - enter
        least = np.minimum.accumulate(before)
        begun = np.searchsorted(enter, end[order], side="left")
        lack = np.where(begun > 0, np.cumsum(need[order]) - end[order] - least[begun - 1], -np.inf)
        best = int(lack.argmax())
        since = int(before[: max(begun[best], 1)].argmin())
        return float(enter[since]), float(end[order[best]]), float(lack[best])


def crowds_of(enter: FloatArray, end: FloatArray, alone: FloatArray) -> Crowds:
    """Cut transfers, in order of ``enter``, where none is under way; one that begins when the last ends is apart."""
    opens = np.ones(len(enter), bool)
    opens[1:] = enter[1:] >= np.maximum.accumulate(end)[:-1]
    first = np.flatnonzero(opens)
    return Crowds(enter=enter, end=end, alone=alone, first=first, size=np.diff(np.append(first, len(enter))))
