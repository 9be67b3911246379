"""From the hashes that a trace has per block of a prompt to keys of the blocks of a K/V pool.

::

    hashes of 512 tokens   |        a        |        b        |  c (partial)
    blocks of 192 tokens   |  0  |  1  |  2  |  3  |  4  | …         block 2 lies in a and b

A block of the pool has the key of the last hash that it lies in, together with all hashes before it, and its number
among the blocks that end there. So whatever the sizes, two prompts share a block where all hashes agree up to the
last one that it lies in: where sizes do not divide each other, a little less than they have in common, never more.
"""

from __future__ import annotations

import numpy as np

from clustersim.serving.prefix_cache import Keys
from clustersim.workload.requests import Requests


class PrefixKeys:
    """Keys of the full blocks of prompts, the same for equal starts.

    Parameters
    ----------
    requests : Requests
    block_tokens : int
        Of the pool.
    """

    def __init__(self, requests: Requests, block_tokens: int) -> None:
        self.rows = requests.prefix_hashes or ()
        self.prompt_tokens = requests.prompt_tokens
        self.hash_tokens = requests.hash_block_tokens or 1
        self.block_tokens = block_tokens
        self._chains: dict[tuple[int, int], int] = {}

    def of(self, request: int) -> Keys:
        """Return the keys of the full blocks of a prompt; none where it has no hashes."""
        if not self.rows:
            return []
        chain = np.array(self._chain(self.rows[request].tolist()), np.int64)
        size, hashed = self.block_tokens, self.hash_tokens
        block = np.arange(min(int(self.prompt_tokens[request]), len(chain) * hashed) // size, dtype=np.int64)
        last = ((block + 1) * size - 1) // hashed
        found: Keys = (chain[last] * (hashed // size + 2) + block - last * hashed // size).tolist()
        return found

    def _chain(self, hashes: list[int]) -> list[int]:
        """Return a number for each hash that stands for it and all before it."""
        chains, before, found = self._chains, -1, []
        for value in hashes:
            before = chains.setdefault((before, value), len(chains))
            found.append(before)
        return found
