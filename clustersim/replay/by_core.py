"""The replay by the core: which runs it can simulate, and the replicas of one of them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from clustersim.compiled import READ_S, compiler_s
from clustersim.core.clock import advance
from clustersim.graph.prices.steps import StepPrices, step_prices
from clustersim.replay.core_events import copies_run_by_events
from clustersim.replay.core_groups import any_grouped
from clustersim.replay.core_links import links_meet, sharing_obstacle
from clustersim.replay.core_replicas import CoreReplicas
from clustersim.replay.core_slowdowns import slowdown_obstacle
from clustersim.replay.input import SHARED_CLOCK, Progress, ReplayResult
from clustersim.replay.outcome import Outcome
from clustersim.replay.part import Part, result_of
from clustersim.replay.prepared import Prepared, PreparedPool
from clustersim.workload.requests import Requests

REQUEST_S: Final = 60e-6
TOKEN_S: Final = 0.2e-6
"""Roughly what a request and an output token cost the core as it stands, where many tokens share a step."""
STAGED: Final = 5.0
"""How many times that of one stage several cost, or groups: each of their steps is decided, or a longest path."""


def core_obstacle(prepared: Prepared) -> str:
    """Return why the core can't simulate a run by itself; empty if it can."""
    if prepared.input.mode == "full":
        return "every operator is an event"
    each = [_stepping_obstacles(prepared, pool) for pool in prepared.pools]
    return (
        next((why for found in each for why, is_so in found.items() if is_so), "")
        or slowdown_obstacle(prepared)
        or sharing_obstacle(prepared)
    )


def _stepping_obstacles(prepared: Prepared, one: PreparedPool) -> dict[str, bool]:
    """Return why the core can't run the steps of a pool, and whether it is so."""
    pool = one.input
    grouped, meets = any_grouped(prepared), links_meet(prepared)
    besides = meets or len(prepared.pools) > 1 or grouped or pool.plan.sp.degree > 1
    return {
        "experts are global, or steps run as halves, beside stages or split prompts": grouped
        and pool.plan.pp * pool.plan.sp.degree > 1,
        "prompts are split over SP ranks, in two pools": len(prepared.pools) > 1 and pool.plan.sp.degree > 1,
        "copies to host memory meet others on a link, or differ": besides and copies_run_by_events(prepared),
        "what SP ranks do depends on more than counts": pool.plan.sp.degree > 1
        and not all(told.prefill.told_by_counts and told.mixed.told_by_counts for told in _prices(one)),
        "prompts are split over SP ranks, whose communications can meet on a link": pool.plan.sp.degree > 1 and meets,
        "the model attends within windows of several lengths": len(pool.pricer.windows) > 1,
        "operators of a pass overlap, or ranks of one group differ": not all(
            program.even and (grouped or program.template.is_chain or pool.plan.sp.degree > 1)
            for program in one.distinct.values()
        ),
        "experts are global, or steps run as halves, and communications can meet on a link": grouped and meets,
        "K/V leaves layer by layer, and costs depend on several counts": not grouped and not _adds_up(one),
    }


def _prices(pool: PreparedPool) -> list[StepPrices]:
    """Return the prices of each stage of each replica."""
    return [step_prices(pool.input.pricer, programs) for programs in pool.programs.values()]


def _adds_up(pool: PreparedPool) -> bool:
    """Whether when a step passes a layer, if anybody waits for that, adds up of what depends on one count each."""
    if pool.input.serving.transfer != "layerwise" or not all(p.template.is_chain for p in pool.distinct.values()):
        return True  # or something else is in the way
    parts = (part for one in _prices(pool) for prompts in (one.prefill, one.mixed) for part in prompts.parts)
    return all(len(part.places) <= 1 for part in parts)


def expected_s(requests: Requests, *, staged: bool) -> float:
    """Return roughly how many seconds the core takes as it stands."""
    return (REQUEST_S * len(requests) + TOKEN_S * int(requests.output_tokens.sum())) * (STAGED if staged else 1.0)


def is_interpreted(prepared: Prepared) -> bool:
    """Whether the core runs as it stands, since the compiler would take longer than it saves."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return True
    inputs = prepared.input
    staged = inputs.entry.plan.pp > 1 or links_meet(prepared) or any_grouped(prepared)
    return inputs.behind_s + expected_s(inputs.requests, staged=staged) < compiler_s(advance)


def waits_for_compiler(requests: Requests, *, staged: bool) -> bool:
    """Whether a run that the core can simulate waits until it is compiled, once on a machine."""
    return READ_S < compiler_s(advance) <= expected_s(requests, staged=staged)


def ask_nobody(requests: Requests, router: str, replicas: int) -> bool:
    """Whether where a request goes, and when, depends on no replica: then each can be replayed alone."""
    return requests.concurrency is None and requests.sessions is None and (router == "round_robin" or replicas == 1)


def replay_by_events(prepared: Prepared, progress: Progress | None, obstacle: str) -> ReplayResult:
    """Let the core schedule a run whose steps run by events, which it can't simulate by itself for this reason."""
    outcome = _outcome(prepared, progress)
    replicas = prepared.replicas
    core = CoreReplicas(prepared, outcome, replicas, slice(None), interpreted=True, by_events=True)
    core.run()
    found = result_of(prepared, [_part(outcome, [*core.unfinished()])])
    assert core.events is not None
    return replace(found, obstacle=obstacle, undivided=SHARED_CLOCK, calls=core.events.calls)


def _outcome(prepared: Prepared, progress: Progress | None) -> Outcome:
    """Return what becomes of requests: so far, nothing."""
    decoder = prepared.pools[-1].capacity if len(prepared.pools) > 1 else None
    return Outcome(prepared.input.requests, prepared.pools[0].capacity, progress, decoder)


def core_part(prepared: Prepared, progress: Progress | None, replicas: range) -> Part:
    """Let the core simulate some replicas of a run; what they record is in the recorder.

    Parameters
    ----------
    prepared : Prepared
    progress : callable or None
    replicas : range
        All, or some where the router asks nobody.
    """
    inputs, count = prepared.input, prepared.input.entry.plan.dp
    pools = len(prepared.pools) > 1
    outcome = _outcome(prepared, progress)
    alone = isinstance(inputs.entry.serving.scheduler, str)  # else which replica errs first may depend on it
    alone = alone and not prepared.outages and not pools and not inputs.entry.plan.is_lockstep
    alone = alone and not copies_run_by_events(prepared)
    alone = alone and not (prepared.contention.stages or prepared.contention.boundaries)
    alone = alone and ask_nobody(inputs.requests, str(inputs.entry.serving.router), count)
    everybody = [*prepared.replicas] if pools else [*replicas]
    shares = [([r], slice(r, None, count)) for r in replicas] if alone else [(everybody, slice(None))]
    interpreted = copies_run_by_events(prepared) or is_interpreted(prepared)
    unfinished: list[str] = []
    for mine, requests in shares:
        core = CoreReplicas(prepared, outcome, mine, requests, interpreted=interpreted)
        core.run()
        unfinished += core.unfinished()
    return _part(outcome, unfinished)


def _part(outcome: Outcome, unfinished: list[str]) -> Part:
    return Part(
        replica=outcome.replica_of, arrived_ns=outcome.arrived, reasons=outcome.reasons, ended=outcome.ended,
        unfinished=tuple(unfinished),
    )  # fmt: skip
