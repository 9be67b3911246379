"""How often sequences lost their K/V blocks to others, and what became of their entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from clustersim.legality.history import PREEMPTED, SWAPPED_OUT
from clustersim.timeline.tables import HOST, Tables


def preempted(timeline: Tables) -> dict[str, Any]:
    """Return the preemptions of a run by kind, and the bytes that all ranks copied to their hosts and back.

    ``recomputed`` had their entries computed anew, ``swapped`` had them kept in host memory.
    """
    kinds, moves = timeline.facts["kind"], timeline.moves
    hosted = (moves["from_rank"] == HOST) | (moves["to_rank"] == HOST)
    return {
        "recomputed": int(np.count_nonzero(kinds == PREEMPTED)),
        "swapped": int(np.count_nonzero(kinds == SWAPPED_OUT)),
        "swapped_bytes": int(moves["bytes"][hosted].sum()),
    }
