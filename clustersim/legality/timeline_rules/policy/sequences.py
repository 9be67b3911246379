"""Sequences of one replica and its K/V blocks, as the walk over its decisions knows them (``choices``, ``decided``)."""

from __future__ import annotations

from collections import OrderedDict

from clustersim.legality.timeline_rules.policy.kept_prefixes import Pool
from clustersim.legality.timeline_rules.policy.queues import Rank
from clustersim.legality.timeline_rules.views.contents import Contents
from clustersim.values import dataclass


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request on a replica.

    Parameters
    ----------
    request, prompt, output : int
        Tokens of the prompt, and how many it gets here.
    rank : tuple of int
        What queues are sorted by.
    goes_on : bool
        Whether it keeps its blocks when it has its tokens, until it is handed over.
    tokens, computed, blocks, owner : int
        Tokens that it has got, K/V entries, blocks, and whose these are.
    flies : bool
        Whether a step carries it.
    away : bool
        Whether it has blocks while its entries are on their way from pool to pool.
    """

    request: int
    prompt: int
    output: int
    rank: Rank
    goes_on: bool = False
    tokens: int = 0
    computed: int = 0
    blocks: int = 0
    owner: int = 0
    flies: bool = False
    away: bool = False

    @property
    def left(self) -> int:
        """Tokens that are known and not computed."""
        return self.prompt + self.tokens - self.computed

    @property
    def decodes(self) -> bool:
        """Whether its next step is a decode."""
        return self.tokens > 0 and self.prompt + self.tokens == self.computed + 1


class Blocks:
    """The blocks of a replica, of one or several owners, with what they hold where prefixes are cached.

    Parameters
    ----------
    each, owners, size : int
        Blocks of an owner, owners, and tokens of a block.
    contents : Contents or None
        What full blocks of prompts hold, where prefixes are cached.
    """

    def __init__(self, each: int, owners: int, size: int, contents: Contents | None) -> None:
        self.each, self.total, self.size, self.contents = each, each * owners, size, contents
        self.free = [each] * owners
        pools = [] if contents is None else [Pool(free=each, queue=OrderedDict({-1: each})) for _ in self.free]
        self.caches: list[Pool] = pools

    @property
    def used(self) -> int:
        """How many are in use."""
        return self.total - sum(self.free)

    def needed(self, tokens: int) -> int:
        """Return how many blocks so many entries take."""
        return -(-tokens // self.size)

    def at_end(self, one: Sequence) -> int:
        """Return how many a sequence has when it ends."""
        return self.needed(one.prompt + max(one.output - 1, 0))

    def free_beside(self, one: Sequence, cached: int) -> int:
        """Return how many are free for a sequence that waits: with those that it takes over, less what it holds up."""
        if not cached or self.contents is None:
            return self.free[one.owner]
        held = self.contents.row(one.request, 0, cached).tolist()
        return self.free[one.owner] - self.caches[one.owner].unheld(held) + cached

    def take(self, one: Sequence, tokens: int) -> bool:
        """Give a sequence the blocks of so many entries; return whether there are as many."""
        more = -(-tokens // self.size) - one.blocks
        if more > self.free[one.owner]:
            return False
        if more > 0:
            one.blocks += more
            self.free[one.owner] -= more
            if self.caches:
                self.caches[one.owner].take(more)
        return True

    def release(self, one: Sequence) -> None:
        """Take back all blocks of a sequence."""
        if self.caches:
            self.caches[one.owner].release(one.request, one.blocks)
            self.free[one.owner] = self.caches[one.owner].free
        else:
            self.free[one.owner] += one.blocks
        one.blocks = 0

    def cached(self, one: Sequence, owner: int) -> int:
        """Return how many blocks a sequence that waits could take over; its last token is computed anyway."""
        if self.contents is None or one.computed or one.blocks:
            return 0
        most = min(int(self.contents.blocks[one.request]), (one.prompt + one.tokens - 1) // self.size)
        return self.caches[owner].cached(self.contents.row(one.request, 0, most).tolist())

    def chosen_owner(self, one: Sequence) -> int:
        """Return whose blocks are to be taken: most of it cached, most free, the first."""
        found = range(len(self.free))
        return max(found, key=lambda owner: (self.cached(one, owner), self.free[owner], -owner))

    def take_up(self, one: Sequence, cached: int, count: int) -> bool:
        """Let a sequence hold blocks that are cached, and give it those of so many more tokens; return if they fit."""
        if cached and self.contents is not None:
            pool, held = self.caches[one.owner], self.contents.row(one.request, 0, cached).tolist()
            if pool.unheld(held) + self.needed(count) > pool.free:
                return False
            pool.hold(one.request, held)
            self.free[one.owner], one.blocks, one.computed = pool.free, cached, cached * self.size
        return self.take(one, one.computed + count)

    def fill(self, one: Sequence) -> None:
        """Cache the full blocks of its prompt that a sequence has computed."""
        if self.contents is None:
            return
        pool = self.caches[one.owner]
        full = min(int(self.contents.blocks[one.request]), one.computed // self.size)
        pool.fill(one.request, self.contents.row(one.request, len(pool.held.get(one.request, ())), full).tolist())
        self.free[one.owner] = pool.free
