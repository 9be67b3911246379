"""Where each request is: a stay begins with one fact about it, and ends with the next one.

::

    arrived ─ waits ─ admitted ─ runs ─ swapped_out ─ in host memory ─ swapped_in ─ runs ─ finished

Facts are put in order once, request by request; which of them begin or end the stays that a rule looks at, it says
itself. So ``before`` tells in which stay a fact finds its request, and ``after`` when, and by what, a stay ends.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.timeline.columns import is_any
from clustersim.timeline.passes import parts
from clustersim.timeline.rows_of import in_order
from clustersim.timeline.tables import Table

NONE = -1


class Residency:
    """Facts by request and time.

    Parameters
    ----------
    facts : Table
    then : int64 array, optional
        The order of those of a request at one instant, before that in which they were recorded.

    Attributes
    ----------
    rows : int64 array
        The rows of all facts, in order.
    """

    def __init__(self, facts: Table, then: Int64Array | None = None) -> None:
        self.facts = facts
        request, time = facts["request"], facts["time_ns"]
        self.rows = in_order(request)
        apart = np.diff(request[self.rows]) > 0
        if then is not None or not (apart | (np.diff(time[self.rows]) >= 0)).all():  # on one replica they are in order
            self.rows = in_order(request, time) if then is None else in_order(request, time, then)

    def among(self, chosen: BoolArray) -> Int64Array:
        """Return the rows of some facts, in order."""
        found: Int64Array = self.rows[chosen[self.rows]]
        return found

    def before(self, chosen: BoolArray) -> Int64Array:
        """Return for each fact the row of the last chosen one of its request before it; −1 where there is none."""
        return self._next(self.rows, chosen)

    def after(self, chosen: BoolArray) -> Int64Array:
        """Return for each fact the row of the next chosen one of its request; −1 where there is none."""
        return self._next(self.rows[::-1], chosen)

    def first_ns(self, count: int, *kinds: int) -> Int64Array:
        """Return when so many requests have their first fact of some kinds; the largest number where they never do."""
        found = np.full(count, np.iinfo(np.int64).max)
        rows = np.flatnonzero(is_any(self.facts["kind"], kinds) & (self.facts["request"] < count))
        np.minimum.at(found, self.facts["request"][rows], self.facts["time_ns"][rows].astype(np.int64))
        return found

    def _next(self, rows: Int64Array, chosen: BoolArray) -> Int64Array:
        request, found, last = self.facts["request"], np.full(len(rows), NONE, np.int64), NONE
        for some in parts(len(rows), 8):
            here = rows[some]
            at = np.append(last, np.where(chosen[here], np.arange(some.start, some.stop), NONE))
            at = np.maximum.accumulate(at)
            last, before = at[-1], rows[at[:-1]]
            own = (at[:-1] >= 0) & (request[before] == request[here])
            found[here[own]] = before[own]
        return found
