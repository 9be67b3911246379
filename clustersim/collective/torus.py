"""The bucket algorithm on a torus or mesh: rings along one axis after the other, all axes at the same time.

The payload is cut into one part per axis. Part k is reduce-scattered along axis k, what remains along axis
k + 1, and so on; an all-gather walks the axes back. So every link of every axis is busy all the time.
Source: Jain & Sabharwal, Optimal bucket algorithms for large MPI collectives on torus interconnects, ICS
2010; Google's TPU all-reduce does the same (Kumar et al., Scale MLPerf-0.6 models on TPU-v3 Pods, 2019,
"2-D all-reduce").
"""

from __future__ import annotations

import math

from clustersim.collective.group import Group, group_of
from clustersim.collective.ring import own_part, ring
from clustersim.collective.traffic import Send, Step, Traffic


def bucket(group: Group, shape: tuple[int, ...], laps: int) -> Traffic:
    """Return the traffic of all-gather or reduce-scatter (``laps`` 1) or all-reduce (2) on a box of devices.

    Parameters
    ----------
    group : Group
        Its ranked order walks the box, first axis fastest.
    shape : tuple of int
        Lengths of the axes.
    """
    rings = [[ring(line, laps) for line in _lines(group, shape, axis)] for axis in range(len(shape))]
    sends: list[Send] = []
    for first in range(len(shape)):
        share = 1.0 / len(shape)
        for axis in (*range(first, len(shape)), *range(first)):
            sends += [(a, b, part * share) for line in rings[axis] for a, b, part in line.sends]
            share /= shape[axis]
    steps: list[Step] = [step for lines in rings for step in lines[0].steps]
    return Traffic(sends=sends, steps=steps, own=own_part(group, laps))


def _lines(group: Group, shape: tuple[int, ...], axis: int) -> list[Group]:
    """Return the groups of members that differ only along ``axis``."""
    stride = math.prod(shape[:axis])
    block = stride * shape[axis]
    starts = [i for i in range(len(group.ranked)) if i % block < stride]
    return [group_of(group.topology, group.ranked[i : i + block : stride][: shape[axis]]) for i in starts]
