"""Which sequences of a replica were on their way to host memory, there, or on their way back at which instants."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import CANCELLED, PREEMPTED
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.swaps import Swap
from clustersim.timeline.columns import is_any

NEVER: Final = np.iinfo(np.int64).max


def away(reading: Reading, swaps: list[Swap], instants: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Return at which instants a copy out was under way, or may have been, and how many were copied back.

    Parameters
    ----------
    reading : Reading
        With pieces and moves.
    swaps : list of Swap
        All of one replica.
    instants : int64 array
        At which steps begin there.
    """
    moves = reading.history.moves
    out, back = np.zeros(len(instants), bool), np.zeros(len(instants), np.int64)
    assert moves is not None
    for swap in swaps:
        begins = min((int(moves["start_ns"][row]) for row in swap.out), default=0)
        out |= (instants >= min(begins, _left(reading, swap))) & (instants <= swap.out_at)
        if swap.in_at >= 0:
            back += (instants >= swap.in_at) & (instants < _came(reading, swap))
    if reading.declared.horizon_ns is not None:  # some that had been decided may not have ended
        out |= instants > max((swap.out_at for swap in swaps), default=0)
    return out, back


def elsewhere(reading: Reading, swaps: list[Swap], instants: Int64Array) -> BoolArray:
    """Return at which instants some sequence was at its host, or on its way there or back; see :func:`away`."""
    found, back = away(reading, swaps, instants)
    for swap in swaps:
        found |= (instants >= swap.out_at) & (instants <= until(reading, swap))
    return found | (back > 0)


def until(reading: Reading, swap: Swap) -> int:
    """Return when a sequence was given blocks to come back, or left its host for another reason."""
    if swap.in_at >= 0:
        return swap.in_at
    facts = reading.history.facts
    assert facts is not None
    gone = (facts["request"] == swap.request) & is_any(facts["kind"], (CANCELLED, PREEMPTED))
    left = facts["time_ns"][gone & (facts["time_ns"] >= swap.out_at)]
    return int(left.min(initial=NEVER))


def _came(reading: Reading, swap: Swap) -> int:
    """Return when the copies of a sequence back have ended."""
    moves = reading.history.moves
    assert moves is not None
    return max((int(moves["end_ns"][row]) for row in swap.back), default=NEVER)


def _left(reading: Reading, swap: Swap) -> int:
    """Return when the last step ended that had carried a sequence before it was copied out."""
    pieces = reading.pieces
    assert pieces is not None
    low, high = np.searchsorted(pieces.request, (swap.request, swap.request + 1))
    end = pieces.end[low:high]
    return int(end[end <= swap.out_at].max(initial=0))
