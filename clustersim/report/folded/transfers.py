"""Sends between stages and moves of K/V entries, as columns."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.timeline.digest import MOVES, in_order
from clustersim.timeline.timeline import Timeline

_MOVED: Final = ("request", "from_rank", "to_rank", "layer", "tokens", "bytes", "start_ns", "end_ns")


def send_columns(timeline: Timeline) -> dict[str, npt.NDArray[Any]]:
    """Return the sends of a timeline, pool by pool in order of (replica, stage, step).

    Returns
    -------
    dict
        Of the sends of each step over each boundary: ``replica``, ``stage``, ``step``, ``ranks``, and ``start`` and
        ``length`` on the first of its ranks, ns. Other ranks do as the rank before them does, but for odd ones: ``odd``
        is their number among all ranks of all of these, and then by how much start and length differ.
    """
    table, found, before = timeline.transfers, [], 0
    for rows, times in timeline.sends():
        order = in_order(table, ("replica", "stage", "step"), rows)
        times = times[np.searchsorted(rows, order)]
        start, length = times[:, 0], times[:, 1] - times[:, 0]
        change = np.stack(
            [np.diff(start, axis=1, prepend=start[:, :1]), np.diff(length, axis=1, prepend=length[:, :1])]
        )
        odd = np.flatnonzero(change.any(axis=0))
        found.append({
            "replica": table["replica"][order], "stage": table["stage"][order], "step": table["step"][order],
            "ranks": np.full(len(order), start.shape[1]), "start": start[:, 0], "length": length[:, 0],
            "odd": odd + before, "odd_start": change[0].ravel()[odd], "odd_length": change[1].ravel()[odd],
        })  # fmt: skip
        before += start.size
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def move_columns(timeline: Timeline) -> dict[str, npt.NDArray[Any]]:
    """Return the moves of K/V entries, in an order that does not depend on how they were recorded."""
    order = in_order(timeline.moves, MOVES)
    return {name: timeline.moves[name][order] for name in _MOVED}
