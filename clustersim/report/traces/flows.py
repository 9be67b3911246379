"""Which send hands over to which receive: the arrows of a trace."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STREAMS
from clustersim.report.traces.spans import SpansLike

_SEND, _RECEIVE = STREAMS.index("send"), STREAMS.index("recv")
ENDS: Final = (_SEND, _RECEIVE)


class Flows:
    """The arrows of a window, looked up for a piece of its spans.

    Parameters
    ----------
    transfers : SpansLike
        All sends and receives of the window.
    """

    def __init__(self, transfers: SpansLike) -> None:
        sends, receives = send_pairs(transfers)
        numbers = range(1, len(sends) + 1)
        rank, start = transfers.rank.tolist(), transfers.start_ns.tolist()
        both = zip(numbers, sends.tolist(), receives.tolist(), strict=True)
        self._of: tuple[dict[tuple[int, int], tuple[int, int]], ...] = ({}, {})
        for number, send, receive in both:
            self._of[0][rank[send], start[send]] = number, start[send]
            self._of[1][rank[receive], start[receive]] = number, max(start[send], start[receive])

    def of(self, spans: SpansLike, side: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the ends of arrows among the spans of a piece.

        Parameters
        ----------
        spans : SpansLike
        side : int
            0: the sends, 1: the receives.

        Returns
        -------
        (spans, arrows, instants) : int64 arrays
            Indices of spans, numbers of arrows from 1 on, and when both of their spans are under way, ns; of a send
            when it starts.
        """
        index = np.flatnonzero(spans.stream == ENDS[side])
        keys = zip(spans.rank[index].tolist(), spans.start_ns[index].tolist(), strict=True)
        found = np.array([self._of[side].get(key, (0, 0)) for key in keys], np.int64).reshape(-1, 2)
        known = found[:, 0] > 0
        return index[known], found[known, 0], found[known, 1]


def send_pairs(spans: SpansLike) -> tuple[Int64Array, Int64Array]:
    """Pair the sends of a pipeline stage with the receives of the next one.

    Every rank of a stage sends to the rank with the same coordinates in the next stage, so within a step of a
    replica senders and receivers pair up in the order of their ranks. Where their numbers differ, because the
    window cuts a transfer in two, none of that step and stage is paired.

    Returns
    -------
    (sends, receives) : int64 arrays
        Indices of spans, pair by pair; no span is in two pairs.
    """
    sends = np.flatnonzero(spans.stream == _SEND)
    receives = np.flatnonzero(spans.stream == _RECEIVE)
    sends = _by_transfer(spans, sends)
    receives = _by_transfer(spans, receives)
    keys = np.concatenate([_transfers(spans, sends, 0), _transfers(spans, receives, -1)])
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    of_sends, of_receives = group[: len(sends)], group[len(sends) :]
    groups = int(group.max(initial=-1)) + 1
    balanced = np.bincount(of_sends, minlength=groups) == np.bincount(of_receives, minlength=groups)
    return sends[balanced[of_sends]], receives[balanced[of_receives]]


def _by_transfer(spans: SpansLike, index: Int64Array) -> Int64Array:
    order = np.lexsort(
        (
            spans.start_ns[index],
            spans.rank[index],
            spans.stage[index],
            spans.step[index],
            spans.replica[index],
        )
    )
    return index[order]


def _transfers(spans: SpansLike, index: Int64Array, offset: int) -> Int64Array:
    """Return (replica, step, sending stage) of each span, shape (n, 3)."""
    columns = (spans.replica[index], spans.step[index], spans.stage[index] + offset)
    return np.stack([np.asarray(column, np.int64) for column in columns], axis=1)
