"""What figures and traces need of spans, whatever made them; and the families into which operators fall.

A family is a colour and a line in the legend: a newcomer sees at a glance what computes, what communicates,
and what waits on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array

FAMILIES: Final = {
    "matrix multiply": "#0072B2",
    "attention": "#D55E00",
    "element-wise, memory": "#56B4E9",
    "all-reduce, gather, scatter": "#009E73",
    "all-to-all": "#E69F00",
    "send, receive": "#CC79A7",
    "hand-over, swap": "#7A3E9D",
    "host": "#595959",
    "other": "#B9A900",
}
"""Family → colour: the palette of Okabe and Ito (2008), which people with any colour blindness tell apart;
its black and yellow are softened to be read on white, and violet is added for K/V that moves. A name is part of a
selector in the page: letters, commas, hyphens and spaces."""

_FAMILY_OF: Final = {
    "gemm": "matrix multiply",
    "grouped_gemm": "matrix multiply",
    "attention_prefill": "attention",
    "attention_decode": "attention",
    "memory": "element-wise, memory",
    "all_reduce": "all-reduce, gather, scatter",
    "all_gather": "all-reduce, gather, scatter",
    "reduce_scatter": "all-reduce, gather, scatter",
    "broadcast": "all-reduce, gather, scatter",
    "gather": "all-reduce, gather, scatter",
    "all_to_all": "all-to-all",
    "send": "send, receive",
    "recv": "send, receive",
    "ring_shift": "send, receive",
    "hand_over": "hand-over, swap",
    "swap": "hand-over, swap",
    "host": "host",
    "schedule": "host",
    "sample": "host",
    "launch": "host",
}


class SpansLike(Protocol):
    """Columns of spans, all of one length, sorted by (start, rank, stream)."""

    @property
    def start_ns(self) -> Int64Array: ...
    @property
    def end_ns(self) -> Int64Array: ...
    @property
    def rank(self) -> npt.NDArray[Any]: ...
    @property
    def stream(self) -> npt.NDArray[Any]: ...
    @property
    def name(self) -> npt.NDArray[Any]: ...
    @property
    def op(self) -> npt.NDArray[Any]: ...
    @property
    def layer(self) -> npt.NDArray[Any]: ...
    @property
    def step(self) -> npt.NDArray[Any]: ...
    @property
    def replica(self) -> npt.NDArray[Any]: ...
    @property
    def stage(self) -> npt.NDArray[Any]: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def ops(self) -> Sequence[str]: ...


class SpanPieces(Protocol):
    """Spans of a window in pieces that follow each other in time: no span starts before one of an earlier piece."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def ops(self) -> Sequence[str]: ...
    @property
    def window(self) -> tuple[int, int]:
        """Where the window begins and ends, ns."""

    @property
    def transfers(self) -> SpansLike:
        """All sends and receives of the window."""

    def __iter__(self) -> Iterator[SpansLike]: ...


def family_of(op: str) -> str:
    """Return the family of an operator kind such as ``gemm``; a kind that is not known is ``other``."""
    return _FAMILY_OF.get(op, "other")


def lanes(
    start_ns: Int64Array, end_ns: Int64Array, row: npt.NDArray[Any], before: dict[int, list[int]] | None = None
) -> npt.NDArray[np.int32]:
    """Place spans that overlap on one row on lanes of it, so that no two on a lane overlap.

    Parameters
    ----------
    start_ns, end_ns : int64 arrays
        The spans; abutting ones do not overlap.
    row : int array
        The row of each span.
    before : dict of int to list of int, optional
        Row → end of the last span of each lane among spans that start earlier; brought up to date.

    Returns
    -------
    int32 array
        Lane 0 everywhere, unless spans of a row overlap: each then takes the lowest lane that is free.
    """
    lane = np.zeros(len(start_ns), np.int32)
    order = np.lexsort((end_ns, start_ns, row))
    rows, starts, ends = row[order], start_ns[order], end_ns[order]
    again = rows[1:] == rows[:-1]
    crowded = set(np.unique(rows[1:][again & (starts[1:] < ends[:-1])]).tolist())
    known = {} if before is None else before
    distinct, first = np.unique(rows, return_index=True)
    bounds = [*first.tolist(), len(rows)]
    for number, one in enumerate(distinct.tolist()):
        begin, end = bounds[number], bounds[number + 1]
        taken = known.setdefault(one, [])
        if one not in crowded and max(taken, default=starts[begin]) <= starts[begin]:
            taken[:] = [int(ends[end - 1])]
            continue
        for index in order[begin:end].tolist():
            place = next((at for at, until in enumerate(taken) if until <= start_ns[index]), len(taken))
            taken[place : place + 1] = [int(end_ns[index])]
            lane[index] = place
    return lane
