"""A K/V pool whose full prompt blocks outlive their sequences, so that prompts with an equal start compute it once.

``core.prefix_cache`` says the rules.

Blocks are kept in runs, as in a radix tree: whoever holds a block holds all before it, so of each run the first blocks
are cached, of these the first are held, and the others became free from the last one on::

    a run   |  held  |  free, later  |  free, earlier  |  not cached
            0       held                             cached
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from clustersim.serving.prefix_keys import Keys
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.sequence import Sequence

NOTHING: Final = -1
"""The key of blocks without content."""


class PrefixRun:
    """What is cached of one run of blocks.

    Attributes
    ----------
    cached, held : int
        How many of its first blocks are cached, and held by anybody.
    holders : dict of int to int
        So many of its first blocks → how many sequences hold just these.
    free : list of int
        Numbers of its places in the queue of free blocks, the earliest first: its last blocks.
    """

    __slots__ = ("cached", "free", "held", "holders")

    def __init__(self) -> None:
        self.cached = 0
        self.held = 0
        self.holders: dict[int, int] = {}
        self.free: list[int] = []

    def change(self, before: int, after: int) -> None:
        """Let a sequence hold so many of its first blocks ``after``, that held so many ``before``."""
        holders = self.holders
        if before:
            holders[before] -= 1
            if not holders[before]:
                del holders[before]
        if after:
            holders[after] = holders.get(after, 0) + 1


class PrefixCache:
    """What the blocks of one owner's pool hold.

    Parameters
    ----------
    blocks : int

    Attributes
    ----------
    runs : dict of int to PrefixRun
        By key: those of which something is cached.
    free : OrderedDict of int to (int, int)
        Free blocks in the order in which they are taken: number of the place → key of a run and how many.
    num_free : int
        How many blocks these are.
    """

    __slots__ = ("_places", "free", "num_free", "runs")

    def __init__(self, blocks: int) -> None:
        self.runs: dict[int, PrefixRun] = {}
        self.free: OrderedDict[int, tuple[int, int]] = OrderedDict({0: (NOTHING, blocks)})
        self.num_free = blocks
        self._places = 0

    def leading(self, keys: Keys, most: int) -> int:
        """Return how many of the first ``most`` blocks of a prompt are cached before one is not."""
        found = 0
        for key, blocks in keys:
            run = self.runs.get(key)
            if run is None:
                break
            found += min(run.cached, blocks)
            if run.cached < blocks or found >= most:
                break
        return min(found, most)

    def unheld(self, keys: Keys, blocks: int) -> int:
        """Return how many of the first ``blocks`` cached blocks of a prompt nobody holds."""
        return sum([max(0, last - self.runs[key].held) for key, _, last in parts(keys, 0, blocks)])

    def hold(self, key: int, before: int, after: int) -> int:
        """Let a sequence hold more of the first cached blocks of a run; return how many of them were free."""
        run = self.runs[key]
        run.change(before, after)
        found = left = max(0, after - run.held)
        run.held += found
        self.num_free -= found
        while left:
            place = run.free[-1]
            blocks = self.free[place][1]
            if blocks > left:
                self.free[place] = key, blocks - left
                break
            del self.free[place]
            run.free.pop()
            left -= blocks
        return found

    def drop(self, key: int, blocks: int) -> int:
        """Let a sequence hold none of a run, of which it held so many; return how many are free now."""
        run = self.runs[key]
        run.change(blocks, 0)
        held = max(run.holders, default=0)
        found, run.held = run.held - held, held
        if found:
            run.free.append(self._put(key, found))
        return found

    def fill(self, key: int, before: int, after: int) -> tuple[int, int]:
        """Let a sequence hold more blocks of a run, which it has filled.

        Returns
        -------
        (int, int)
            How many are copies of what is cached already, and how many of these were free.
        """
        run = self.runs.get(key)
        if run is None:
            run = self.runs[key] = PrefixRun()
        there = max(before, min(after, run.cached))
        freed = self.hold(key, before, there)
        run.change(there, after)
        run.cached = max(run.cached, after)
        run.held = max(run.held, after)
        return there - before, freed

    def take(self, blocks: int) -> None:
        """Take free blocks; what they held is forgotten."""
        free = self.free
        self.num_free -= blocks
        while blocks:
            place, (key, there) = next(iter(free.items()))
            taken = min(there, blocks)
            blocks -= taken
            if taken < there:
                free[place] = key, there - taken
            else:
                del free[place]
            if key != NOTHING:
                self._forget(key, taken, whole=taken == there)

    def _forget(self, key: int, blocks: int, *, whole: bool) -> None:
        """Forget the last cached blocks of a run, which are those that have been free for longest."""
        run = self.runs[key]
        run.cached -= blocks
        if whole:
            run.free.pop(0)
        if not run.cached:
            del self.runs[key]

    def give(self, blocks: int) -> None:
        """Put blocks without content behind the other free ones."""
        last = next(reversed(self.free), None)
        if last is not None and self.free[last][0] == NOTHING:
            self.free[last] = NOTHING, self.free[last][1] + blocks
            self.num_free += blocks
        else:
            self._put(NOTHING, blocks)

    def _put(self, key: int, blocks: int) -> int:
        """Put blocks behind the other free ones; return the number of their place."""
        self._places += 1
        self.free[self._places] = key, blocks
        self.num_free += blocks
        return self._places


def parts(keys: Keys, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield each run that has blocks ``first`` to ``last`` of a prompt, and which blocks of it these are."""
    at = 0
    for key, blocks in keys:
        if at >= last:
            return
        if at + blocks > first:
            yield key, max(0, first - at), min(blocks, last - at)
        at += blocks


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
        """Return how many blocks a sequence could take over at most: not its last known token."""
        if sequence.computed or sequence.blocks:
            return 0
        return (sequence.known - 1) // self.block_tokens

    def cached_blocks(self, owner: int, sequence: Sequence) -> int:
        """Return how many blocks a sequence that waits would take over from a pool."""
        return self.caches[owner].leading(sequence.keys, self._most(sequence))

    def longest(self, sequence: Sequence) -> int:
        """Return the owner who has most to take over for a sequence, and among these the emptiest pool."""
        owners = range(len(self.free))
        return max(owners, key=lambda owner: (self.cached_blocks(owner, sequence), self.free[owner], -owner))

    def fits(self, sequence: Sequence, cached: int, more: int) -> bool:
        """Return whether ``cached`` blocks can be taken over and ``more`` taken."""
        unheld = self.caches[sequence.owner].unheld(sequence.keys, cached)
        return unheld + more <= self.free[sequence.owner]

    def take_over(self, sequence: Sequence, blocks: int) -> None:
        """Let an admitted sequence hold cached blocks; what they hold counts as computed."""
        cache = self.caches[sequence.owner]
        for key, _, last in parts(sequence.keys, 0, blocks):
            self.free[sequence.owner] -= cache.hold(key, 0, last)
        sequence.shared = sequence.blocks = blocks
        sequence.computed = blocks * self.block_tokens

    def store(self, sequence: Sequence, computed: int) -> None:
        """Cache the full prompt blocks that a step has filled; a copy of what is cached already is given back."""
        owner, cache = sequence.owner, self.caches[sequence.owner]
        for key, first, last in parts(sequence.keys, sequence.shared, computed // self.block_tokens):
            copies, freed = cache.fill(key, first, last)
            self.free[owner] -= freed
            self.give(owner, copies)
            sequence.shared += last - first

    def release(self, sequence: Sequence) -> None:
        """Take back all that a sequence holds, its last block first; cached blocks keep what they hold."""
        owner, cache = sequence.owner, self.caches[sequence.owner]
        self.give(owner, sequence.blocks - sequence.shared)
        for key, _, last in reversed([*parts(sequence.keys, 0, sequence.shared)]):
            self.free[owner] += cache.drop(key, last)
        sequence.blocks = sequence.shared = 0
