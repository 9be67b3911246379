"""What each replica of a pool holds: K/V blocks, places and stages, and which requests can never run there."""

from __future__ import annotations

from clustersim.clock import Int64Array
from clustersim.serving.config import ServingConfig
from clustersim.timeline.tokens import BoolArray
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCapacity:
    """What each replica of a pool holds.

    Parameters
    ----------
    config : ServingConfig
    blocks : int
        K/V blocks of each owner.
    owners : int
        SP coordinates that keep sequences.
    stages : int
        Micro-batches that may be in flight (pp).
    decode_overlap : bool
        Whether decode steps of disjoint micro-batches may be in flight together.
    """

    config: ServingConfig
    blocks: int
    owners: int
    stages: int
    decode_overlap: bool

    @property
    def block_tokens(self) -> int:
        """Tokens per K/V block."""
        return self.config.kv_block_tokens

    @property
    def total(self) -> int:
        """Blocks of all owners together."""
        return self.blocks * self.owners

    def needed(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_tokens)

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Return why a request can never run here, or None."""
        if output_tokens == 0:
            return "has no output token, as one that failed where its trace was recorded"
        if prompt_tokens == 0:
            return "the prompt is empty"
        window, discarded = self.config.context_window, self.config.discarded_tokens
        if window is not None and prompt_tokens + output_tokens - discarded > window:
            return f"is longer, with its output, than the context window of {window:,} tokens"
        most = prompt_tokens + output_tokens - 1  # the K/V of the last one is not computed
        needed = self.needed(most)
        if needed > self.blocks:
            return f"needs {needed} K/V blocks for {most} tokens, but the pool has {self.blocks}"
        return None

    def refused(self, prompts: Int64Array, outputs: Int64Array) -> BoolArray:
        """Return which requests can never run here; see :meth:`refusal`."""
        window, discarded = self.config.context_window, self.config.discarded_tokens
        none = (prompts == 0) | (outputs == 0)
        found: BoolArray = none | (prompts + outputs - 1 > self.blocks * self.block_tokens)
        return found if window is None else found | (prompts + outputs - discarded > window)
