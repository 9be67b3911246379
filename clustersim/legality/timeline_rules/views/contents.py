"""What the full K/V blocks of prompts hold, as declared by the hashes of a trace: a number per block.

Two blocks have one number exactly when the prompts' hashes agree from the start up to the last hash that the block
lies in. A block that lies beyond the hashes of its prompt, or is not full, has no number and is nobody else's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.passes import within


class Contents:
    """Numbers of blocks, request by request.

    Parameters
    ----------
    rows : sequence of int64 arrays
        Per request, hashes of the blocks of its prompt from the start on.
    prompts : int64 array of shape (requests,)
        Prompt tokens.
    hash_tokens, block_tokens : int
        Tokens of a hash; of a K/V block.

    Attributes
    ----------
    blocks : int64 array of shape (requests,)
        How many blocks of each prompt have a number.
    numbers : int
        How many different blocks there are.
    """

    def __init__(self, rows: tuple[Int64Array, ...], prompts: Int64Array, hash_tokens: int, block_tokens: int) -> None:
        sizes = np.fromiter(map(len, rows), np.int64)
        firsts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        flat = np.concatenate([np.empty(0, np.int64), *rows])
        starts = _equal_starts(flat, firsts[:-1], sizes)
        self.blocks = np.minimum(prompts, sizes * hash_tokens) // block_tokens
        self._first = np.cumsum(self.blocks) - self.blocks
        # A hash has the blocks that end in it: as many in each prompt, up to where the prompt ends.
        depth = within(sizes)
        low, high = depth * hash_tokens // block_tokens, (depth + 1) * hash_tokens // block_tokens
        many = np.maximum(np.minimum(high, np.repeat(self.blocks, sizes)) - low, 0)
        most = np.zeros(int(starts.max(initial=-1)) + 1, np.int64)
        np.maximum.at(most, starts, many)
        self._numbers = np.repeat((np.cumsum(most) - most)[starts], many) + within(many)
        self.numbers = int(most.sum())

    def of(self, request: Int64Array, block: Int64Array) -> Int64Array:
        """Return the numbers of blocks that have one."""
        found: Int64Array = self._numbers[self._first[request] + block]
        return found

    def row(self, request: int, first: int, past: int) -> Int64Array:
        """Return the numbers of the blocks of a prompt from ``first`` on, up to ``past``."""
        start = int(self._first[request])
        return self._numbers[start + first : start + max(first, past)]

    def runs(self, request: Int64Array, first: Int64Array, past: Int64Array) -> BlockRuns:
        """Return blocks [first, past) of prompts, as one those of which each of these has all or none."""
        begin, end = self._first[request] + first, self._first[request] + past
        opens = self._opens(begin, end)
        low, high = np.searchsorted(opens, begin), np.searchsorted(opens, end)
        many = np.maximum(high - low, 0)
        at = np.repeat(low, many) + within(many)
        return BlockRuns(np.repeat(np.arange(len(request)), many), self._numbers[opens[at]], np.diff(opens)[at])

    def _opens(self, *cuts: Int64Array) -> Int64Array:
        """Return where runs of blocks begin, in all prompts one after the other, and where the last one ends.

        A run ends with a block that is followed by different ones, or by none, or that something ends with: since
        equal blocks have equal starts, it does so in every prompt that has it.
        """
        cut = np.zeros(len(self._numbers) + 1, bool)
        cut[self._first[self.blocks > 0]] = cut[-1] = True
        for places in cuts:
            cut[places] = True
        before, after = self._numbers[:-1], self._numbers[1:]
        following = np.full(self.numbers, -1)
        following[before] = after
        ends = np.zeros(self.numbers, bool)
        ends[self._numbers[cut[1:]]] = True
        ends[before[following[before] != after]] = True
        cut[1:] = ends[self._numbers]
        return np.flatnonzero(cut)


class BlockRuns(NamedTuple):
    """Runs of blocks: whose each is, the number of its first block, and how many these are."""

    of: Int64Array
    number: Int64Array
    many: Int64Array


def _numbered(first: Int64Array, second: Int64Array) -> Int64Array:
    """Return a number for each pair, equal for equal ones."""
    order = np.lexsort((second, first))
    changes = (np.diff(first[order]) != 0) | (np.diff(second[order]) != 0)
    found = np.empty(len(first), np.int64)
    found[order] = np.concatenate((np.zeros(1, np.int64), np.cumsum(changes)))[: len(first)]
    return found


def _equal_starts(flat: Int64Array, firsts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return, for each hash, a number that is equal where all hashes up to it are."""
    found = np.empty(len(flat), np.int64)
    mine = np.flatnonzero(sizes > 0)
    before, base, depth = np.zeros(len(mine), np.int64), 0, 0
    while len(mine):
        now = _numbered(before, flat[firsts[mine] + depth])
        found[firsts[mine] + depth] = base + now
        base += int(now.max()) + 1
        depth += 1
        longer = sizes[mine] > depth
        mine, before = mine[longer], now[longer]
    return found
