"""The paged K/V pool of one replica: blocks of tokens, counted per SP coordinate that keeps sequences."""

from __future__ import annotations

from clustersim.errors import BrokenLawError


class BlockPool:
    """Counts free and used blocks; it never lends what it does not have.

    Parameters
    ----------
    blocks : int
        Blocks of each owner's pool.
    block_tokens : int
        Tokens per block.
    owners : int
        SP coordinates that keep sequences.
    """

    def __init__(self, *, blocks: int, block_tokens: int, owners: int = 1) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.free = [blocks] * owners

    @property
    def total(self) -> int:
        """Blocks of all owners together."""
        return self.blocks * len(self.free)

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.total - sum(self.free)

    def needed(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_tokens)

    def emptiest(self) -> int:
        """Return the owner with most free blocks, the first among equals."""
        return self.free.index(max(self.free))

    def take(self, owner: int, blocks: int) -> None:
        """Lend blocks."""
        if blocks > self.free[owner]:
            raise BrokenLawError(f"KV-6: {blocks} blocks taken from a pool with {self.free[owner]} free")
        self.free[owner] -= blocks

    def give(self, owner: int, blocks: int) -> None:
        """Take blocks back."""
        self.free[owner] += blocks
        if self.free[owner] > self.blocks:
            raise BrokenLawError(f"KV-7: {blocks} blocks given back twice")
