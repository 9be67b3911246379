"""Block hashes of prompts: one row of numbers per request, stored as views of one flat array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import numpy as np

from clustersim.clock import Int64Array

HashRows = tuple[Int64Array, ...]


def hash_rows(flat: Int64Array, sizes: Sequence[int]) -> HashRows:
    """Cut ``flat`` into read-only rows of the given sizes."""
    flat.flags.writeable = False
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(flat[start:end] for start, end in pairwise(ends))


def repeat_hash_rows(rows: HashRows, num_rows: int) -> HashRows:
    """Repeat rows until there are ``num_rows``, each repetition with numbers of its own.

    The numbers are renumbered 0, 1, … in ascending order first; rows that are numbered so keep their numbers.
    """
    return tuple(islice(_repetitions(rows), num_rows))


def _repetitions(rows: HashRows) -> Iterator[Int64Array]:
    labels, dense = np.unique(np.concatenate(rows), return_inverse=True)
    sizes = [row.size for row in rows]
    offset = 0
    while True:
        yield from hash_rows(dense.astype(np.int64) + offset, sizes)
        offset += labels.size


def equal_hash_rows(mine: HashRows | None, other: HashRows | None) -> bool:
    """Say whether both hold the same numbers (or both none)."""
    if mine is None or other is None:
        return mine is other
    return len(mine) == len(other) and all(map(np.array_equal, mine, other))
