"""What a scheduler or a router from a user's file sees, and what it answers: values that nothing can be done to.

A scheduler is a class with one method, ``decide(view) -> Choice``; a router one with ``route(view) -> int``. Both
are made once per replica (once per deployment) with the keys of ``scheduler_options`` (``router_options``), may
remember what they like, and see no clock but ``view.now_ns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple, Protocol

from clustersim.values import dataclass


class SequenceView(NamedTuple):
    """A sequence as a scheduler sees it; how many tokens it will generate is not known beforehand.

    One is made of every sequence in every step: a tuple takes a third of the time of a frozen dataclass.

    Parameters
    ----------
    request : int
        Number of the request, in order of arrival.
    arrived_ns, priority : int
    prompt_tokens, generated, computed : int
        Tokens of the prompt, tokens sampled so far, tokens whose K/V is in the cache.
    blocks : int
        K/V blocks held.
    owner : int
        The SP coordinate whose pool keeps it.
    preemptions : int
    in_flight : bool
        Whether a step carries it now.
    cached : int
        Of one that waits: prompt tokens that it would take over from the prefix cache if it was admitted now. Blocks
        that are taken before it in the same decision may be among them; then it takes over fewer.
    """

    request: int
    arrived_ns: int
    priority: int
    prompt_tokens: int
    generated: int
    computed: int
    blocks: int
    owner: int
    preemptions: int
    in_flight: bool
    cached: int = 0

    @property
    def to_compute(self) -> int:
        """Known tokens without K/V: those that a step may compute now."""
        return self.prompt_tokens + self.generated - self.computed - self.cached

    @property
    def decodes(self) -> bool:
        """Whether its next step is a decode step."""
        generated = self[4]  # asked of each in each step: a place takes less than a name
        return generated > 0 and self[3] + generated == self[5] + 1


class SchedulerView(NamedTuple):
    """A replica at the instant of a decision; a tuple, as :class:`SequenceView` is.

    Parameters
    ----------
    now_ns : int
    waiting : tuple of SequenceView
        In the order of ``serving.order``.
    running : tuple of SequenceView
        In order of admission.
    free_blocks : tuple of int
        Free K/V blocks of each pool.
    pool_blocks, block_tokens : int
        Blocks of a pool, tokens of a block.
    max_batch_tokens, max_batch_requests : int
    stages : int
        Micro-batches that may be in flight together.
    decodes_in_flight : int
        How many of those in flight decode.
    """

    now_ns: int
    waiting: tuple[SequenceView, ...]
    running: tuple[SequenceView, ...]
    free_blocks: tuple[int, ...]
    pool_blocks: int
    block_tokens: int
    max_batch_tokens: int
    max_batch_requests: int
    stages: int
    decodes_in_flight: int

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the next step carries.

    Parameters
    ----------
    tokens : mapping of int to int
        Request → tokens of it to compute; 1 for one that decodes. A waiting request is admitted by being named.
        The order in which they are named decides nothing: what runs takes its blocks first, by admission, then what
        waits, in the order in which it waits.
    preempt : tuple of int
        Running requests that give their blocks back before that, and wait to be computed anew.
    again : bool
        Whether the steps after it carry the same, and nobody is asked, until a request comes or leaves, one of them
        has all its tokens, or one lacks a block. Heeded where all that it names decode, and the plan has one stage.
        It saves most of the time of a run whose scheduler would say the same in each of these steps.
    """

    tokens: Mapping[int, int] = field(default_factory=dict)
    preempt: tuple[int, ...] = ()
    again: bool = False


class DecidesSteps(Protocol):
    """A user's scheduler."""

    def decide(self, view: SchedulerView) -> Choice:
        """Choose the next step; an empty choice waits for something to happen.

        A run in which one request is preempted 10,000 times (``serving.custom.MOST_VAIN_PREEMPTIONS``) and never
        found a token further than before is ended as an error of the scheduler: it would not end by itself.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica as a router sees it.

    Parameters
    ----------
    replica : int
    waiting, running : int
        Sequences.
    outstanding_tokens : int
        Prompt and output tokens of its unfinished requests, as if output lengths were known.
    waiting_tokens : int
        Prompt tokens that are not computed yet.
    free_blocks, pool_blocks : int
        Of all of its pools.
    cached_tokens : int
        Leading tokens of this request's prompt that its prefix cache holds.
    """

    replica: int
    waiting: int
    running: int
    outstanding_tokens: int
    waiting_tokens: int
    free_blocks: int
    pool_blocks: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterView:
    """A request that has just arrived, and the replicas that can take it.

    Parameters
    ----------
    now_ns, request, prompt_tokens, priority : int
    replicas : tuple of ReplicaView
    """

    now_ns: int
    request: int
    prompt_tokens: int
    priority: int
    replicas: tuple[ReplicaView, ...]


class RoutesRequests(Protocol):
    """A user's router."""

    def route(self, view: RouterView) -> int:
        """Choose the replica (``ReplicaView.replica``) that takes the request."""
        ...
