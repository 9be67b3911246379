"""The replay by the core: which runs it can simulate, and the replicas of one of them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from clustersim.compiled import COMPILE_S, compiler_s
from clustersim.core.clock import advance
from clustersim.core.outages import begin_and_end_outages
from clustersim.replay.core_links import sharing_obstacle, variant_of
from clustersim.replay.core_replicas import CoreReplicas
from clustersim.replay.input import SHARED_CLOCK, Progress, ReplayResult
from clustersim.replay.lanes.build import LaneBuilder
from clustersim.replay.lanes.part import Part, result_of
from clustersim.replay.outcome import Outcome
from clustersim.replay.prepared import Prepared
from clustersim.workload.requests import Requests

REQUEST_S: Final = 60e-6
TOKEN_S: Final = 0.2e-6
"""Roughly what a request and an output token cost the core as it stands, where many tokens share a step."""
STAGED: Final = 5.0
"""How many times that of one stage several cost: each of their steps is decided."""


refused = ""
"""Why the core simulates nothing at all, where the law of agreement asks for other lanes."""


def scheduling_obstacle(prepared: Prepared) -> str:
    """Return why the core can't schedule a run, however its steps run; empty if it can."""
    if refused:
        return refused
    inputs = prepared.input
    pool, serving = inputs.entry, inputs.entry.serving
    own = not (isinstance(serving.scheduler, str) and isinstance(serving.router, str))
    found = {
        "there are two pools": len(inputs.pools) > 1,
        "replicas that share experts take their steps together": pool.plan.is_lockstep,
        "each SP rank keeps sequences of its own": pool.owners > 1,
        "a user's class decides where prefixes are cached": own and serving.prefix_caching,
        "a user's class decides where replicas fail, or swap": own and (bool(inputs.faults) or pool.host is not None),
    }
    return next((why for why, is_so in found.items() if is_so), "")


def core_obstacle(prepared: Prepared) -> str:
    """Return why the core can't simulate a run by itself; empty if it can."""
    if found := scheduling_obstacle(prepared):
        return found
    inputs, pool = prepared.input, prepared.input.entry
    copies_differ = pool.host is not None and prepared.copies_of_stages is None
    reasons = {
        "every operator is an event": inputs.mode == "full",
        "devices or links get slower": bool(prepared.slowing),
        "copies to host memory meet others on a link, or differ": copies_differ,
        "steps run as two halves that overlap": pool.plan.is_two_batch,
        "prompts are split over SP ranks": pool.plan.sp.degree > 1,
        "the model attends within windows of several lengths": len(pool.pricer.windows) > 1,
        "operators of a pass overlap, or ranks of one group differ": not all(
            program.even and program.template.is_chain for one in prepared.pools for program in one.distinct.values()
        ),
    }
    return next((why for why, is_so in reasons.items() if is_so), "") or sharing_obstacle(prepared)


def expected_s(requests: Requests, *, staged: bool) -> float:
    """Return roughly how many seconds the core takes as it stands."""
    return (REQUEST_S * len(requests) + TOKEN_S * int(requests.output_tokens.sum())) * (STAGED if staged else 1.0)


def is_interpreted(prepared: Prepared) -> bool:
    """Whether the core runs as it stands, since the compiler would take longer than it saves."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return True
    inputs, variant = prepared.input, variant_of(prepared)
    staged = inputs.entry.plan.pp > 1 or variant["SHARING"]
    outages_s = compiler_s(begin_and_end_outages, **variant) if inputs.faults else 0.0
    work = inputs.behind_s + expected_s(inputs.requests, staged=staged)
    return work < compiler_s(advance, **variant) + outages_s


def waits_for_compiler(requests: Requests, *, staged: bool) -> bool:
    """Whether a run that the core can simulate waits until it is compiled, once on a machine."""
    caching = requests.prefix_hashes is not None
    return compiler_s(advance, CACHING=caching, SHARING=False) == COMPILE_S <= expected_s(requests, staged=staged)


def ask_nobody(requests: Requests, router: str, replicas: int) -> bool:
    """Whether where a request goes, and when, depends on no replica: then each can be replayed alone."""
    return requests.concurrency is None and requests.sessions is None and (router == "round_robin" or replicas == 1)


def events_obstacle(prepared: Prepared) -> str:
    """Return why the core can't have the steps of a run as events; empty if it can."""
    pool, meets = prepared.pools[0], prepared.contention.stages
    alone = [replica for replica in pool.meshes if (replica, 0) not in meets and pool.is_even(replica, 0)]
    if prepared.input.mode == "folded" and pool.input.plan.pp == 1 and alone:
        return "runs of decode steps are one event"
    return scheduling_obstacle(prepared)


def replay_by_events(builder: LaneBuilder, progress: Progress | None) -> ReplayResult:
    """Let the core schedule a run whose steps run by events."""
    prepared = builder.prepared
    count = prepared.input.entry.plan.dp
    outcome = Outcome(prepared.input.requests, prepared.schedulers[0], progress)
    core = CoreReplicas(builder, outcome, range(count), slice(None), interpreted=True, by_events=True)
    core.run()
    found = result_of(prepared, [_part(outcome, [*core.unfinished()])])
    assert core.by_events is not None
    return replace(found, obstacle=builder.obstacle, undivided=SHARED_CLOCK, calls=core.by_events.calls)


def core_part(builder: LaneBuilder, progress: Progress | None, replicas: range) -> Part:
    """Let the core simulate some replicas of a run; what they record is in the recorder.

    Parameters
    ----------
    builder : LaneBuilder
    progress : callable or None
    replicas : range
        All, or some where the router asks nobody.
    """
    prepared = builder.prepared
    inputs, count = prepared.input, prepared.input.entry.plan.dp
    outcome = Outcome(inputs.requests, prepared.schedulers[0], progress)
    alone = isinstance(inputs.entry.serving.scheduler, str)  # else which replica errs first may depend on it
    alone = alone and not prepared.outages and not (prepared.contention.stages or prepared.contention.boundaries)
    alone = alone and ask_nobody(inputs.requests, str(inputs.entry.serving.router), count)
    shares = [([r], slice(r, None, count)) for r in replicas] if alone else [([*replicas], slice(None))]
    interpreted = is_interpreted(prepared)
    unfinished: list[str] = []
    for mine, requests in shares:
        core = CoreReplicas(builder, outcome, mine, requests, interpreted=interpreted)
        core.run()
        unfinished += core.unfinished()
    return _part(outcome, unfinished)


def _part(outcome: Outcome, unfinished: list[str]) -> Part:
    return Part(
        replica=outcome.replica_of, arrived_ns=outcome.arrived, reasons=outcome.reasons, ended=outcome.ended,
        unfinished=tuple(unfinished),
    )  # fmt: skip
