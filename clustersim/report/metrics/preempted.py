"""How often sequences lost their K/V blocks, to others or to a fault, and what became of their entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.legality.history import PREEMPTED, SWAPPED_OUT
from clustersim.simulation.residency import moved
from clustersim.timeline.tables import HOST, Tables


def preempted(timeline: Tables) -> dict[str, Any]:
    """Return the preemptions of a run by kind, and the bytes that all ranks copied to their hosts and back.

    For want of blocks, ``recomputed`` gave up their entries and ``swapped`` had them kept in host memory. ``moved``
    lost them to a fault, or since their client gave up while they were handed over.
    """
    kinds, moves = timeline.facts["kind"], timeline.moves
    hosted = (moves["from_rank"] == HOST) | (moves["to_rank"] == HOST)
    away = int(np.count_nonzero(moved(timeline.facts)))
    return {
        "recomputed": int(np.count_nonzero(kinds == PREEMPTED)) - away,
        "swapped": int(np.count_nonzero(kinds == SWAPPED_OUT)),
        "moved": away,
        "swapped_bytes": int(moves["bytes"][hosted].sum()),
    }
