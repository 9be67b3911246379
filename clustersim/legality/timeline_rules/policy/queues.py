"""Who waits, runs and is in host memory on a replica, as a walk through its facts finds it; and when it had room.

One instant has phases: completions come first, then arrivals, then those that leave by themselves, then decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from heapq import heappop, heappush
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.declared.policy import ANY_WAIT, Policy
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    LOST,
    PREEMPTED,
    REJECTED,
    REUSED,
    SWAPPED_IN,
    Declared,
)
from clustersim.legality.timeline_rules.policy.declared import NO_LIMIT, Policies, keeps_whole
from clustersim.legality.timeline_rules.views.copies import elsewhere
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.tables import Table
from clustersim.values import dataclass

Rank = tuple[int, int, int]
COMPLETIONS, ARRIVALS, DEPARTURES, DECISIONS = range(4)


def phase_of(kind: Int64Array, *, rejected_first: Any) -> Int64Array:
    """Return in which part of its instant each fact happens.

    Parameters
    ----------
    kind : int64 array
    rejected_first : bool array
        Whether a rejection is that of a request that arrives.
    """
    found = np.full(len(kind), COMPLETIONS, np.int64)
    found[np.isin(kind, (ADMITTED, PREEMPTED, REUSED, SWAPPED_IN))] = DECISIONS
    found[np.isin(kind, (CANCELLED, LOST, REJECTED))] = DEPARTURES
    found[(kind == ARRIVED) | ((kind == REJECTED) & rejected_first)] = ARRIVALS
    return found


def rank_of(policy: Policy, request: int, arrived: int, prompt: int, priority: int) -> Rank:
    """Return what queues are sorted by."""
    if policy.order == "arrival":
        return 0, 0, request
    number = priority if policy.order == "priority" else prompt
    if policy.patience_ns == ANY_WAIT:
        return number, arrived, request
    return 0, arrived + policy.patience_ns * number, request


@dataclass(slots=True, kw_only=True)
class Queue:
    """What is known of who waits, runs and is in host memory on one replica."""

    waiting: dict[int, Rank] = field(default_factory=dict)
    heap: list[tuple[Rank, int]] = field(default_factory=list)
    running: dict[int, tuple[Rank, int]] = field(default_factory=dict)
    """Rank, and since when; in the order in which they were admitted, or came."""
    coming: list[tuple[int, int, Rank]] = field(default_factory=list)
    """Until when requests are copied back from host memory."""
    resting: dict[int, Rank] = field(default_factory=dict)
    batch: set[int] = field(default_factory=set)
    """Of ``static``: those that waited when the batch under way was made up."""
    need: Callable[[int], int] = lambda _: 0
    """Blocks that a request holds at its end."""
    promised: int = 0
    """Those of all that run."""

    def enter(self, request: int, rank: Rank) -> None:
        """Let a request wait."""
        self._runs_no_more(request)
        self.waiting[request] = rank
        heappush(self.heap, (rank, request))

    def leave(self, request: int) -> None:
        """Forget a request."""
        for known in (self.waiting, self.resting):
            known.pop(request, None)
        self._runs_no_more(request)
        self.coming = [one for one in self.coming if one[1] != request] if self.coming else self.coming

    def run(self, request: int, rank: Rank, now: int) -> None:
        """Let a request run, behind the others."""
        self._runs_no_more(request)
        self.running[request] = rank, now
        self.promised += self.need(request)

    def _runs_no_more(self, request: int) -> None:
        if self.running.pop(request, None) is not None:
            self.promised -= self.need(request)

    def come(self, now: int) -> None:
        """Let run what is back from host memory by now."""
        for one in sorted(one for one in self.coming if one[0] <= now):
            self.coming.remove(one)
            self.run(one[1], one[2], one[0])

    def first(self) -> int | None:
        """Return who is to be taken up next."""
        heap = self.heap
        while heap and self.waiting.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][1] if heap else None

    def forget(self) -> None:
        """Lose all that was there."""
        for known in (self.waiting, self.running, self.resting, self.batch, self.coming):
            known.clear()
        self.promised = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """Steps of one replica that could have carried more, as far as places and tokens go.

    Parameters
    ----------
    starts, left, free : list of int
        When each starts, how many tokens it could still prefill, and how many blocks are free.
    begun : list of bool
        Whether it prefills.
    size, budget, blocks : int
        Tokens of a block, and of a step; blocks of the pool.
    whole : bool
        Whether prompts are taken up whole.
    """

    starts: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    begun: list[bool] = field(default_factory=list)
    size: int = 1
    budget: int = 0
    blocks: int = 0
    whole: bool = False


def chances_of(policies: Policies, declared: Declared, replica: int) -> Chances:
    """Return the steps of a replica that had places and tokens left.

    Where each SP rank keeps whole sequences, the next one goes to that with most free blocks.
    """
    reading, policy = policies.reading, declared.policy
    runs = reading.runs
    names = ("prefill_tokens", "decode_tokens", "batch_requests", "running", "waiting", "kv_blocks_used")
    sized = None not in (
        declared.max_batch_tokens,
        declared.max_batch_requests,
        declared.block_tokens,
        declared.pool_blocks,
    )
    if runs is None or not sized or replica >= len(runs.bounds) - 1:
        return Chances()
    mine = slice(int(runs.bounds[replica]), int(runs.bounds[replica + 1]))
    columns = [one for name in names if (one := runs.column(name, mine)) is not None]
    if len(columns) < len(names):
        return Chances()
    if policy is None or policy.scheduler not in ("continuous", "chunked_prefill") or declared.role == "decode":
        return Chances()
    apart = policies.free_at_runs(declared) if keeps_whole(declared) else None
    if declared.down or (keeps_whole(declared) and apart is None):
        return Chances()
    prefills, decodes, carried, running, waiting, used = columns
    assert declared.max_batch_tokens is not None
    assert declared.max_batch_requests is not None
    assert declared.block_tokens is not None
    assert declared.pool_blocks is not None
    facts, starts = reading.history.facts, runs.start[mine]
    assert facts is not None
    mine_of = reading.rows_at(facts["replica"], replica)
    gone = facts["time_ns"][mine_of[facts["kind"][mine_of] == PREEMPTED]]
    whole = policy.scheduler == "continuous"
    left = declared.max_batch_tokens - prefills - (np.where(prefills > 0, decodes, 0) if whole else decodes)
    free = declared.pool_blocks - used if apart is None else apart[mine].max(axis=1)
    some = (waiting > 0) & (running < declared.max_batch_requests) & (left > 0) & (free > 0) & ~np.isin(starts, gone)
    # A prompt that is begun and lacks blocks keeps the free ones for itself.
    some &= (running == carried) | (free > -(-declared.max_batch_tokens // declared.block_tokens))
    swaps = [swap for swap in reading.swaps if swap.replica == replica]
    if swaps and (reading.pieces is None or reading.history.moves is None):
        return Chances()
    if swaps:  # nobody is admitted while some are away
        some &= ~elsewhere(reading, swaps, starts)
    rows = np.flatnonzero(some)
    return Chances(
        starts=starts[rows].tolist(), left=left[rows].tolist(), free=free[rows].tolist(),
        begun=(prefills[rows] > 0).tolist(), size=declared.block_tokens, budget=declared.max_batch_tokens, whole=whole,
        blocks=declared.pool_blocks,
    )  # fmt: skip


def _most_blocks(requests: Table, size: int, those: Int64Array) -> Int64Array:
    """Return the most blocks that some requests hold."""
    prompt, output = (requests[name][those].astype(np.int64) for name in ("prompt_tokens", "output_tokens"))
    found: Int64Array = -(-(prompt + np.maximum(output - 1, 0)) // size)
    return found


def one_after_the_other(reading: Reading, declared: Declared, rows: Int64Array, chances: Chances) -> bool:
    """Return whether requests were taken up as they came, and as soon as they could be: most are, and need no walk."""
    facts, requests, policy = reading.history.facts, reading.history.requests, declared.policy
    assert facts is not None
    assert requests is not None
    kind, request, time = (facts[name][rows] for name in ("kind", "request", "time_ns"))
    plain = policy is not None and policy.order == "arrival" and policy.scheduler != "static"
    if not plain or not np.isin(kind, (ARRIVED, ADMITTED, FINISHED, REUSED)).all():
        return False
    came, taken = np.flatnonzero(kind == ARRIVED), np.flatnonzero(kind == ADMITTED)
    limited = policy is not None and policy.queue_limit is not None
    if limited or len(taken) > len(came) or (request[taken] != request[came[: len(taken)]]).any():
        return False
    starts, left, free = (np.array(values, np.int64) for values in (chances.starts, chances.left, chances.free))
    blocks_of = partial(_most_blocks, requests, chances.size)
    if policy is not None and policy.keeps_room:
        if not chances.blocks or keeps_whole(declared):
            return False
        change = np.where(kind == ADMITTED, 1, np.where(kind == FINISHED, -1, 0)) * blocks_of(request)
        promised = np.append(0, np.cumsum(change))
        if not declared.prefix_caching and promised.max() > chances.blocks:
            return False
        free = chances.blocks - promised[np.searchsorted(time, starts, side="right")]
    head = np.searchsorted(time[taken], starts, side="right")
    there = head < np.searchsorted(time[came], starts, side="right")
    first = np.append(request[came], 0)[np.where(there, head, -1)]
    known = requests["prompt_tokens"][first].astype(np.int64)
    limit = NO_LIMIT if policy is None or policy.long_prompt_tokens is None else policy.long_prompt_tokens
    count = np.minimum(np.minimum(known, left), limit)
    kept_whole = chances.whole & (count < known) & (np.array(chances.begun, bool) | (known <= chances.budget))
    at_once = policy is not None and policy.first_chunk and not declared.prefix_caching
    blocks = -(-(count if at_once else known) // chances.size)
    blocks = blocks_of(first) if policy is not None and policy.keeps_room else blocks
    return not (there & ~kept_whole & (blocks <= free)).any()
