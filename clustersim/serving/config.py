"""What a user decides about serving: the scheduler, its budgets, the K/V pool and the router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SchedulerName = Literal["continuous", "chunked_prefill"]
RouterName = Literal["round_robin", "least_outstanding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """Serving decisions of one deployment; each replica has its own scheduler and K/V pool.

    Parameters
    ----------
    scheduler : str
        ``continuous`` (prefill first, whole prompts) or ``chunked_prefill`` (decode first, then chunks).
    max_batch_requests : int
        Most sequences that one replica has running at a time.
    max_batch_tokens : int
        Most tokens in one step.
    kv_block_tokens : int
        Tokens per K/V block.
    memory_utilization : float
        Share of device memory that weights, buffers and K/V may fill, in (0, 1].
    kv_blocks : int or None
        Blocks of the K/V pool of each replica (of each SP rank that decodes); ``None`` sizes it from memory.
    router : str
        ``round_robin`` or ``least_outstanding`` (tokens).
    """

    scheduler: SchedulerName = "chunked_prefill"
    max_batch_requests: int = 256
    max_batch_tokens: int = 8192
    kv_block_tokens: int = 16
    memory_utilization: float = 0.90
    kv_blocks: int | None = None
    router: RouterName = "round_robin"
