"""Unfolded spans: what ran where and when, one row per operator and rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STREAMS as STREAMS_OF_STEPS
from clustersim.values import dataclass

__all__ = ["SPAN_COLUMNS", "STREAMS", "Spans", "halves_named", "sorted_spans"]

STREAMS = (*STREAMS_OF_STEPS, "kv_out", "kv_in")
"""Those of steps, and those that move K/V entries beside them."""

SPAN_COLUMNS = ("start_ns", "end_ns", "rank", "stream", "name", "op", "layer", "step", "replica", "stage", "half")


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """Columns of spans, sorted by (start, rank, stream).

    Parameters
    ----------
    start_ns, end_ns : int64 arrays
        Half-open interval.
    rank : int32 array
        Global rank.
    stream : int8 array
        Index into ``STREAMS``.
    name, op : int32 arrays
        Indices into ``names`` and ``ops``.
    layer : int32 array
        −1 outside the layers.
    step : int64 array
        Number of the step within its replica; −1 for a move of K/V entries, which belongs to none.
    replica, stage : int32 arrays
    half : int8 array
        1 or 2 in a step that runs as two halves that overlap, 0 for what is of the whole step.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    rank: Int64Array
    stream: Int64Array
    name: Int64Array
    op: Int64Array
    layer: Int64Array
    step: Int64Array
    replica: Int64Array
    stage: Int64Array
    half: Int64Array
    names: tuple[str, ...]
    ops: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


_TYPES = {"rank": "int32", "stream": "int8", "name": "int32", "op": "int32", "layer": "int32", "replica": "int32",
          "stage": "int32", "half": "int8"}  # fmt: skip


def sorted_spans(parts: list[Int64Array], names: tuple[str, ...], ops: tuple[str, ...]) -> Spans:
    """Join blocks of shape (columns, rows) into :class:`Spans`."""
    table = np.concatenate(parts, axis=1) if parts else np.empty((len(SPAN_COLUMNS), 0), np.int64)
    order = np.lexsort((table[3], table[2], table[0]))
    columns = {
        column: values[order].astype(_TYPES.get(column, "int64"))
        for column, values in zip(SPAN_COLUMNS, table, strict=True)
    }
    return Spans(**columns, names=names, ops=ops)


def halves_named(spans: Spans) -> Spans:
    """Return spans whose names say of which half of their step they are (``expert_up, half 2``), to be looked at."""
    if not spans.half.any():
        return spans
    both, name = np.unique(spans.name.astype(np.int64) * 3 + spans.half, return_inverse=True)
    words = [(spans.names[code // 3], code % 3) for code in both.tolist()]
    names = tuple(f"{word}, half {half}" if half else word for word, half in words)
    return replace(spans, name=name.reshape(-1).astype(np.int32), names=names)
