"""Replays of a prefill pool and of a decode pool at the least times of their steps, without operators or records.

A prefill pool fills steps as chunked prefill does: prompts that are begun, but for those with a chunk in flight, then
those that wait, in order of arrival. A step passes the stages like a job of a flow shop: it begins on each when the one
before it has ended there, and as many as there are stages are in flight. A decode pool gets each request when it
arrives, prompt computed and K/V in place, takes as many as it has room for in that order, and gives each a token per
step, with several stages at least as long as all micro-batches spend on the slowest one.

Not replayed: blocks of the prefill pool, a limit on chunks of long prompts, and hand-overs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.plan.parallel import ParallelPlan
from clustersim.search.plans.columns import columns_of, spread, stages_of
from clustersim.search.plans.demand import Demand
from clustersim.search.plans.stage_times import cells
from clustersim.simulation.priced import Priced

FINE: Final = 1.002
"""Of neighbours among the amounts of a step: it has one kind of them only, so that there may be many."""


@dataclass(slots=True, kw_only=True)
class _Prompt:
    """One that is begun: its place among the requests, what is left and computed of it, and when its chunk ends."""

    at: int
    left: float
    computed: float = 0.0
    ends: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillTimes:
    """A replica that computes prompts.

    Parameters
    ----------
    budget : int
        Most tokens of a step.
    stages : list of (list of float, list of float, float)
        Of each stage by the tokens of a step: nanoseconds of its pass, and of what it sends; what a pair that is
        attended to adds.
    """

    budget: int
    stages: list[tuple[list[float], list[float], float]]

    def does(self, demand: Demand, free: int) -> bool:
        """Whether no more prompts than may are late."""
        return _PrefillReplay(times=self, demand=demand).late_up_to(free)


@dataclass(slots=True, kw_only=True)
class _PrefillReplay:
    """A replay under way: since when stages and ways between them are free, ends of what is in flight, open prompts."""

    times: PrefillTimes
    demand: Demand
    free_at: list[float] = field(init=False)
    sent_at: list[float] = field(init=False)
    flight: deque[float] = field(default_factory=deque)
    begun: list[_Prompt] = field(default_factory=list)
    next: int = 0

    def __post_init__(self) -> None:
        self.free_at, self.sent_at = ([0.0] * len(self.times.stages) for _ in range(2))

    def late_up_to(self, free: int) -> bool:
        """Replay until all prompts are computed, or more than so many are late; return whether it came to the end."""
        arrived, prompt = self.demand.arrived_ns.tolist(), self.demand.prompt.tolist()
        by, stages = self.demand.prompt_by_ns.tolist(), len(self.free_at)
        now, missed = 0.0, 0
        while self.next < len(arrived) or self.begun:
            now = max(now, self.free_at[0], self.flight[0] if len(self.flight) == stages else 0.0)
            while self.flight and self.flight[0] <= now:
                self.flight.popleft()
            tokens, pairs, chunks = self._chunks(now, arrived, prompt)
            if not chunks:
                comes = arrived[self.next] if self.next < len(arrived) else self.flight[0]
                now = min(comes, self.flight[0]) if self.flight else comes
                continue
            end = self._pass(now, int(tokens), pairs)
            for one in chunks:
                one.ends = end
                missed += not one.left and end > by[one.at]
            self.begun = [one for one in self.begun if one.left]
            if missed > free:
                return False
        return True

    def _chunks(self, now: float, arrived: list[float], prompt: list[float]) -> tuple[float, float, list[_Prompt]]:
        """Fill a step; return its tokens, the pairs that they attend to, and the prompts that it computes."""
        budget = room = float(self.times.budget)
        pairs, chunks = 0.0, []
        for one in self.begun:
            if one.ends <= now and room:
                chunks.append(one)
                room, pairs = room - min(one.left, room), pairs + _chunk(one, room)
        while room and self.next < len(arrived) and arrived[self.next] <= now:
            one = _Prompt(at=self.next, left=prompt[self.next])
            self.begun.append(one)
            chunks.append(one)
            room, pairs = room - min(one.left, room), pairs + _chunk(one, room)
            self.next += 1
        return budget - room, pairs, chunks

    def _pass(self, at: float, tokens: int, pairs: float) -> float:
        """Let a step pass all stages; return when it ends."""
        free_at, sent_at = self.free_at, self.sent_at
        for stage, (own, sending, pair) in enumerate(self.times.stages):
            at = free_at[stage] = max(at, free_at[stage]) + own[tokens] + pair * pairs
            at = sent_at[stage] = max(at, sent_at[stage]) + sending[tokens]
        self.flight.append(at)
        return at


def _chunk(one: _Prompt, room: float) -> float:
    """Compute as much of a prompt as there is room for; return the pairs that it attends to."""
    took = min(one.left, room)
    pairs = took * one.computed + took * (took + 1.0) / 2.0
    one.left -= took
    one.computed += took
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeTimes:
    """A replica that decodes.

    Parameters
    ----------
    step_ns, key_ns : list of float
        By the sequences that it has: nanoseconds of a token of each, and what each of their keys adds.
    tpot_ns : float
        Target.
    kv_tokens : int
        Tokens that its K/V pool has room for.
    """

    step_ns: list[float]
    key_ns: list[float]
    tpot_ns: float
    kv_tokens: int

    def does(self, demand: Demand, free: int) -> bool:
        """Whether no more requests than may get their tokens too slowly."""
        most, room = len(self.step_ns) - 1, float("inf") if demand.shared else float(self.kv_tokens)
        decodes = demand.decodes.astype(np.int64).tolist()
        context, arrived = (demand.tokens - demand.decodes).tolist(), demand.arrived_ns.tolist()
        now, steps, keys, at, missed = 0.0, 0, 0.0, 0, 0
        running: list[tuple[int, int]] = []
        while at < len(arrived) or running:
            if not running:
                now = max(now, arrived[at])
            while at < len(arrived) and arrived[at] <= now and len(running) < most:
                if running and keys + context[at] > room:
                    break
                if decodes[at]:
                    heappush(running, (steps + decodes[at], at))
                    keys += context[at] + 1.0
                at += 1
            count = len(running)
            if not count:
                continue
            now += self.step_ns[count] + self.key_ns[count] * keys
            steps, keys = steps + 1, keys + count
            while running and running[0][0] == steps:
                _, one = heappop(running)
                keys -= context[one] + 1.0 + decodes[one]
                missed += now - arrived[one] > decodes[one] * self.tpot_ns
            if missed > free:
                return False
        return True


def prefill_times(
    plan: ParallelPlan,
    found: Priced,
    *,
    tokens: int,
    ranks: int,
    context: float,
    exchanged: Callable[[FloatArray], list[FloatArray]] | None = None,
) -> PrefillTimes:
    """Return the least times of a replica that computes prompts.

    Parameters
    ----------
    plan : ParallelPlan
        Of one replica, or of those that share experts.
    found : Priced
        What prices it.
    tokens : int
        Most of a step.
    ranks : int
        How many share experts, or prompts (SP); else 1.
    context : float
        Keys of a decode where tangents are taken.
    exchanged : callable, optional
        Of SP ranks: prompt tokens of the one with most → nanoseconds that they exchange, by stage.
    """
    low, high = cells(tokens // ranks, FINE)
    at = np.minimum(np.searchsorted(high * ranks, np.arange(tokens + 1.0)), len(low) - 1)
    stages = stages_of(plan.lockstep, found, (low, np.zeros_like(low)), context, apart=exchanged is not None)
    if exchanged is not None:
        stages = [replace(one, ns=one.ns + more) for one, more in zip(stages, exchanged(low), strict=True)]
    alike = {id(one): (one.ns[at].tolist(), one.send_ns[at].tolist(), one.pair_ns) for one in stages}
    if ranks > 1:
        alike = {number: (own, sending, 0.0) for number, (own, sending, _) in alike.items()}
    return PrefillTimes(budget=tokens, stages=[alike[id(one)] for one in stages])


def decode_times(
    plan: ParallelPlan, found: Priced, *, requests: int, ranks: int, context: float, tpot_ns: float, kv_tokens: int
) -> DecodeTimes:
    """Return the least times of a replica that decodes.

    Parameters
    ----------
    plan, found, ranks, context
        See :func:`prefill_times`.
    requests, kv_tokens : int
        Most sequences, and tokens of the K/V pool.
    tpot_ns : float
        Target.
    """
    tokens = requests // ranks
    columns = columns_of(plan, found, tokens=tokens, requests=tokens, context=context, duty="decode", ratio=FINE)
    assert columns is not None
    columns = spread(columns, ranks, decodes=True) if ranks > 1 else columns
    at = _cells(columns.decodes, np.maximum(np.arange(requests + 1) // plan.pp, 1.0))
    slowest = plan.pp * columns.stage_ns[:, at].max(axis=0)
    return DecodeTimes(
        step_ns=np.maximum(columns.latency_ns[at], slowest).tolist(),
        key_ns=columns.key_ns[:, at].min(axis=0).tolist(),
        tpot_ns=tpot_ns,
        kv_tokens=kv_tokens,
    )


def _cells(ends: FloatArray, values: npt.NDArray[Any]) -> Int64Array:
    """Return for each value the column whose cell it is in."""
    order = np.argsort(ends, kind="stable")
    found: Int64Array = order[np.minimum(np.searchsorted(ends[order], values), len(ends) - 1)]
    return found
