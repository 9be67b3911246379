"""A replay of a replica that computes prompts and decodes, at the least times of its steps, without operators.

Steps are filled as chunked prefill fills them: of the sequences that decode an even share for each stage, then prompts
that are begun, then those that wait, in order of arrival, as far as sequences and K/V have room. Sequences that leave a
step together come to a next one together. With several stages the slowest one lets one step in after the other, and a
step ends when it has passed them all: no wait on the others.

Not replayed: K/V that runs out while sequences decode, a limit on chunks of long prompts, and SP ranks of their own.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from clustersim.clock import FloatArray
from clustersim.search.plans.bounds.columns import Columns
from clustersim.search.plans.bounds.demand import Demand
from clustersim.search.plans.looks.kernels import Told
from clustersim.values import dataclass

_Part = tuple[int, float, float]
"""Of a prompt: whose it is, and how many tokens are left and computed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedTimes:
    """A replica that does both.

    Parameters
    ----------
    stages, tokens, requests, kv_tokens : int
        Steps in flight, and most of a step and of its pool.
    tpot_ns : float
        Target; infinite where there is none.
    prompt_cell, decode_cell : list of int
        Prompt tokens, and sequences that decode → row and column of …
    slowest_ns, latency_ns : list of list of float
        … the least time on the slowest stage, and through all.
    key_ns, pair_ns : float
        What each key of decodes, and each pair of prompts, adds at least on a stage.
    """

    stages: int
    tokens: int
    requests: int
    kv_tokens: int
    tpot_ns: float
    prompt_cell: list[int]
    decode_cell: list[int]
    slowest_ns: list[list[float]]
    latency_ns: list[list[float]]
    key_ns: float
    pair_ns: float

    def does(self, demand: Demand, free: int, *, compiled: bool = False) -> bool:
        """Whether no more requests than may miss a target."""
        return demand.shared or self.replayed(demand, free, compiled=compiled)[0] <= free

    def replayed(self, demand: Demand, free: int, *, compiled: bool = False) -> Told:
        """Return how many requests miss a target, and how long those that began in time wait; it is not compiled."""
        return _MixedReplay(times=self, demand=demand).late_up_to(free)


@dataclass(slots=True, kw_only=True)
class _Group:
    """Sequences that decode together: at which step of theirs each ends, and how many keys they attend to."""

    ends: list[tuple[int, int]] = field(default_factory=list)
    steps: int = 0
    keys: float = 0.0


class _Chunks(NamedTuple):
    """Of a step: tokens of prompts, the pairs that they attend to, whose prompt it ends, and what it leaves open."""

    tokens: float
    pairs: float
    ended: list[int]
    opened: list[_Part]


