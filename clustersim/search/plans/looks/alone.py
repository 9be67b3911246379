"""A pool by itself, or a plan with SP or stages, replayed at the least times of its steps: what it can't do so, it does
not do in a run.

Steps take what :mod:`~clustersim.search.plans.bounds.columns` has for them. So a replay takes milliseconds, and one
replica stands for all. What is replayed is told in :mod:`~clustersim.search.plans.looks.times`.

It is no proof: a pool could do better where the other one spreads its requests. Taken for granted, as between rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

import numpy as np

from clustersim.plan.parallel import SequencePlan
from clustersim.report.metrics.latencies import targets_ns
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import Load
from clustersim.search.plans.bounds.columns import Duty, columns_of, most_tokens, spread, stages_of
from clustersim.search.plans.bounds.demand import may_miss
from clustersim.search.plans.bounds.exposure import attentions, exposed, exposures
from clustersim.search.plans.bounds.stage_prices import priced_alike
from clustersim.search.plans.bounds.stage_times import cells
from clustersim.search.plans.grid import SLOWEST, demand_at, requests_at, step_of
from clustersim.search.plans.looks.lockstep import LockstepDecodes, LockstepTimes
from clustersim.search.plans.looks.mixed import MixedTimes, mixed_times
from clustersim.search.plans.looks.times import FINE, DecodeTimes, PrefillTimes, decode_times, prefill_times
from clustersim.simulation.priced import Priced
from clustersim.values import dataclass

Times = PrefillTimes | DecodeTimes | MixedTimes | LockstepTimes | LockstepDecodes
_COARSE: Final = 1.08
"""Of neighbours among the amounts of a step that has both kinds."""
_EXPERTS: Final = 1.01
"""Of those among the tokens that experts compute."""
_NO_END: Final = 1 << 50
_MOST: Final = 512
"""Replicas whose times are kept: they are asked for at ever lower rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAlone:
    """A pool whose replicas get requests in turn, or as its router says: then they are taken to share them evenly.

    Parameters
    ----------
    duty : str
        ``prefill``, ``decode``, or ``both`` of a plan with one pool.
    replicas : int
        Of which one is replayed, with every so many-th request.
    together : int
        Replicas that share requests evenly, as if they took each step together; else 1.
    ranks : int
        These, replicas that share experts, in lockstep, or SP ranks; of replicas with SP those of all.
    tokens, requests, kv_tokens : int
        Most of a step, of these together; see :class:`~clustersim.search.plans.bounds.limits.Member`.
    sp : SequencePlan, optional
        How prompts are split, with SP.
    """

    duty: Duty
    replicas: int
    ranks: int
    tokens: int
    requests: int
    kv_tokens: int
    together: int = 1
    sp: SequencePlan | None = None


def failing_all(
    scenario: Scenario, load: Load, share: float, asked: Sequence[tuple[PoolAlone, int, int]], compiled: bool = False
) -> list[int | None]:
    """Return the lowest step of the grid found at which each of some pools fails by itself.

    Parameters
    ----------
    scenario : Scenario
        Of one pool, with one replica at sp 1, or those that share experts.
    load : Load
    share : float
    asked : sequence of (PoolAlone, int, int)
        With the lowest step that is of interest, and one at which it is known to fail.
    compiled : bool
        Whether replays are compiled, which changes none.

    Returns
    -------
    list of int or None
        None: there is no target that this pool misses, or no least times are known.
    """
    limits = targets_ns(scenario.targets)
    results: list[int | None] = []
    for pool, low, high in asked:
        told = "ttft" in limits if pool.duty == "prefill" else "tpot" in limits if pool.duty == "decode" else limits
        if scenario.plan.is_two_batch or not told:
            results.append(None)
            continue
        times = times_of(scenario, pool, load)
        does = partial(_does, scenario, load, share, pool.replicas, times, compiled)
        results.append(lowest(does, low, high))
    return results


def times_of(scenario: Scenario, pool: PoolAlone, load: Load) -> Times:
    """Return the least times of a replica of a pool."""
    return _times(_Asked(scenario, replace(pool, replicas=1), load))


class _Asked:
    """A replica of a pool by what its least times depend on."""

    def __init__(self, scenario: Scenario, pool: PoolAlone, load: Load) -> None:
        self.scenario, self.pool, self.load = scenario, pool, load
        self._key = repr((scenario.digest, scenario.plan, scenario.topology.device, pool, load.workload))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self._key == other._key


@lru_cache(maxsize=_MOST)
def _times(side: _Asked) -> Times:
    """Return the least times of a replica of a pool."""
    scenario, pool, plan = side.scenario, side.pool, side.scenario.plan
    found, requests = priced_alike(scenario), requests_at(scenario, side.load, step_of(side.load.first), 1)
    context = float((requests.prompt_tokens + requests.output_tokens / 2.0).mean())
    if plan.is_lockstep and plan.pp == 1 and scenario.serving.router == "round_robin":
        return (_lockstep_decodes if pool.duty == "decode" else _lockstep)(side, found, context)
    if pool.duty == "both":
        return _mixed(side, found, context)
    if pool.duty == "prefill":
        exchanged = None
        if pool.sp is not None:
            whole, alone = replace(plan, sp=pool.sp), attentions(scenario)
            exchanged = partial(exposures, plan=whole, scenario=scenario, found=found, alone=alone)
        return prefill_times(plan, found, tokens=pool.tokens, ranks=pool.ranks, context=context, exchanged=exchanged)
    return decode_times(
        plan,
        found,
        requests=pool.requests,
        ranks=pool.ranks,
        context=context,
        together=pool.together,
        tpot_ns=targets_ns(scenario.targets)["tpot"],
        kv_tokens=pool.kv_tokens,
        waits=_waits(scenario),
        streams=scenario.engine.first_token != "prefill",
    )


