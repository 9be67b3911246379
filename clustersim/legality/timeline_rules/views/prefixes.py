"""What sequences have in common: prefixes that one computed and others took over, and who holds them when."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import PREEMPTED, REUSED, Declared, History
from clustersim.legality.timeline_rules.views.contents import Contents
from clustersim.legality.timeline_rules.views.hand_overs import HandOvers
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.sharing import Reused, Sharing, reused_in, sharing_of
from clustersim.legality.timeline_rules.views.undeclared import Neighbours
from clustersim.legality.timeline_rules.views.use import returns


class Prefixes:
    """The prefixes of a history, and what it comes to that they are shared.

    Parameters
    ----------
    history : History
    pieces : Pieces or None
        What each sequence did; None where it was not recorded.
    prompts : int64 array of shape (requests,), or None
        Prompt tokens, where they were recorded.
    hand_overs : HandOvers
    """

    def __init__(
        self, history: History, pieces: Pieces | None, prompts: Int64Array | None, hand_overs: HandOvers
    ) -> None:
        self.history, self.pieces, self.prompts, self.hand_overs = history, pieces, prompts, hand_overs

    @property
    def shares_undeclared(self) -> bool:
        """Whether a history from elsewhere takes prefixes over, and nothing says which blocks are one and the same."""
        undeclared = self.history.declared.prefix_caching is None
        return undeclared and self.reused is not None and len(self.reused.row) > 0

    @cached_property
    def neighbours(self) -> Neighbours | None:
        """Sequences that may share blocks; None where it was declared whether they do, or does not follow."""
        pieces, facts, size = self.pieces, self.history.facts, self.history.declared.block_tokens
        if self.history.declared.prefix_caching is not None or pieces is None or facts is None or size is None:
            return None
        rows, turns, _ = returns(self.history, pieces, size, self.hand_overs)
        return Neighbours(pieces, size, rows, turns, facts["time_ns"][rows].astype(np.int64))

    @cached_property
    def contents(self) -> Contents | None:
        """What full blocks of prompts hold; None where it was not declared."""
        history, declared, prompts = self.history, self.history.declared, self.prompts
        if history.prefixes is None or prompts is None or declared.hash_tokens is None or declared.block_tokens is None:
            return None
        return Contents(history.prefixes, prompts, declared.hash_tokens, declared.block_tokens)

    def may_share(self, declared: Declared) -> bool:
        """Return whether sequences of a pool may hold one and the same block."""
        return declared.prefix_caching is None or (declared.prefix_caching and not self._nobody_shares)

    @cached_property
    def _nobody_shares(self) -> bool:
        """Whether no block of a prompt is one of another's, nor one that the same request has computed before."""
        contents, facts, pools = self.contents, self.history.facts, self.history.pools
        if contents is None or facts is None:
            return False
        again = (facts["kind"] == PREEMPTED).any() or any(pool.down for pool in pools)
        return contents.numbers == 0 or bool(contents.numbers == contents.blocks.sum() and not again)

    def share_on(self, replica: int) -> bool:
        """Return whether several sequences of a replica may hold one and the same block."""
        contents, caches = self.contents, self.caches
        if not (self.history.declared.prefix_caching if caches is None else caches[replica]):
            return False
        return contents is None or contents.numbers not in (0, int(contents.blocks.sum()))

    @cached_property
    def reused(self) -> Reused | None:
        """What sequences took over from the prefix cache; None where it was not recorded."""
        facts, pieces = self.history.facts, self.pieces
        if facts is None or pieces is None or "value" not in facts:
            return None
        rows = np.flatnonzero(facts["kind"] == REUSED)
        if self.prompts is not None:  # others belong to no request, which RUN-4 says
            rows = rows[facts["request"][rows] < len(self.prompts)]
        return reused_in(facts, rows, pieces, failures=bool(self.history.declared.down))

    @cached_property
    def caches(self) -> BoolArray | None:
        """Whether each replica keeps prefixes; None where all do alike."""
        pools, facts = self.history.pools, self.history.facts
        if len(pools) == 1 or facts is None:
            return None
        replicas = max(pools[-1].first_replica + pools[-1].dp, int(facts["replica"].max(initial=0)) + 1)
        at = np.searchsorted([pool.first_replica for pool in pools], np.arange(replicas), side="right") - 1
        return np.array([pool.prefix_caching for pool in pools])[at]

    @cached_property
    def sharing(self) -> Sharing | None:
        """Who holds which full prompt block when; None where it does not follow."""
        pieces, facts, reused, contents = self.pieces, self.history.facts, self.reused, self.contents
        size = self.history.declared.block_tokens
        if pieces is None or facts is None or reused is None or contents is None or size is None:
            return None
        rows, turns, _ = returns(self.history, pieces, size, self.hand_overs)
        there = turns >= 0
        if self.caches is not None:  # what was handed over is given back where it was computed
            there &= self.caches[facts["replica"][rows]]
        rows, turns = rows[there], turns[there]
        released = turns, facts["time_ns"][rows].astype(np.int64), rows.astype(np.int64)
        return sharing_of(pieces, reused, released, contents, size, self.history.declared.down, self.caches)