@dataclass(slots=True, kw_only=True)
class _MixedReplay:
    """A replay under way: who is next, runs and decodes, tokens in the pool, and who missed a target."""

    times: MixedTimes
    demand: Demand
    now: float = 0.0
    next: int = 0
    running: int = 0
    decoding: int = 0
    held: float = 0.0
    missed: int = 0
    waited: float = 0.0
    tokens: int = 0
    ended: float = 0.0
    flight: deque[tuple[float, _Group, list[int], list[_Part]]] = field(default_factory=deque)
    ready: deque[_Group] = field(default_factory=deque)
    begun: deque[_Part] = field(default_factory=deque)
    first_at: dict[int, float] = field(default_factory=dict)

    def late_up_to(self, free: int) -> Told:
        """Replay until all have their tokens, or more than so many miss a target."""
        times, arrived = self.times, self.demand.arrived_ns.tolist()
        while self.next < len(arrived) or self.running:
            while self.flight and self.flight[0][0] <= self.now:
                self._land(*self.flight.popleft())
            group = self._decodes() if len(self.flight) < times.stages else None
            chunk = self._prompts(arrived, times.tokens - len(group.ends)) if group is not None else None
            if group is None or chunk is None or not (group.ends or chunk.tokens):
                comes = arrived[self.next] if self.next < len(arrived) else math.inf
                lands = self.flight[0][0] if self.flight else math.inf
                self.now = lands if group is None or comes <= self.now else min(comes, lands)
                continue
            self._launch(group, chunk)
            if self.missed > free:
                break
        return self.missed, self.waited, self.tokens, self.ended

    def _decodes(self) -> _Group:
        """Take the share of the sequences that decode that one step has, of those that are ready."""
        share = min(-(-self.decoding // self.times.stages), self.times.tokens)
        group = self.ready.popleft() if self.ready else _Group()
        while len(group.ends) < share and self.ready:
            self._move(self.ready[0], group, share - len(group.ends))
            if not self.ready[0].ends:
                self.ready.popleft()
        if len(group.ends) > share:
            rest = _Group()
            self._move(group, rest, len(group.ends) - share)
            self.ready.appendleft(rest)
        return group

    def _move(self, one: _Group, other: _Group, many: int) -> None:
        """Let so many sequences go from one group to another, those that end last."""
        for _ in range(min(many, len(one.ends))):
            end, at = one.ends.pop()
            left = end - one.steps
            has = float(self.demand.tokens[at]) - left
            one.keys, other.keys = one.keys - has, other.keys + has
            heappush(other.ends, (other.steps + left, at))

    def _prompts(self, arrived: list[float], room: float) -> _Chunks:
        """Fill a step with prompts."""
        left, pairs, ended, opened = room, 0.0, list[int](), list[_Part]()
        while left > 0.0 and (self.begun or self._admits(arrived)):
            at, rest, computed = self.begun.popleft() if self.begun else self._admit()
            took = min(rest, left)
            left, pairs = left - took, pairs + took * computed + took * (took + 1.0) / 2.0
            if took < rest:
                opened.append((at, rest - took, computed + took))
            else:
                ended.append(at)
        return _Chunks(room - left, pairs, ended, opened)

    def _admits(self, arrived: list[float]) -> bool:
        """Whether one that waits has a place, and room for its prompt."""
        if self.next == len(arrived) or arrived[self.next] > self.now or self.running == self.times.requests:
            return False
        return not self.running or self.held + float(self.demand.prompt[self.next]) <= self.times.kv_tokens

    def _admit(self) -> _Part:
        at, prompt = self.next, float(self.demand.prompt[self.next])
        self.next, self.running, self.held = at + 1, self.running + 1, self.held + prompt
        return at, prompt, 0.0

    def _launch(self, group: _Group, chunk: _Chunks) -> None:
        """Let a step pass: it takes the slowest stage for its time there, and ends after that of all."""
        times = self.times
        row, column = times.prompt_cell[int(chunk.tokens)], times.decode_cell[len(group.ends)]
        more = times.key_ns * group.keys + times.pair_ns * chunk.pairs
        end = self.now + times.latency_ns[row][column] + times.stages * more
        self.flight.append((end, group, chunk.ended, chunk.opened))
        self.now = end if times.stages == 1 else self.now + times.slowest_ns[row][column] + more

    def _land(self, at: float, group: _Group, ended: list[int], opened: list[_Part]) -> None:
        """End a step: a token for each sequence that decodes, the first one for each prompt that it ended."""
        demand = self.demand
        group.steps, self.ended = group.steps + 1, at
        group.keys += len(group.ends)
        self.held += len(group.ends)
        self.begun.extendleft(reversed(opened))
        while group.ends and group.ends[0][0] == group.steps:
            _, one = heappop(group.ends)
            group.keys -= float(demand.tokens[one])
            self.decoding -= 1
            self._leave(one)
            took, by = at - self.first_at.pop(one), demand.decodes[one] * self.times.tpot_ns
            self.missed += bool(took > by or (math.isfinite(took) and at > demand.decodes_by_ns[one]))
            if math.isfinite(took):
                self.waited, self.tokens = self.waited + took, self.tokens + int(demand.decodes[one])
        for one in ended:
            late = bool(at > demand.prompt_by_ns[one])
            self.missed += late
            if demand.decodes[one]:
                self.first_at[one] = math.inf if late else at  # who is late counts once
                group.keys += float(demand.prompt[one])
                heappush(group.ends, (group.steps + int(demand.decodes[one]), one))
                self.decoding += 1
            else:
                self._leave(one)
        if group.ends:
            self.ready.append(group)

    def _leave(self, one: int) -> None:
        self.running -= 1
        self.held -= float(self.demand.tokens[one])


def mixed_times(
    columns: Columns, *, stages: int, tokens: int, requests: int, kv_tokens: int, tpot_ns: float
) -> MixedTimes:
    """Return the least times of a replica that does both.

    Parameters
    ----------
    columns : Columns
        Of all its ranks together.
    stages, tokens, requests, kv_tokens, tpot_ns
        See :class:`MixedTimes`.
    """
    prompts, row = np.unique(columns.prompt, return_inverse=True)
    decodes, column = np.unique(columns.decodes, return_inverse=True)

    def table(values: FloatArray) -> list[list[float]]:
        cells = np.full((len(prompts), len(decodes)), np.inf)  # of more than fits in a step
        cells[row, column] = values
        found: list[list[float]] = cells.tolist()
        return found

    def cell(ends: FloatArray, most: int) -> list[int]:
        found: list[int] = np.minimum(np.searchsorted(ends, np.arange(most + 1)), len(ends) - 1).tolist()
        return found

    some = columns.decodes > 0
    return MixedTimes(
        stages=stages,
        tokens=tokens,
        requests=requests,
        kv_tokens=kv_tokens,
        tpot_ns=tpot_ns,
        prompt_cell=cell(prompts, tokens),
        decode_cell=cell(decodes, requests),
        slowest_ns=table(columns.stage_ns.max(axis=0)),
        latency_ns=table(columns.latency_ns),
        key_ns=float(columns.key_ns[:, some].min()) if some.any() else 0.0,
        pair_ns=float(columns.pair_ns.min()),
    )
