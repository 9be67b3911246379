"""What a scenario declares of its run, and the run's timeline together with it: what rules of level T are asked about.

All of it follows from the scenario alone, by code that shares nothing with a replay: K/V blocks from plan and memory,
the pools and what breaks in them from ``legality.declared``, the collectives of stages from the step graphs that level
G judges.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from clustersim.collective.algorithms import Kind
from clustersim.cost.points import read_points
from clustersim.graph.blueprint import Blueprint
from clustersim.graph.expand import step_blueprints
from clustersim.graph.stepgraph import StepGraph, expand, place
from clustersim.legality.declared.outages import Broken, down
from clustersim.legality.declared.policy import Policy
from clustersim.legality.declared.setting import Groups, Pool, Setting
from clustersim.legality.declared.slowness import slow_ranks, weak_groups
from clustersim.legality.declared.transfers import Carriage
from clustersim.legality.held import kv_declared
from clustersim.legality.history import Declared, DeclaredGraph, History
from clustersim.legality.plan_rules.memory import most_blocks
from clustersim.legality.prices.deployment import Measured, PricedDeployment
from clustersim.model.architecture import Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.reshard import Shard, kv_shards
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.legality import deployment_of, pool_blocks, scenario_memory
from clustersim.timeline.columns import as_one
from clustersim.timeline.timeline import Timeline


def declared_of(scenario: Scenario, carriage: Carriage, broken: Broken, number: int = 0) -> Declared:
    """Return what a scenario declares of one of its pools.

    Parameters
    ----------
    scenario : Scenario
        Of that pool alone.
    carriage : Carriage
        Of the whole scenario.
    broken : Broken
        When which replicas are down, as that says.
    number : int
        Which of its pools that is.
    """
    plan, serving, setting = scenario.plan, scenario.serving, carriage.setting
    pool = setting.pools[number]
    owners = plan.sp.degree if plan.sp.decode == "dp" else 1
    host = _host(scenario, owners)
    visited = {layer.ffn.top_k for layer in scenario.model.layers if isinstance(layer.ffn, Moe)}
    return Declared(
        tp=plan.tp,
        sp=plan.sp.degree,
        pp=plan.pp,
        dp=plan.dp,
        ep=plan.ep.degree,
        sp_scheme=plan.sp.scheme,
        sp_decode=plan.sp.decode,
        ep_scope=plan.ep.scope,
        decode_overlap=plan.decode_overlap,
        block_tokens=serving.kv_block_tokens,
        pool_blocks=_pool_blocks(scenario) * owners,
        max_batch_tokens=serving.max_batch_tokens,
        max_batch_requests=serving.max_batch_requests,
        top_k=min(visited) if len(visited) == 1 else None,
        horizon_ns=scenario.run.horizon_ns,
        first_replica=pool.first_replica,
        first_rank=pool.first_rank,
        prefix_caching=serving.prefix_caching,
        hidden_bytes=round(pool.token_bytes),
        down=broken[0],
        loses=broken[1],
        eager=isinstance(serving.scheduler, str),
        role=scenario.pools[0].name or "all",
        router=serving.router if isinstance(serving.router, str) else None,
        carriage=carriage,
        slow=slow_ranks(setting, pool),
        weak_groups=weak_groups(setting, pool),
        deployment=costs_of(scenario),
        policy=_policy(scenario, number),
        **host,
    )


def _pool_blocks(scenario: Scenario) -> int:
    """Return the blocks of a K/V pool: as declared, or what rules of level P find room for.

    The simulator's own sum is taken where it differs by one block, which rounding may cost.
    """
    own = pool_blocks(scenario, scenario_memory(scenario))
    if scenario.serving.kv_blocks is not None:
        return own
    due = most_blocks(deployment_of(scenario))
    return own if abs(own - due) <= 1 else due


def _policy(scenario: Scenario, number: int) -> Policy:
    """Return what a scenario of one pool declares of who is served when."""
    serving, ways = scenario.serving, scenario.serving.prefix_routing
    return Policy(
        scheduler=serving.scheduler if isinstance(serving.scheduler, str) else None,
        order=serving.order.by,
        patience_ns=serving.order.patience_ns,
        long_prompt_tokens=serving.long_prompt_tokens,
        context_window=serving.context_window,
        queue_limit=serving.queue_limit,
        queue_timeout_ns=serving.queue_timeout_ns,
        swaps=serving.preemption == "swap",
        keeps_room=serving.preemption == "never" and serving.scheduler != "static",
        first_chunk=serving.admission == "first_chunk" and serving.preemption != "never",
        cache_threshold=ways.cache_threshold,
        balance_abs_threshold=ways.balance_abs_threshold,
        balance_rel_threshold=ways.balance_rel_threshold,
        seed=scenario.seed,
        stream=("router", "router of the decode pool")[number],
    )


def costs_of(scenario: Scenario) -> PricedDeployment:
    """Return what a scenario of one pool declares of what operators cost."""
    table = scenario.cost_table
    points = () if table is None else read_points(table)
    return PricedDeployment(
        model=scenario.model,
        plan=scenario.plan,
        precision=scenario.precision,
        engine=scenario.engine,
        topology=scenario.topology,
        collectives=scenario.collectives,
        points=tuple(
            Measured(op=p.op, dtype=p.dtype, device=p.device, shape=p.shape, seconds=p.seconds) for p in points
        ),
    )


def _host(scenario: Scenario, owners: int) -> dict[str, Any]:
    """Return what is declared of the host memory that sequences are swapped to."""
    serving = scenario.serving
    if not _swaps(scenario):
        return {}
    assert serving.host_kv_bytes is not None
    ranks = scenario_memory(scenario)
    block_bytes = tuple(math.ceil(rank.kv_bytes_per_token * serving.kv_block_tokens) for rank in ranks)
    return {"host_blocks": int(serving.host_kv_bytes // max(block_bytes)) * owners, "host_block_bytes": block_bytes}


def _swaps(scenario: Scenario) -> bool:
    return scenario.serving.preemption == "swap" and scenario.serving.host_kv_bytes is not None


def discarded_tokens(scenario: Scenario) -> int:
    """Return how many tokens replicas sample of a request with any output that its client does not get: 0 or 1."""
    return int(scenario.first_token == "decode")


def setting_of(scenario: Scenario) -> Setting:
    """Return the places that a scenario declares, and what breaks there."""
    pools: list[Pool] = []
    replicas = ranks = 0
    each = scenario.each_pool()
    for one in each:
        plan, precision = one.plan, one.precision
        pools.append(
            Pool(
                plan=plan,
                stages=partial(_groups, one),
                swaps=_swaps(one) and not scenario.hands_over,
                first_replica=replicas,
                first_rank=ranks,
                launch_s=one.engine.collective_launch_s,
                send_launch_s=one.engine.collective_launch_s + one.engine.stage_s,
                token_bytes=one.model.hidden * precision.activation_bytes,
            )
        )
        replicas, ranks = replicas + plan.dp, ranks + plan.world
    shards: tuple[Shard, ...] = ()
    if scenario.hands_over:
        source, target = (one.plan for one in each)
        shards = kv_shards(scenario.model, source, target, scenario.precision.kv_bytes)
    return Setting(
        topology=scenario.topology, pools=tuple(pools), collectives=scenario.collectives, faults=scenario.faults,
        shards=shards,
    )  # fmt: skip


def _groups(scenario: Scenario) -> tuple[Groups, ...]:
    """Return operator and ranks of every collective of each stage, in any kind of step."""
    plan = scenario.plan.lockstep
    found: list[dict[tuple[Kind, tuple[int, ...]], None]] = [{} for _ in range(plan.pp)]
    bodies = {}
    for blueprint in step_blueprints(scenario.model, plan, scenario.precision).values():
        for stage, units in enumerate(blueprint.stages):
            for body in dict.fromkeys(unit.body for unit in units):
                if body not in bodies:
                    bodies[body] = [one for one in place(body, plan) if len(one.members) > 1]
                found[stage].update(dict.fromkeys((one.node.communication, one.members) for one in bodies[body]))
    return tuple(tuple(sorted(stage, key=repr)) for stage in found)


def pools_of(scenario: Scenario, carriage: Carriage, broken: Broken) -> tuple[Declared, ...]:
    """Return what a scenario declares of each pool; of two, also which K/V each of their ranks is to hold."""
    found = tuple(declared_of(one, carriage, broken, number) for number, one in enumerate(scenario.each_pool()))
    if not scenario.hands_over:
        return found
    more = discarded_tokens(scenario)
    return tuple(
        replace(pool, policy=_with_window(pool.policy, more), **kv_declared(deployment_of(one)))
        for one, pool in zip(scenario.each_pool(), found, strict=True)
    )


def _with_window(policy: Policy | None, more: int) -> Policy | None:
    """Return a policy whose window counts the tokens that nobody gets, as the lengths that are declared do."""
    window = None if policy is None else policy.context_window
    return policy if policy is None or window is None else replace(policy, context_window=window + more)


def _of_stage(blueprint: Blueprint, plan: ParallelPlan, stage: int) -> StepGraph:
    return expand(blueprint, plan, [stage])


def _graphs(scenario: Scenario, first_replica: int) -> Iterator[DeclaredGraph]:
    """Yield the step graphs of one pool, which are expanded when they are looked at."""
    plan = scenario.plan.lockstep
    for blueprint in step_blueprints(scenario.model, plan, scenario.precision).values():
        yield DeclaredGraph(
            kind=blueprint.kind, first_replica=first_replica, ranks=plan.stage_ranks, tp=plan.tp,
            stages=len(blueprint.stages), of_stage=partial(_of_stage, blueprint, plan),
        )  # fmt: skip


def history_of(scenario: Scenario, timeline: Timeline, explained: Collection[int] | None = None) -> History:
    """Return a timeline with what its scenario declares.

    Parameters
    ----------
    scenario : Scenario
    timeline : Timeline
    explained : collection of int, optional
        Requests whose rejection has a reason.
    """
    requests = scenario.requests()
    made = requests.output_tokens + (requests.output_tokens > 0) * discarded_tokens(scenario)
    told = {"prompt_tokens": requests.prompt_tokens, "output_tokens": made}
    follows = requests.follows
    if follows is not None:
        told |= {"recorded_ns": requests.arrived_at_ns, "follows": follows}
    elif requests.concurrency is None:
        told["arrives_ns"] = requests.arrived_at_ns
    cancels = requests.cancel_after_ns
    told["cancels_ns"] = np.broadcast_to(np.int64(-1), len(requests)) if cancels is None else cancels
    if requests.priorities is not None:
        told["priority"] = requests.priorities
    if explained is not None:
        reasons = np.zeros(len(requests), np.int64)
        reasons[list(explained)] = 1
        told["explained"] = as_one(reasons)
    hashed = requests.prefix_hashes is not None
    hash_tokens = requests.hash_block_tokens if hashed else 1
    setting = setting_of(scenario)
    carriage, broken = Carriage(setting), down(setting)
    pools = tuple(replace(pool, hash_tokens=hash_tokens) for pool in pools_of(scenario, carriage, broken))
    return History(
        pools=pools,
        requests=told,
        concurrency=requests.concurrency,
        layerwise=scenario.serving.transfer == "layerwise",
        steps=timeline.steps,
        chunks=timeline.chunks,
        decodes=timeline.decodes,
        facts=timeline.facts,
        moves=timeline.moves,
        folded=timeline,
        graphs=tuple(
            graph
            for one, pool in zip(scenario.each_pool(), pools, strict=True)
            for graph in _graphs(one, pool.first_replica)
        ),
        prefixes=requests.prefix_hashes if hashed else (np.empty(0, np.int64),) * len(requests),
    )
