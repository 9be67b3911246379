"""A window of a timeline whose spans are unfolded in pieces: as many as memory holds at a time, and none left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.timeline.spans import SPAN_COLUMNS, Spans
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass

PIECE_SPANS: Final = 500_000
"""About so many spans are unfolded at a time: some 100 MB."""
HALVES: Final = 3
"""Names that an operator can have: of the whole step, of its first half, of its second."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The spans of some ranks that overlap ``[start_ns, end_ns)``.

    Parameters
    ----------
    timeline : Timeline
    start_ns, end_ns : int
    ranks : sequence of int or None
        Global ranks; None for all.
    piece_spans : int
        About how many spans are unfolded at a time.
    """

    timeline: Timeline
    start_ns: int
    end_ns: int
    ranks: Sequence[int] | None = None
    piece_spans: int = PIECE_SPANS

    @property
    def window(self) -> tuple[int, int]:
        """Where it begins and ends, ns."""
        return self.start_ns, self.end_ns

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What spans are called; those of half a step say of which (``expert_up, half 2``)."""
        words = self.timeline.words[0]
        if not self._has_halves:
            return tuple(words)
        return tuple(f"{word}, half {half}" if half else word for word in words for half in range(HALVES))

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """Kinds of operators."""
        return tuple(self.timeline.words[1])

    @cached_property
    def _has_halves(self) -> bool:
        return any(len(template.node_half) for template in self.timeline.templates)

    @cached_property
    def transfers(self) -> Spans:
        """All sends and receives, without what was computed in between."""
        return self.timeline.unfold(self.start_ns, self.end_ns, self.ranks, passes=False)

    @cached_property
    def _progress(self) -> tuple[FloatArray, FloatArray]:
        """Instants, and about how many spans of runs in the window are before each, as if spread evenly."""
        layout = self.timeline.layout
        first, bound = self.timeline.run_bounds
        some = np.flatnonzero((first < self.end_ns) & (bound > self.start_ns))
        first, bound = first[some], bound[some]
        table = {name: self.timeline.passes[name][some] for name in ("replica", "stage", "template", "steps")}
        spans = np.array([template.num_inner_spans for template in self.timeline.templates], np.float64)
        count = table["steps"] * spans[table["template"]] if len(spans) else np.empty(0)
        if self.ranks is not None:
            base = layout.stage_base(table["replica"], table["stage"])
            many = layout.values("pass_ranks")[layout.of_replica(table["replica"])]
            wanted = np.array(sorted(self.ranks), np.int64)
            count = count * (np.searchsorted(wanted, base + many) - np.searchsorted(wanted, base)) / many
        rate = count / np.maximum(bound - first, 1)
        instants = np.unique(np.concatenate((first, bound, [self.start_ns, self.end_ns])))
        begun, done = (_so_far(instants, at, rate) for at in (first, bound))
        return instants.astype(np.float64), np.maximum.accumulate(begun - done)

    @cached_property
    def num_spans(self) -> int:
        """About how many spans there are: exact but for passes that the window cuts, and for transfers."""
        begin, end = np.interp([self.start_ns, self.end_ns], *self._progress)
        return round(end - begin) + len(self.transfers)

    def __iter__(self) -> Iterator[Spans]:
        """Yield the spans in order of time, each with the piece in which it starts."""
        instants, progress = self._progress
        begin, end = np.interp(self.window, instants, progress)
        targets = np.arange(begin + self.piece_spans, end, self.piece_spans)
        edges = np.unique(np.interp(targets, progress, instants).astype(np.int64))
        edges = edges[(edges > self.start_ns) & (edges < self.end_ns)]
        bounds = [self.start_ns, *edges.tolist(), self.end_ns]
        for number, (since, until) in enumerate(pairwise(bounds)):
            spans = self.timeline.unfold(since, until, self.ranks)
            if number:
                spans = chosen(spans, spans.start_ns >= since)
            if len(spans):
                yield self._named(spans)

    def _named(self, spans: Spans) -> Spans:
        if not self._has_halves:
            return spans
        name = spans.name.astype(np.int64) * HALVES + spans.half
        return replace(spans, name=name.astype(np.int32), names=self.names)


def chosen(spans: Spans, mask: Int64Array) -> Spans:
    """Return the spans that a mask chooses."""
    return replace(spans, **{name: getattr(spans, name)[mask] for name in SPAN_COLUMNS})


def _so_far(instants: Int64Array, at: Int64Array, rate: FloatArray) -> FloatArray:
    """Return Σ rate × (t − at) over what is before t, for each instant t."""
    order = np.argsort(at, kind="stable")
    known = np.searchsorted(at[order], instants, side="left")
    rates = np.concatenate(([0.0], np.cumsum(rate[order])))
    offsets = np.concatenate(([0.0], np.cumsum(rate[order] * at[order])))
    found: FloatArray = instants.astype(np.float64) * rates[known] - offsets[known]
    return found
