"""Payloads over time: what passes carried, in pieces of the run that carry the same, and in equal parts of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.report.folded.carried import PoolLoad
from clustersim.report.folded.passes import FoldedPasses
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.timeline import Timeline

Segments = tuple[Any, FloatArray, FloatArray, FloatArray]
"""Way, start and end in ns, and bytes, spread evenly; those of several collectives share their starts and ends."""


def payload_parts(segments: Sequence[Segments], ways: int, parts: int, end_ns: int) -> FloatArray:
    """Return the bytes of payload that each way took in equal parts of a run, of shape (ways, parts).

    Parameters
    ----------
    segments : sequence of Segments
    ways, parts, end_ns : int
    """
    found, edges = np.zeros((ways, parts)), np.linspace(0, max(1, end_ns), parts + 1)
    taken: dict[int, list[Segments]] = defaultdict(list)
    for some in segments:
        for way in np.unique(some[0]).astype(np.int64).tolist():
            if 0 <= way < ways:
                taken[way].append(some)
    for way, those in taken.items():
        lasting = [(some[0] == way) & (some[2] > some[1]) for some in those]
        start, end, sizes = (
            np.concatenate([some[at][mine] for some, mine in zip(those, lasting, strict=True)]) for at in (1, 2, 3)
        )
        found[way] = np.diff(_until(edges, start, end, sizes / (end - start)))
    return found


def _until(edges: FloatArray, start: FloatArray, end: FloatArray, rate: FloatArray) -> FloatArray:
    """Return what segments, which may overlap, carried until each of some instants: a sum of ramps."""
    found = np.zeros(len(edges))
    for at, sign in ((start, 1.0), (end, -1.0)):
        order = np.argsort(at, kind="stable")
        at = at[order]
        before = np.searchsorted(at, edges, side="right")
        each = rate[order]
        del order
        at *= each
        for one in (each, at):
            np.cumsum(one, out=one)
        of_rate, of_start = (np.where(before > 0, one[before - 1], 0.0) if len(one) else 0.0 for one in (each, at))
        found += sign * (of_rate * edges - of_start)
    return found


def pass_segments(load: PoolLoad, timeline: Timeline, passes: FoldedPasses, first_replica: int) -> Iterator[Segments]:
    """Yield what the collectives of passes carried, one for passes of one payload."""
    runs, runs_of = passes.runs, RowsOf(passes.runs["replica"])
    for replica, (rows, payloads) in load.rows.items():
        its = runs_of.of(replica + first_replica)
        for stage in range(load.mesh.plan.pp):
            mine = its[runs["stage"][its] == stage]
            if not len(mine):
                continue
            of, row, steps, start, end = _cuts(runs["step"][mine], runs["steps"][mine], passes.bounds[:, mine], rows)
            program = runs["program"][mine][of]
            for place in np.unique(program).tolist():
                chosen = np.flatnonzero(program == place)
                template, times = timeline.templates[passes.programs[place]], (start[chosen], end[chosen])
                for one in load.exchanges(replica, template):
                    if not one.breaks:
                        continue
                    payload = one.share * payloads[row[chosen], one.amount]
                    sizes = payload * one.count * steps[chosen]
                    yield one.ways(payload).astype(np.int32), *times, sizes


def _cuts(
    step: Int64Array, steps: Int64Array, bounds: Int64Array, rows: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, FloatArray, FloatArray]:
    """Cut runs of passes where other rows of payloads begin; return run, row, steps, start and end of each piece."""
    cuts = np.sort(np.concatenate([step, rows]), kind="stable")  # two that ascend: they are merged
    cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])]
    of = np.searchsorted(step, cuts, side="right") - 1
    inside = (of >= 0) & (cuts < (step + steps)[of]) & (cuts >= rows[0])
    cuts, of = cuts[inside], of[inside]
    until = np.minimum(np.append(cuts[1:], np.iinfo(np.int64).max), (step + steps)[of])
    row = np.searchsorted(rows, cuts, side="right") - 1
    takes = (bounds[1] - bounds[0])[of] / steps[of]
    return of, row, until - cuts, bounds[0][of] + (cuts - step[of]) * takes, bounds[0][of] + (until - step[of]) * takes
