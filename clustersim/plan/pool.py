"""What the K/V pool of a rank is a share of: engines divide the memory of a device in different ways."""

from __future__ import annotations

from typing import Literal

from clustersim.values import dataclass

ShareOf = Literal["all", "free", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRule:
    """How an engine finds the size of the K/V pool, with memory M of a device, weights W, buffers B and a share u.

    Parameters
    ----------
    share_of : str
        ``all``: u·M holds weights, buffers and pool (vLLM, which measures buffers by a profile run). ``free``: the pool
        is a share u of what weights and buffers leave free (TensorRT-LLM). ``static``: u·M holds weights, what is
        kept outside and pool, and buffers find their place in the rest (SGLang's ``mem_fraction_static``, which it
        takes of the memory that was free before weights were loaded).
    margin : float
        Share of M that is kept apart within u·M (DistServe: 1 % for what it computes with).
    outside_bytes : float
        What contexts, libraries and captured graphs keep of M, apart from weights and buffers; within u·M where the
        share is one of all memory, or of what is static.
    expert_tokens : int or None
        For so many tokens at once an engine has room for what experts make of them; None: for all that there are.
    """

    share_of: ShareOf = "all"
    margin: float = 0.0
    outside_bytes: float = 0.0
    expert_tokens: int | None = None
