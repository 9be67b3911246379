"""From the hashes that a trace has per block of a prompt to runs of blocks of a K/V pool, which have keys.

::

    hashes of 512 tokens   |        a        |        b        |  c (partial)
    blocks of 192 tokens   |  0  |  1  |  2  |  3  |  4  | …         block 2 lies in a and b

Hashes that the same prompts have, one behind the other, are one run; so are the blocks of which each lies in one of
them last. So whatever the sizes, two prompts share a block where all hashes agree up to the last one that it lies in:
where sizes do not divide each other, a little less than they have in common, never more. What one prompt alone has is
one run, however long it is.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.workload.requests import Requests

Keys = list[tuple[int, int]]
"""Runs of the full blocks of a prompt, from the first on: key, and how many blocks of the run it has."""


class PrefixKeys:
    """Runs of the full blocks of prompts, the same for equal starts.

    Parameters
    ----------
    requests : Requests
    block_tokens : int
        Of the pool.
    """

    def __init__(self, requests: Requests, block_tokens: int) -> None:
        rows = requests.prefix_hashes or ()
        hashed = requests.hash_block_tokens or 1
        sizes = np.array([len(row) for row in rows], np.int64)
        row, first, key = _runs(np.concatenate([*rows, np.empty(0, np.int64)]), sizes)
        full = np.minimum(requests.prompt_tokens[: len(sizes)], sizes * hashed) // block_tokens
        begin = np.minimum(first * hashed // block_tokens, full[row])
        end = full[row]
        same = row[1:] == row[:-1]
        end[:-1][same] = begin[1:][same]
        some = end > begin
        self.keys, self.blocks = key[some], (end - begin)[some]
        self.bounds = np.searchsorted(row[some], np.arange(len(requests) + 1))

    def of(self, request: int) -> Keys:
        """Return the runs of the full blocks of a prompt; none where it has no hashes."""
        mine = slice(self.bounds[request], self.bounds[request + 1])
        return [*zip(self.keys[mine].tolist(), self.blocks[mine].tolist(), strict=True)]


def _runs(flat: Int64Array, sizes: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return, in order, the row, the first hash and the key of each run of hashes that the same rows have.

    Level by level: rows that agree so far and in the next hash go on together. Who is alone is so to the end.
    """
    offsets = np.cumsum(sizes) - sizes
    value = np.unique(flat, return_inverse=True)[1]
    width, made, depth = len(flat) + 1, 0, 0
    rows = np.flatnonzero(sizes)
    before = together = np.zeros(len(rows), np.int64)
    found = [(rows[:0],) * 3]
    while len(rows):
        _, which, counts = np.unique(
            before * width + value[offsets[rows] + depth], return_inverse=True, return_counts=True
        )
        begins = counts[which] != together
        found.append((rows[begins], np.full(int(begins.sum()), depth), made + which[begins]))
        depth += 1
        goes_on = (counts[which] > 1) & (sizes[rows] > depth)
        rows, before, together = rows[goes_on], made + which[goes_on] + 1, counts[which[goes_on]]
        made += len(counts)
    row, first, key = map(np.concatenate, zip(*found, strict=True))
    order = np.lexsort((first, row))
    return row[order], first[order], key[order]