def _waits(scenario: Scenario) -> bool:
    """Whether K/V leaves for a decode pool once there is room for it, so that it comes while a step is under way.

    Where that pool samples first tokens, the step that does so lies before those that are timed here.
    """
    return scenario.serving.transfer == "whole" and scenario.engine.first_token != "decode"


def _lockstep(side: _Asked, found: Priced, context: float) -> LockstepTimes:
    """Return the least times of replicas in lockstep, each of which computes its own prompts."""
    scenario, pool, ranks = side.scenario, side.pool, side.pool.ranks
    tokens, requests, room = (many // ranks for many in (pool.tokens, pool.requests, pool.kv_tokens))
    if pool.duty == "prefill":  # its blocks are not replayed
        requests, room = tokens, _NO_END
    duty: Duty = "both" if pool.duty == "both" else "prefill"
    columns = columns_of(
        scenario.plan, found, tokens=tokens, requests=requests, context=context, own=True, duty=duty, ratio=_COARSE
    )
    assert columns is not None
    alone = mixed_times(
        columns,
        stages=1,
        tokens=tokens,
        requests=requests,
        kv_tokens=room,
        tpot_ns=targets_ns(scenario.targets).get("tpot", math.inf),
    )
    low, high = cells(pool.tokens, _EXPERTS)
    (stage,) = stages_of(scenario.plan.lockstep, found, (low, np.zeros_like(low)), context, own=True)
    shared = stage.shared_ns[np.searchsorted(high, np.arange(pool.tokens + 1.0))]
    return LockstepTimes(ranks=ranks, alone=alone, shared_ns=shared, decodes=pool.duty == "both")


def _lockstep_decodes(side: _Asked, found: Priced, context: float) -> LockstepDecodes:
    """Return the least times of replicas in lockstep that only decode."""
    scenario, pool, ranks = side.scenario, side.pool, side.pool.ranks
    requests = pool.requests // ranks
    columns = columns_of(
        scenario.plan, found, tokens=requests, requests=requests, context=context, own=True, duty="decode", ratio=FINE
    )
    assert columns is not None
    at = np.minimum(np.searchsorted(columns.decodes, np.arange(requests + 1)), len(columns.decodes) - 1)
    engine = scenario.engine
    sizes = [engine.padded(many) if many <= engine.graph_max_tokens else 0 for many in range(requests + 1)]
    padded = np.array(sizes if engine.graph_sizes else [0] * (requests + 1), np.int64)
    low, high = cells(max(pool.requests, ranks * int(padded.max())), FINE)
    (stage,) = stages_of(scenario.plan.lockstep, found, (np.zeros_like(low), low), context, own=True)
    return LockstepDecodes(
        ranks=ranks,
        requests=requests,
        kv_tokens=pool.kv_tokens // ranks,
        own_ns=columns.latency_ns[at],
        key_ns=columns.key_ns[:, at].min(axis=0),
        shared_ns=stage.shared_ns[np.searchsorted(high, np.arange(high[-1] + 1.0))],
        padded=padded,
        tpot_ns=targets_ns(scenario.targets)["tpot"],
        waits=_waits(scenario),
        streams=scenario.engine.first_token != "prefill",
    )


def _mixed(side: _Asked, found: Priced, context: float) -> MixedTimes:
    """Return the least times of a replica that computes prompts and decodes."""
    scenario, pool, sp, together = side.scenario, side.pool, side.pool.sp, side.pool.together
    ranks, tokens, requests = (many // together for many in (pool.ranks, pool.tokens, pool.requests))
    owners = ranks if sp is None or sp.decode == "dp" else 1
    columns = columns_of(
        scenario.plan,
        found,
        tokens=most_tokens(tokens, ranks, 0 if owners == ranks else requests),
        requests=requests // owners,
        context=context,
        apart=sp is not None,
        ratio=_COARSE,
    )
    assert columns is not None
    if sp is not None:
        columns = exposed(columns, replace(scenario.plan, sp=sp), scenario, found, attentions(scenario))
    columns = spread(columns, ranks, decodes=owners > 1) if ranks > 1 else columns
    if together > 1:
        columns = spread(replace(columns, key_ns=columns.key_ns / together), together, decodes=True)
    return mixed_times(
        columns,
        stages=scenario.plan.pp,
        tokens=pool.tokens,
        requests=pool.requests,
        kv_tokens=pool.kv_tokens,
        tpot_ns=targets_ns(scenario.targets).get("tpot", math.inf),
    )


def _does(
    scenario: Scenario,
    load: Load,
    share: float,
    replicas: int,
    times: Times,
    compiled: bool,
    step: int,
) -> bool:
    """Whether enough requests meet the target of a pool at a step of the grid."""
    demand = demand_at(scenario, load, step, replicas)
    free = may_miss(len(demand), share)
    return times.does(demand, free, compiled=compiled)


def lowest(does: Callable[[int], bool], low: int, high: int) -> int:
    """Return the lowest step from ``low`` to ``high`` at which something does not; ``high`` is one."""
    low = max(low, SLOWEST)
    if low >= high or not does(low):
        return min(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if does(middle) else (low, middle)
    return high
