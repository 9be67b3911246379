"""Drawn prompts that begin alike: each request belongs to a group whose prompts start with the same tokens.

This is the shape of system prompts and of vLLM's benchmark ``prefix_repetition``. The start is part of the prompt: a
prompt that is shorter lies in it altogether. Turns of one conversation are not drawn; replay a trace for them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.values import dataclass
from clustersim.workload.limits import MAX_TOKENS, check_whole, raise_any
from clustersim.workload.prefix_hashes import HashRows, hash_rows

MAX_GROUPS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """How prompts begin.

    Parameters
    ----------
    groups : int
        How many starts there are.
    tokens : int
        How long each is.
    zipf : float
        The n-th group is drawn in proportion to n ** −zipf: 0 draws all alike, 1 is Zipf's law.
    """

    groups: int
    tokens: int
    zipf: float = 0.0

    def __post_init__(self) -> None:
        raise_any(
            check_whole("shared_prefixes.groups", self.groups, low=1, high=MAX_GROUPS)
            + check_whole("shared_prefixes.tokens", self.tokens, low=1, high=MAX_TOKENS)
        )

    def draw(self, num_requests: int, rng: np.random.Generator) -> HashRows:
        """Draw a group for each request: one hash per prompt, of its first ``tokens`` tokens."""
        weights = np.cumsum(np.arange(1, self.groups + 1, dtype=np.float64) ** -self.zipf)
        drawn = np.searchsorted(weights, rng.random(num_requests) * weights[-1], side="right")
        return hash_rows(np.minimum(drawn, self.groups - 1).astype(np.int64), [1] * num_requests)
