"""Passes of ranks that do different work, in which collectives took longer than they cost: when all of their nodes ran.

Nobody asks while they are under way, so that many are worked out at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.timeline.record import MAX_INT32
from clustersim.timeline.stretch import Irregular

AT_ONCE: Final = 256
"""Passes that are walked together: a megabyte or two."""


class StretchedPass(NamedTuple):
    """A pass, what each of its classes costs, and the instances that took so many nanoseconds longer."""

    template: PassTemplate
    by_class: Int64Array
    lost: list[tuple[int, int]]


def with_times(found: Sequence[Irregular | StretchedPass]) -> list[Irregular]:
    """Return start and end of every node in place of passes that are late."""
    told = [None if isinstance(one, StretchedPass) else one for one in found]
    by_template: dict[int, list[tuple[int, StretchedPass]]] = {}
    for at, one in enumerate(found):
        if isinstance(one, StretchedPass):
            by_template.setdefault(id(one.template), []).append((at, one))
    for late in by_template.values():
        for first in range(0, len(late), AT_ONCE):
            some = late[first : first + AT_ONCE]
            for (at, _), times in zip(some, _times([one for _, one in some]), strict=True):
                told[at] = times
    return [one for one in told if one is not None]


def _times(some: Sequence[StretchedPass]) -> list[Irregular]:
    """Return the times of passes of one template."""
    template = some[0].template
    durations = np.stack([one.by_class[template.instance_class] for one in some], axis=1)
    for column, one in enumerate(some):
        for instance, ns in one.lost:
            durations[instance, column] += ns
    ends = template.ends(durations)
    starts, of_node = (ends - durations).T, template.node_instance
    sizes = [np.int32 if last <= MAX_INT32 else np.int64 for last in ends.max(axis=0).tolist()]
    each = zip(starts, ends.T, sizes, strict=True)
    return [(begin[of_node].astype(size), end[of_node].astype(size)) for begin, end, size in each]
