"""How long steps took for the sake of prompts: what they lasted longer than steps that only decode.

A step that only decodes so many sequences took so long on average, in the same pool and run; between numbers of
sequences that were seen that is interpolated. A step with prompts took the rest of its time for these, each of them by
its tokens. Where no step only decodes, all of it.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.tables import Tables


def time_of_prompts(tables: Tables) -> Int64Array:
    """Return what each row of ``steps`` took for the sake of its prompts, in ns; 0 for those without any."""
    steps = tables.steps
    found = np.zeros(len(steps["step"]), np.int64)
    pools = tables.layout.of_replica(steps["replica"])
    for pool in range(len(tables.layout.pools)):
        mine = pools == pool
        mixed = np.flatnonzero(mine & (steps["prefill_tokens"] > 0))
        plain = np.flatnonzero(mine & (steps["prefill_tokens"] == 0) & (steps["decode_tokens"] > 0))
        lasted = steps["end_ns"][mixed] - steps["start_ns"][mixed]
        found[mixed] = np.maximum(lasted - _decoding(tables, plain, steps["decode_tokens"][mixed]), 0)
    return found


def _decoding(tables: Tables, rows: Int64Array, sequences: Int64Array) -> Int64Array:
    """Return how long steps that decode so many sequences take, by rows of steps that do nothing else."""
    steps = tables.steps
    if not len(rows):
        return np.zeros(len(sequences), np.int64)
    total = np.bincount(steps["decode_tokens"][rows], steps["end_ns"][rows] - steps["start_ns"][rows])
    count = np.bincount(steps["decode_tokens"][rows], steps["count"][rows])
    seen = np.flatnonzero(count)
    means = total[seen].astype(np.int64) // count[seen].astype(np.int64)
    wanted = np.clip(sequences, seen[0], seen[-1]).astype(np.int64)
    above = np.searchsorted(seen, wanted)
    below = np.maximum(above - 1, 0)
    apart = np.maximum(seen[above] - seen[below], 1)
    found: Int64Array = means[above] - (means[above] - means[below]) * (seen[above] - wanted) // apart
    return found
