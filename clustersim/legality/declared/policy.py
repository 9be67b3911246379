"""What a scenario declares of who is served when: what its scheduler, its queues and its routers are to keep to."""

from __future__ import annotations

from typing import Final

from clustersim.values import dataclass

ANY_WAIT: Final = -1
"""As the patience: no wait outweighs a priority, or a token of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Of one pool of replicas.

    Parameters
    ----------
    scheduler : str or None
        ``static``, ``continuous`` or ``chunked_prefill``; None: a user's own, which may decide as it likes.
    order : str
        ``arrival``, ``priority`` or ``shortest_prompt``.
    patience_ns : int
        What one level of priority or one token of the prompt is worth in waiting, or ``ANY_WAIT``.
    long_prompt_tokens : int or None
        Most tokens of one prompt in one step; None: no limit of its own.
    context_window : int or None
        Most tokens of a request with its output; one with more is turned away.
    queue_limit, queue_timeout_ns : int or None
        How many may wait, and for how long until they are first admitted.
    swaps : bool
        Whether who is preempted is kept in host memory where that has room.
    keeps_room : bool
        Whether nobody is preempted: who is admitted finds the blocks that all may come to need.
    first_chunk : bool
        Whether blocks for its first chunk admit a request; unless it is swapped, a prompt that lacks more gives up its
        own, where it comes last.
    cache_threshold, balance_abs_threshold, balance_rel_threshold : float
        Of the router ``prefix_aware``.
    seed : int
    stream : str
        The stream of random numbers that a router draws from.
    """

    scheduler: str | None
    order: str
    patience_ns: int
    long_prompt_tokens: int | None
    context_window: int | None
    queue_limit: int | None
    queue_timeout_ns: int | None
    swaps: bool
    keeps_room: bool
    first_chunk: bool
    cache_threshold: float
    balance_abs_threshold: int
    balance_rel_threshold: float
    seed: int
    stream: str
