"""Passes without the operators of most of them, where a page can't hold all: steps stay where they are.

Outside some windows passes have the durations of others that take about as long, so that shares of time stay what they
are, about. When runs start and end stays, to 16 microseconds; ``told`` says whose operators are, and passes of other
runs are drawn as long as each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.report.folded.passes import Durations, FoldedPasses
from clustersim.report.folded.programs import varying_classes
from clustersim.report.folded.windows import overlapping

_LEVELS: Final = 8
"""Lengths per octave that are told apart where one pass stands for others."""
COARSE_NS: Final = 16384
"""To which instants of runs that are not told are rounded: a page that can't hold all is millions of times as long."""
_BITS: Final = 4
"""Bits after the first that are left of durations that are not told."""


def coarse(passes: FoldedPasses, templates: tuple[PassTemplate, ...], windows: Int64Array) -> FoldedPasses:
    """Return the passes of a timeline, with the operators of those alone that overlap some windows.

    Parameters
    ----------
    passes : FoldedPasses
    templates : tuple of PassTemplate
        Of the timeline.
    windows : int64 array of shape (windows, 2)
        Start and end, ns.
    """
    told = overlapping(passes.bounds[0], passes.bounds[1], windows)
    bounds = np.where(told, passes.bounds, passes.bounds // COARSE_NS * COARSE_NS)
    row, durations = passes.runs["row"].copy(), []
    for place, number in enumerate(passes.programs):
        mine = np.flatnonzero(passes.runs["program"] == place)
        steps = passes.runs["steps"][mine]
        one = _Program(templates[number], passes.durations[place], steps, row[mine], told[mine])
        row[mine] = one.shared_rows()
        durations.append(one.rounded())
    used, durations = _renumbered(passes.runs["program"], row, durations)
    changed = {
        "row": used,
        "gap": _gaps(passes.runs, bounds),
        "irregular": passes.runs["irregular"] * told,
        "told": told.astype(np.int64),
        "took": np.where(told, 0, (bounds[1] - bounds[0]) // COARSE_NS),
    }
    stretched = _stretched(passes.stretched, told[passes.runs["irregular"] > 0])
    return replace(passes, runs=passes.runs | changed, bounds=bounds, durations=durations, stretched=stretched)


class _Program:
    """The runs of one program: steps, rows of durations, and whether their operators are told, of shape (runs,)."""

    def __init__(
        self,
        template: PassTemplate,
        durations: Durations,
        steps: Int64Array,
        row: Int64Array,
        told: npt.NDArray[np.bool_],
    ) -> None:
        self.durations, self.steps, self.row, self.told = durations, steps, row, told
        self.of = np.repeat(np.arange(len(steps)), steps)
        self.base = durations.fixed @ np.delete(template.counts, varying_classes(template))

    def shared_rows(self) -> Int64Array:
        """Return rows of durations: of passes that are not told, of the first that is about as long."""
        level = np.floor(np.log2(np.maximum(self.base, 1)) * _LEVELS).astype(np.int64)
        _, first, of = np.unique(level, return_index=True, return_inverse=True)
        return np.where(self.told, self.row, first[of][self.row])

    def rounded(self) -> Durations:
        """Return durations in which those that vary, of passes that are not told, are about the mean over their run."""
        kept = self.told[self.of]
        mean = [np.bincount(self.of, column, len(self.steps)) // self.steps for column in self.durations.varying.T]
        means = np.stack(mean, axis=1).astype(np.int64) if mean else np.empty((len(self.steps), 0), np.int64)
        varying = np.where(kept[:, None], self.durations.varying, _rounded(means)[self.of])
        lengths = self.durations.lengths
        return replace(self.durations, varying=varying, lengths=np.where(kept, lengths, 0) if len(lengths) else lengths)


def _gaps(runs: dict[str, npt.NDArray[Any]], bounds: Int64Array) -> Int64Array:
    """Return the time since the run before on the same stage ended, ns; of the first one since the run began."""
    gap: Int64Array = bounds[0].copy()
    same = (np.diff(runs["replica"]) == 0) & (np.diff(runs["stage"]) == 0)
    gap[1:] -= np.where(same, bounds[1, :-1], 0)
    return gap


def _rounded(values: Int64Array) -> Int64Array:
    """Return numbers of which only the first few bits are left."""
    scale = np.exp2(np.maximum(np.floor(np.log2(np.maximum(values, 1))) - _BITS, 0)).astype(np.int64)
    found: Int64Array = values // scale * scale
    return found


def _renumbered(
    program: npt.NDArray[Any], row: Int64Array, durations: list[Durations]
) -> tuple[Int64Array, list[Durations]]:
    """Leave out the rows of durations that no run refers to any more."""
    found, kept = row.copy(), []
    for place, one in enumerate(durations):
        mine = program == place
        used, found[mine] = np.unique(row[mine], return_inverse=True)
        kept.append(replace(one, fixed=one.fixed[used]))
    return found, kept


def _stretched(stretched: dict[str, Any], told: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return what contention made of some of the irregular passes."""
    found: dict[str, Any] = {"longer": stretched["longer"][told]}
    for name in ("shift", "grown"):
        counts = stretched[f"{name}_count"]
        found[f"{name}_count"] = counts[told]
        found |= {f"{name}_{what}": stretched[f"{name}_{what}"][np.repeat(told, counts)] for what in ("node", "ns")}
    return found
