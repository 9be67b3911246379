"""A K/V pool whose full prompt blocks outlive their sequences, so that prompts with an equal start compute it once.

The rules are those of vLLM v1 (vllm/v1/core/block_pool.py and kv_cache_manager.py, 2025):

- a block is known by a key for its tokens and all tokens before them; only full blocks of a prompt have one;
- a request that is admitted takes over the longest cached start of its prompt, but computes at least one token;
- blocks that nobody holds are free. They are taken in the order in which they became free, the last block of a
  sequence before its first, so that the least recently used go first; what a taken block held is forgotten.

Two things differ. A block can be taken over when the step that computed it has ended; vLLM lends it out from the
moment at which that step is scheduled. And a sequence that computed what is cached meanwhile gives its copy back and
holds the cached block, as SGLang's radix cache does (sglang/srt/mem_cache/radix_cache.py, 2025); vLLM keeps both.
Generated tokens are not shared: traces do not say what they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import filterfalse, takewhile
from typing import Final

from clustersim.serving.blocks import BlockPool
from clustersim.serving.sequence import Sequence

_FIRST_RUN: Final = -1
"""Runs of free blocks without content are numbered −1, −2, … in the queue of free blocks; keys are not negative."""


class PrefixCache:
    """What the blocks of one owner's pool hold.

    Parameters
    ----------
    blocks : int

    Attributes
    ----------
    holders : dict of int to int
        Key of a cached block → how many sequences hold it.
    free : OrderedDict of int to int
        Free blocks in the order in which they are taken: key → 1, or a run of blocks without content → how many.
    """

    __slots__ = ("_runs", "free", "holders")

    def __init__(self, blocks: int) -> None:
        self.holders: dict[int, int] = {}
        self.free: OrderedDict[int, int] = OrderedDict({_FIRST_RUN: blocks})
        self._runs = _FIRST_RUN

    def leading(self, keys: Keys, most: int) -> int:
        """Return how many of the first ``most`` keys are cached before one is not."""
        return sum(1 for _ in takewhile(self.holders.__contains__, keys[:most]))

    def hold(self, keys: Keys) -> int:
        """Let one more sequence hold cached blocks; return how many of them were free."""
        holders, free, freed = self.holders, self.free, 0
        for key in keys:
            before = holders[key]
            holders[key] = before + 1
            if not before:
                del free[key]
                freed += 1
        return freed

    def drop(self, keys: Iterable[int]) -> int:
        """Let one sequence less hold cached blocks; return how many of them are free now."""
        holders, free, freed = self.holders, self.free, 0
        for key in keys:
            left = holders[key] = holders[key] - 1
            if not left:
                free[key] = 1
                freed += 1
        return freed

    def take(self, blocks: int) -> None:
        """Take free blocks; what they held is forgotten."""
        free, holders = self.free, self.holders
        while blocks:
            first, count = free.popitem(last=False)
            if first >= 0:
                del holders[first]
            elif count > blocks:
                free[first] = count - blocks
                free.move_to_end(first, last=False)
                return
            blocks -= count

    def give(self, blocks: int) -> None:
        """Put blocks without content behind the other free ones."""
        last = next(reversed(self.free), 0)
        if last < 0:
            self.free[last] += blocks
        else:
            self._runs -= 1
            self.free[self._runs] = blocks


Keys = list[int]
"""Of the full blocks of a prompt, from the first on (``serving.prefix_keys``)."""


class CachingPool(BlockPool):
    """A pool that keeps what free blocks hold; the parameters are those of :class:`BlockPool`.

    A sequence holds its first ``shared`` blocks under their keys, together with others or alone, and the rest of its
    ``blocks`` alone.
    """

    def __init__(self, *, blocks: int, block_tokens: int, owners: int = 1) -> None:
        super().__init__(blocks=blocks, block_tokens=block_tokens, owners=owners)
        self.caches = [PrefixCache(blocks) for _ in range(owners)]

    def take(self, owner: int, blocks: int) -> None:
        """Lend blocks; those that have been free for longest lose what they hold."""
        super().take(owner, blocks)
        self.caches[owner].take(blocks)

    def give(self, owner: int, blocks: int) -> None:
        """Take blocks back whose content is of no use to others."""
        super().give(owner, blocks)
        if blocks:
            self.caches[owner].give(blocks)

    def _most(self, sequence: Sequence) -> int:
        """Return how many blocks a sequence could take over at most: full ones, and not its last known token."""
        if sequence.computed or sequence.blocks:
            return 0
        return min(len(sequence.keys), (sequence.known - 1) // self.block_tokens)

    def cached_blocks(self, owner: int, sequence: Sequence) -> int:
        """Return how many blocks a sequence that waits would take over from a pool."""
        return self.caches[owner].leading(sequence.keys, self._most(sequence))

    def longest(self, sequence: Sequence) -> int:
        """Return the owner who has most to take over for a sequence, and among these the emptiest pool."""
        owners = range(len(self.free))
        return max(owners, key=lambda owner: (self.cached_blocks(owner, sequence), self.free[owner], -owner))

    def fits(self, sequence: Sequence, cached: int, more: int) -> bool:
        """Return whether ``cached`` blocks can be taken over and ``more`` taken."""
        holders = self.caches[sequence.owner].holders
        unheld = list(map(holders.__getitem__, sequence.keys[:cached])).count(0)
        return unheld + more <= self.free[sequence.owner]

    def take_over(self, sequence: Sequence, blocks: int) -> None:
        """Let an admitted sequence hold cached blocks; what they hold counts as computed."""
        self.free[sequence.owner] -= self.caches[sequence.owner].hold(sequence.keys[:blocks])
        sequence.shared = sequence.blocks = blocks
        sequence.computed = blocks * self.block_tokens

    def store(self, sequence: Sequence) -> None:
        """Cache the full prompt blocks that a step has filled; a copy of what is cached already is given back."""
        full = min(len(sequence.keys), sequence.computed // self.block_tokens)
        owner, cache, filled = sequence.owner, self.caches[sequence.owner], sequence.keys[sequence.shared : full]
        for key in [*filter(cache.holders.__contains__, filled)]:
            self.free[owner] -= cache.hold([key])
            self.give(owner, 1)
        cache.holders.update(dict.fromkeys(filterfalse(cache.holders.__contains__, filled), 1))
        sequence.shared = max(sequence.shared, full)

    def release(self, sequence: Sequence) -> None:
        """Take back all that a sequence holds, its last block first; cached blocks keep what they hold."""
        owner, cache = sequence.owner, self.caches[sequence.owner]
        self.give(owner, sequence.blocks - sequence.shared)
        self.free[owner] += cache.drop(reversed(sequence.keys[: sequence.shared]))
        sequence.blocks = sequence.shared = 0
