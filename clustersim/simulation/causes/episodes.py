"""What episodes of decodes spent in steps: differences of sums over the steps of their slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.simulation.causes.events import NONE, Events
from clustersim.simulation.causes.labels import PROMPTS
from clustersim.simulation.causes.sums import Sums, groups_of, without
from clustersim.timeline.columns import is_one
from clustersim.timeline.passes import parts as blocks_of
from clustersim.timeline.step_parts import StepParts
from clustersim.timeline.tables import Table


class Episodes:
    """Takes the episodes of some requests after those of others, and adds up what all of them spent.

    Parameters
    ----------
    steps : Table
        Of a timeline.
    """

    def __init__(self, steps: Table) -> None:
        self._order = in_slots(steps)
        self._position = np.empty(len(steps["slot"]), np.int32)
        self._position[self._order] = np.arange(len(self._order))
        self._lasted = _up_to((steps["end_ns"] - steps["start_ns"])[self._order])
        self._taken: list[tuple[Any, ...]] = []

    def take(self, events: Events) -> Int64Array:
        """Take the episodes among events, and return how long each one's steps took."""
        which = np.flatnonzero(events.chunk == NONE)
        first, last = self._position[events.first_row[which]], self._position[events.last_row[which]] + 1
        self._taken.append((first, last, events.request[which].astype(np.int32), events.answered[which]))
        found: Int64Array = self._lasted[last] - self._lasted[first]
        return found

    def add_to(self, sums: Sums, parts: StepParts, prompts: Int64Array) -> None:
        """Add what the episodes that were taken spent, by part of the steps; these parts are used up."""
        del self._position, self._lasted
        if not self._taken:
            return
        first, last, request, answered = (np.concatenate(column) for column in zip(*self._taken, strict=True))
        self._taken.clear()
        of_prompts = np.empty(len(self._order), np.int64)
        for some in blocks_of(len(self._order), 4):
            rows = self._order[some]
            parts.ns[rows], of_prompts[some] = without(parts.labels, parts.ns[rows], prompts[rows])
        groups = groups_of(request.astype(np.int64), answered)
        for at, label in enumerate((*parts.labels, PROMPTS)):
            up_to = _up_to(of_prompts if at == len(parts.labels) else parts.ns[self._order, at])
            ns = up_to[last] - up_to[first]
            if ns.any():
                sums.add(label, ns, groups)


def in_slots(steps: Table) -> Int64Array:
    """Return the rows of steps with decodes in order of (replica, slot, step)."""
    rows = np.flatnonzero(steps["slot"] >= 0)
    keys = [steps[name][rows] for name in ("step", "slot", "replica")]
    in_order = not keys[1].any() and is_one(steps["replica"]) and (keys[0][1:] > keys[0][:-1]).all()
    return rows if in_order else rows[np.lexsort(keys)]


def _up_to(values: Int64Array) -> Int64Array:
    """Return the sums of the values before each position, and of all."""
    found = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=found[1:])
    return found
