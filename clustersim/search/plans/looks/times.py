"""Least times of the steps of a prefill pool and of a decode pool, by what a step carries, to be replayed.

A prefill pool fills steps as chunked prefill does: prompts that are begun, but for those with a chunk in flight, then
those that wait, in order of arrival. A step passes the stages like a job of a flow shop: it begins on each when the one
before it has ended there, and as many as there are stages are in flight. A decode pool gets each request when it
arrives, prompt computed, takes as many as it has room for in that order, and gives each a token per step, with several
stages at least as long as all micro-batches spend on the slowest one. Where the K/V of a whole prompt leaves as soon as
there is room for it, it comes while a step is under way, and its request decodes from the next one on.

Not replayed: blocks of the prefill pool, a limit on chunks of long prompts, and hand-overs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.plan.parallel import ParallelPlan
from clustersim.search.plans.bounds.columns import columns_of, spread, stages_of
from clustersim.search.plans.bounds.demand import Demand
from clustersim.search.plans.bounds.stage_times import cells
from clustersim.search.plans.looks.kernels import Told, decodes_late, prompts_late
from clustersim.search.plans.looks.replays import handed, kernel
from clustersim.simulation.priced import Priced
from clustersim.values import dataclass

FINE: Final = 1.002
"""Of neighbours among the amounts of a step: it has one kind of them only, so that there may be many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillTimes:
    """A replica that computes prompts.

    Parameters
    ----------
    budget : int
        Most tokens of a step.
    kinds : array of shape (stages,)
        Stages that are alike have one number.
    own, sending : array of shape (kinds, budget + 1)
        Nanoseconds of a pass by its tokens, and of what it sends.
    pair : array of shape (kinds,)
        What a pair that is attended to adds.
    """

    budget: int
    kinds: Int64Array
    own: FloatArray
    sending: FloatArray
    pair: FloatArray

    def does(self, demand: Demand, free: int, *, compiled: bool = False) -> bool:
        """Whether no more prompts than may are late."""
        return self._late(demand, free, compiled)[0] <= free

    def ends(self, demand: Demand, *, compiled: bool = False) -> FloatArray:
        """Return when each prompt is computed."""
        return np.asarray(self._late(demand, len(demand), compiled)[1], np.float64)

    def _late(self, demand: Demand, free: int, compiled: bool) -> tuple[int, npt.ArrayLike]:
        arrays = (
            self.kinds, self.own.ravel(), self.sending.ravel(), self.pair,
            demand.arrived_ns, demand.prompt, demand.prompt_by_ns, np.zeros(len(demand)),
        )  # fmt: skip
        found = handed(arrays, compiled)
        return kernel(prompts_late, compiled)(self.budget, *found, free), found[-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeTimes:
    """A replica that decodes.

    Parameters
    ----------
    step_ns, key_ns : array of shape (sequences + 1,)
        By the sequences that it has: nanoseconds of a token of each, and what each of their keys adds.
    tpot_ns : float
        Target.
    kv_tokens : int
        Tokens that its K/V pool has room for.
    waits : bool
        Whether who is taken while others decode joins them a step later: K/V leaves once there is room for it.
    streams : bool
        Whether clients get first tokens from here.
    """

    step_ns: FloatArray
    key_ns: FloatArray
    tpot_ns: float
    kv_tokens: int
    waits: bool = False
    streams: bool = False

    def does(self, demand: Demand, free: int, *, compiled: bool = False) -> bool:
        """Whether no more requests than may get their tokens too slowly."""
        return self.replayed(demand, free, compiled=compiled)[0] <= free

    def replayed(
        self, demand: Demand, free: int, *, compiled: bool = False, counts: npt.NDArray[np.bool_] | None = None
    ) -> Told:
        """Return how many requests get their tokens too slowly (of those that count: all), and how long all wait."""
        room = float("inf") if demand.shared else float(self.kv_tokens)
        steps, context = (self.step_ns, self.key_ns), demand.tokens - demand.decodes
        limits = limits_ns(demand, self.tpot_ns, counts)
        asked = demand.arrived_ns, demand.decodes.astype(np.int64), context, *limits
        steps, asked = handed(steps, compiled), handed(asked, compiled)
        told: Told = kernel(decodes_late, compiled)(*steps, room, self.waits, self.streams, *asked, free)
        return told


def limits_ns(demand: Demand, tpot_ns: float, counts: npt.NDArray[np.bool_] | None) -> tuple[FloatArray, FloatArray]:
    """Return how long the tokens of each request may take that follow the first, and when that has to be there; those
    that don't count have no limits."""
    found = demand.decodes * tpot_ns, demand.prompt_by_ns
    return found if counts is None else (np.where(counts, found[0], np.inf), np.where(counts, found[1], np.inf))


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
    stages = stages_of(plan.lockstep, found, (low, np.zeros_like(low)), context)
    if exchanged is not None:
        stages = [replace(one, ns=one.ns + more) for one, more in zip(stages, exchanged(low), strict=True)]
    share = 0.0 if plan.is_lockstep else 1.0 / ranks  # SP ranks have as many pairs each, on an average
    alike = {(one.ns.tobytes(), one.send_ns.tobytes(), one.pair_ns): one for one in stages}
    number = {key: kind for kind, key in enumerate(alike)}
    return PrefillTimes(
        budget=tokens,
        kinds=np.array([number[one.ns.tobytes(), one.send_ns.tobytes(), one.pair_ns] for one in stages], np.int64),
        own=np.array([one.ns[at] for one in alike.values()]),
        sending=np.array([one.send_ns[at] for one in alike.values()]),
        pair=np.array([one.pair_ns * share for one in alike.values()]),
    )


def decode_times(
    plan: ParallelPlan,
    found: Priced,
    *,
    requests: int,
    ranks: int,
    together: int = 1,
    context: float,
    tpot_ns: float,
    kv_tokens: int,
    waits: bool,
    streams: bool = False,
) -> DecodeTimes:
    """Return the least times of a replica that decodes.

    Parameters
    ----------
    plan, found, ranks, context
        See :func:`prefill_times`.
    together : int
        How many replicas have keys of their own.
    requests, kv_tokens : int
        Most sequences, and tokens of the K/V pool.
    tpot_ns : float
        Target.
    waits : bool
        Whether K/V leaves once there is room for it; with stages, there is between the parts of a step.
    streams : bool
        Whether clients get first tokens from here.
    """
    tokens = requests // ranks
    columns = columns_of(plan, found, tokens=tokens, requests=tokens, context=context, duty="decode", ratio=FINE)
    assert columns is not None
    columns = spread(columns, ranks, decodes=True) if ranks > 1 else columns
    at = _cells(columns.decodes, np.maximum(np.arange(requests + 1) // plan.pp, 1.0))
    slowest = plan.pp * columns.stage_ns[:, at].max(axis=0)
    return DecodeTimes(
        step_ns=np.maximum(columns.latency_ns[at], slowest),
        key_ns=columns.key_ns[:, at].min(axis=0) / together,
        tpot_ns=tpot_ns,
        kv_tokens=kv_tokens,
        waits=waits and plan.pp == 1,
        streams=streams,
    )


def _cells(ends: FloatArray, values: npt.NDArray[Any]) -> Int64Array:
    """Return for each value the column whose cell it is in."""
    order = np.argsort(ends, kind="stable")
    found: Int64Array = order[np.minimum(np.searchsorted(ends[order], values), len(ends) - 1)]
    return found
