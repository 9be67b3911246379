"""How long steps took for the sake of prompts: what they lasted longer than steps that only decode.

A step that only decodes so many sequences took so long on average, in the same pool and run; between numbers of
sequences that were seen that is interpolated. A step with prompts took the rest of its time for these, each of them by
its tokens. Where no step only decodes, all of it.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.timeline.parts import of_ranges
from clustersim.timeline.tables import Tables


class Plain:
    """How long steps that only decode take, by pool and number of sequences.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    """

    def __init__(self, tables: Tables) -> None:
        pools = len(tables.layout.pools)
        sums: list[FloatArray] = [np.zeros((2, 0))] * pools
        for part in of_ranges(tables):
            steps, of = part.steps, part.layout.of_replica(part.steps["replica"])
            plain = (steps["prefill_tokens"] == 0) & (steps["decode_tokens"] > 0)
            for pool in range(pools):
                rows = np.flatnonzero(plain & (of == pool))
                lasted, many = steps["end_ns"][rows] - steps["start_ns"][rows], steps["decode_tokens"][rows]
                size = max(sums[pool].shape[1], int(many.max(initial=-1)) + 1)
                more = np.zeros((2, size))
                more[:, : sums[pool].shape[1]] = sums[pool]  # whole numbers, which floats have exactly
                for side, each in enumerate((lasted, steps["count"][rows])):
                    more[side] += np.bincount(many, each, size)
                sums[pool] = more
        self._seen = [np.flatnonzero(count) for _, count in sums]
        self._means = [
            total[seen].astype(np.int64) // count[seen].astype(np.int64)
            for (total, count), seen in zip(sums, self._seen, strict=True)
        ]

    def time_of_prompts(self, tables: Tables) -> Int64Array:
        """Return what each row of ``steps`` took for the sake of its prompts, in ns; 0 for those without any.

        Parameters
        ----------
        tables : Tables
            These, or a range of their replicas.
        """
        steps = tables.steps
        found = np.zeros(len(steps["step"]), np.int64)
        pools = tables.layout.of_replica(steps["replica"])
        for pool in range(len(tables.layout.pools)):
            mixed = np.flatnonzero((pools == pool) & (steps["prefill_tokens"] > 0))
            lasted = steps["end_ns"][mixed] - steps["start_ns"][mixed]
            found[mixed] = np.maximum(lasted - self._decoding(pool, steps["decode_tokens"][mixed]), 0)
        return found

    def _decoding(self, pool: int, sequences: Int64Array) -> Int64Array:
        """Return how long steps of a pool that decode so many sequences take, by those that do nothing else."""
        seen, means = self._seen[pool], self._means[pool]
        if not len(seen):
            return np.zeros(len(sequences), np.int64)
        wanted = np.clip(sequences, seen[0], seen[-1]).astype(np.int64)
        above = np.searchsorted(seen, wanted)
        below = np.maximum(above - 1, 0)
        apart = np.maximum(seen[above] - seen[below], 1)
        found: Int64Array = means[above] - (means[above] - means[below]) * (seen[above] - wanted) // apart
        return found
