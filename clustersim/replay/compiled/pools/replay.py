"""A replay of two pools by compiled lanes, where it can be one and pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clustersim.replay.compiled.choice import POOLS, compiler_obstacle, most_counts, python_s, unpaid
from clustersim.replay.compiled.pools.prices import PoolPrices, PoolsPrices
from clustersim.replay.input import Progress, ReplayResult
from clustersim.replay.lanes.build import LaneBuilder
from clustersim.replay.lanes.intake import Intake, refused_by
from clustersim.replay.lanes.lane import Lane
from clustersim.replay.lanes.part import Part, result_of
from clustersim.replay.links.contention import moves_meet
from clustersim.replay.prepared import Prepared
from clustersim.serving.sequence import Sequence as Request


def replay_pools(builder: LaneBuilder, progress: Progress | None) -> ReplayResult | str:
    """Replay two pools whose replicas can all be lanes, or return why they are not compiled."""
    prepared = builder.prepared
    inputs, requests = prepared.input, prepared.input.requests
    work = inputs.behind_s + python_s(requests, staged=False, pools=inputs.pools[0].serving.transfer, cached=False)
    refused = compiler_obstacle(inputs.compiled) or _obstacle(prepared)
    refused = refused or unpaid(inputs.compiled, work, *POOLS)
    if refused:
        return refused
    replicas = [one for pool in prepared.pools for one in pool.replicas]
    lanes = [builder.lane(one, prepared.schedulers[one], builder.log(one)) for one in replicas]
    each = [[lanes[one] for one in pool.replicas] for pool in prepared.pools]
    if any(lane.prices.stages[0] is not some[0].prices.stages[0] for some in each for lane in some):
        return "replicas that are placed differently and share a clock are not"
    prices = [_prices_of(builder, pool.first_replica, lanes) for pool in prepared.pools]
    refused = next(filter(None, [one.obstacle for one in prices]), "")
    if not refused and inputs.compiled == "auto" and not all(one.plain for one in prices):
        refused = "prices of attention are asked for step by step"
    return refused or _replayed(builder, progress, lanes, prices)


def _obstacle(prepared: Prepared) -> str:
    """Return why a run can't be compiled, before anything is built; empty if it can."""
    inputs = prepared.input
    decides = any(replace(inputs, pools=(pool,)).needs_clock or pool.host is not None for pool in inputs.pools)
    if decides or inputs.pools[-1].serving.preemption == "never" or inputs.horizon_ns is not None:
        return "two pools are not where more than loads and lengths decides"
    if any(pool.plan.pp * pool.plan.sp.degree > 1 or pool.plan.is_lockstep for pool in inputs.pools):
        return "two pools are not where one has stages, SP or lockstep"
    if moves_meet(inputs.comm, prepared.hand_over_pairs()):
        return "two pools are not where K/V on its way can meet other K/V"
    if any(len(inputs.comm.plans("send", pair)) != 1 for pair in prepared.hand_over_pairs()):
        return "two pools are not where K/V can take several ways"
    return ""


def _key_of(prices: PoolPrices) -> tuple[object, ...]:
    return PoolPrices, id(prices.kernel.prices), tuple((prices.kernel.radix - 1).tolist())


def _prices_of(builder: LaneBuilder, replica: int, lanes: Sequence[Lane]) -> PoolPrices:
    """Return the prices of a pool, those of an earlier run that came to its end where they do."""
    lane, requests = lanes[replica], builder.prepared.input.requests
    (prices,), most = lane.prices.stages, most_counts(lane, requests)
    found: PoolPrices | None = prices.pricer.made.pop((PoolPrices, id(prices), most), None)
    if found is None:
        return PoolPrices(prices, most, builder.watched_stage(replica))
    found.settle()
    return found


def _replayed(
    builder: LaneBuilder, progress: Progress | None, lanes: list[Lane], prices: Sequence[PoolPrices]
) -> ReplayResult:
    """Simulate to the end."""
    from clustersim.replay.compiled.pools.lanes import PoolLanes  # imported here, since the compiler takes a while

    prepared, entry = builder.prepared, len(builder.prepared.pools[0].replicas)
    inputs, requests = prepared.input, prepared.input.requests
    first, last = (lanes[pool.first_replica].scheduler.scheduler for pool in prepared.pools)
    replicas, router = range(entry), str(inputs.entry.serving.router)
    intake = Intake(lanes, replicas, entry, requests, router, inputs.horizon_ns, progress)
    prompts, outputs = requests.prompt_tokens, requests.output_tokens
    intake.refused = refused_by(first, prompts, np.minimum(outputs, 1)) | refused_by(last, prompts, outputs)
    PoolLanes(builder, intake, lanes, PoolsPrices(prices)).run()
    for one in prices:
        one.kernel.prices.pricer.made[_key_of(one)] = one
    for request in np.flatnonzero(intake.refused).tolist():
        prompt, output = int(prompts[request]), int(outputs[request])
        here = first.refusal(Request(request, prompt, min(output, 1)))
        intake.reasons[request] = here or f"to decode, it {last.refusal(Request(request, prompt, output))}"
    for lane, number in zip(lanes, range(len(lanes)), strict=True):
        intake.record(lane, np.flatnonzero(intake.replica_of == number))
    part = Part(
        replica=intake.replica_of, arrived_ns=intake.arrived, reasons=intake.reasons, ended=intake.ended, unfinished=(),
        interpreted="",
    )  # fmt: skip
    return result_of(prepared, [part], undivided=ReplayResult.undivided)
