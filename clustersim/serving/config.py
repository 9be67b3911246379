"""What a user decides about serving: the scheduler, its budgets, the K/V pool and the router."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from clustersim.serving.order import Order
from clustersim.serving.user_class import UserClass
from clustersim.values import dataclass

SchedulerName = Literal["static", "continuous", "chunked_prefill"]
PreemptionName = Literal["recompute", "swap", "never"]
AdmissionName = Literal["whole_prompt", "first_chunk"]
RouterName = Literal["round_robin", "least_outstanding", "fewest_waiting", "power_of_two", "prefix_aware"]
TransferName = Literal["whole", "layerwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRouting:
    """When the router ``prefix_aware`` follows the cache and when the load; the defaults are those of SGLang's router.

    Parameters
    ----------
    cache_threshold : float
        Least share of a prompt, 0 to 1, that must be cached for the request to follow it.
    balance_abs_threshold : int
        Replicas are unbalanced when the largest number of unfinished requests exceeds the smallest by more than this
    balance_rel_threshold : float
        … and is more than this many times as large.

    References
    ----------
    .. [1] sgl-router, ``cache_aware`` policy (github.com/sgl-project/sglang, 2025): 0.3, 64 and 1.5.
    """

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """Serving decisions of one deployment; each replica has its own scheduler and K/V pool.

    Parameters
    ----------
    scheduler : str or UserClass
        ``static`` (one batch after the other), ``continuous`` (prefill first, whole prompts) or ``chunked_prefill``
        (decode first, then chunks); or a class of a user's file.
    order : Order
        In which order waiting sequences are taken up, and preempted the other way round.
    long_prompt_tokens : int or None
        Most tokens of one prompt in one step of ``chunked_prefill``; None: no limit but the budget.
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
    preemption : str
        ``recompute`` (a victim computes its tokens anew), ``swap`` (its blocks are kept in host memory meanwhile) or
        ``never``: a request is admitted when there are blocks for all that it and those which run may come to need.
    admission : str
        A request that waits is admitted when there are blocks for its ``whole_prompt``, or for its ``first_chunk``
        alone. Then a prompt that lacks blocks for its next chunk, behind all others that run, gives up those that it
        has and waits again: vLLM before 2026-03 [1]_. (With ``swap`` it keeps them; ``never`` looks at all it needs.)
    host_kv_bytes : float or None
        Host memory for that, per device, as vLLM's ``swap_space`` was per GPU; None without ``swap``.
    prefix_caching : bool
        Whether full blocks of prompts are kept and shared (``core.prefix_cache``).
    router : str or UserClass
        See ``serving.router``.
    prefix_routing : PrefixRouting
        Of the router ``prefix_aware``.
    context_window : int or None
        Most tokens of prompt and output together; a request with more is rejected. None: no limit but the K/V pool.
    discarded_tokens : int
        How many of those that a request is asked for here are no output, since no client gets them.
    queue_limit : int or None
        A request that finds so many waiting at its replica is rejected.
    queue_timeout_ns : int or None
        A request that has not been admitted for so long is rejected.
    transfer : str
        How a prefill pool hands K/V over: ``whole``, when a prompt is computed, or ``layerwise``, each layer as the
        last step of the prompt has passed it.

    References
    ----------
    .. [1] vllm-project/vllm#21793 and #37307 (``scheduler_reserve_full_isl``, on by default since).
    """

    scheduler: SchedulerName | UserClass = "chunked_prefill"
    order: Order = field(default_factory=Order)
    long_prompt_tokens: int | None = None
    max_batch_requests: int = 256
    max_batch_tokens: int = 8192
    kv_block_tokens: int = 16
    memory_utilization: float = 0.90
    kv_blocks: int | None = None
    preemption: PreemptionName = "recompute"
    admission: AdmissionName = "whole_prompt"
    host_kv_bytes: float | None = None
    prefix_caching: bool = False
    router: RouterName | UserClass = "round_robin"
    prefix_routing: PrefixRouting = field(default_factory=PrefixRouting)
    context_window: int | None = None
    discarded_tokens: int = 0
    queue_limit: int | None = None
    queue_timeout_ns: int | None = None
    transfer: TransferName = "whole"

    @property
    def admits_first_chunks(self) -> bool:
        """Whether a prompt is admitted as soon as there are blocks for its first chunk."""
        return self.admission == "first_chunk" and self.preemption != "never"
