"""What the replay of a scenario is a function of: plans, prices, K/V blocks, or why there is no such."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Final

from clustersim.cost.check_prices import check_prices
from clustersim.cost.grid import measured_by, with_grids
from clustersim.cost.points import read_points
from clustersim.cost.protocol import CostModel
from clustersim.cost.roofline import RooflineCost
from clustersim.cost.table import TableCost
from clustersim.errors import InputError, Problem
from clustersim.plan.reshard import kv_shards
from clustersim.replay.input import HostPool, PoolInput
from clustersim.replay.replay import ReplayInput
from clustersim.scenario.scenario import Scenario
from clustersim.serving.config import ServingConfig
from clustersim.simulation.legality import pool_blocks, scenario_memory
from clustersim.simulation.priced import KeptPrices, priced
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.requests import Requests

FEW: Final = 100
MANY: Final = 1_000_000
"""Requests that are drawn to see whether they can be."""


def cost_model(scenario: Scenario) -> CostModel:
    """Return what prices operators: the roofline, or the scenario's table of measured points before it."""
    engine = scenario.engine
    names = dict.fromkeys((engine.kernels or engine.name, engine.name))
    device = scenario.topology.device.running(*names, quantises=engine.quantisation == "own_kernel")
    roofline = RooflineCost(device, scenario.precision, engine.kernel_time)
    if scenario.cost_table is None:
        return with_grids(roofline)
    points, name = read_points(scenario.cost_table), scenario.topology.device.name
    own = [one for one in points if one.device in {None, name}]
    if not own:
        measured = ", ".join(dict.fromkeys(one.device for one in points if one.device))
        raise InputError(scenario.problem("cost.table", f"has no point of device {name!r}; it has some of {measured}"))
    check_prices(scenario.cost_table, own, device)
    return TableCost(own, roofline, measured_by(roofline))


def cost_models(scenario: Scenario) -> dict[str, CostModel]:
    """Return what prices operators on the device of each pool, by its name.

    Raises
    ------
    InputError
        When the table of measured points does not say of which of several devices they are, or has none of one.
    """
    found = {one.topology.device.name: one for one in scenario.each_pool()}
    nameless = scenario.cost_table is not None and any(one.device is None for one in read_points(scenario.cost_table))
    if nameless and len(found) > 1:
        message = f"the pools are on {' and '.join(found)}: expected a column 'device' that says which was measured"
        raise InputError(scenario.problem("cost.table", message))
    return {name: cost_model(one) for name, one in found.items()}


def replay_input(scenario: Scenario, requests: Requests, kept: KeptPrices | None = None) -> ReplayInput:
    """Resolve a scenario into what a replay is a function of; what is priced alike shares what is kept."""
    each = scenario.each_pool()
    scenario.refuse_split_lockstep("simulated")
    found = (priced if kept is None else kept.of)(scenario, cost_models(scenario))
    pools = tuple(
        PoolInput(
            plan=one.plan,
            blueprints=blueprints,
            pricer=pricer,
            serving=_caching(one.serving, requests),
            kv_blocks=kv_blocks(one),
            host=host_pool(one),
        )
        for one, (blueprints, pricer) in zip(each, found.pools, strict=True)
    )
    plans, kv_bytes = [pool.plan for pool in pools], scenario.precision.kv_bytes
    return ReplayInput(
        topology=found.comm.topology,
        pools=pools,
        comm=found.comm,
        requests=requests,
        mode=scenario.run.replay,
        horizon_ns=scenario.run.horizon_ns,
        seed=scenario.seed,
        shards=tuple(shard for pair in pairwise(plans) for shard in kv_shards(scenario.model, *pair, kv_bytes)),
        faults=scenario.faults,
        first_token=scenario.first_token,
    )


def _caching(serving: ServingConfig, requests: Requests) -> ServingConfig:
    """Return serving decisions without a cache of prefixes where nothing says that prompts share any."""
    shared = requests.prefix_hashes is not None
    return serving if shared or not serving.prefix_caching else replace(serving, prefix_caching=False)


def refuse_unreadable(scenario: Scenario) -> None:
    """Read the files that simulating would read: its trace, or some requests that are drawn, and its measurements.

    Raises
    ------
    InputError
        As simulating would.
    """
    drawn = isinstance(scenario.workload, DrawnWorkload)
    scenario.with_few_requests(FEW if drawn else MANY).requests()
    cost_models(scenario)


def refusals(scenario: Scenario) -> tuple[Problem, ...]:
    """Return why a scenario whose plan is legal can't be simulated all the same; empty where it can."""

    def whole() -> None:
        scenario.refuse_split_lockstep("simulated")
        host_pool(scenario)
        for one in scenario.each_pool():
            kv_blocks(one)

    try:
        whole()
    except InputError as error:
        return tuple(error.problems)
    return ()


def host_pool(scenario: Scenario) -> HostPool | None:
    """Return the host memory that sequences are swapped to; None where a preempted one is computed anew.

    Raises
    ------
    InputError
        When the memory of a host holds no block.
    """
    serving = scenario.serving
    if serving.preemption != "swap" or serving.host_kv_bytes is None:
        return None
    per_token = [rank.kv_bytes_per_token for rank in scenario_memory(scenario)]
    block_bytes = tuple(math.ceil(one * serving.kv_block_tokens) for one in per_token)
    blocks = int(serving.host_kv_bytes // max(block_bytes))
    if blocks < 1:
        message = f"holds no block of {serving.kv_block_tokens} tokens: it takes {max(block_bytes):,} bytes per device"
        raise InputError(scenario.problem("serving.host_kv", message))
    return HostPool(blocks=blocks, block_bytes=block_bytes)


def kv_blocks(scenario: Scenario) -> int:
    """Return the blocks of each K/V pool: as given, or what device memory leaves.

    Raises
    ------
    InputError
        When weights and buffers leave no room for one block.
    """
    memory = scenario_memory(scenario)
    blocks = pool_blocks(scenario, memory)
    if blocks < 1:
        device = scenario.topology.device
        worst = max(memory, key=lambda rank: rank.weights_bytes + rank.buffers_bytes)
        kept = (worst.weights_bytes, worst.buffers_bytes, scenario.engine.pool.outside_bytes, device.memory_bytes)
        weights, buffers, outside, memory_ = (f"{size / 2**30:.1f} GiB" for size in kept)
        message = (
            f"weights ({weights}), buffers ({buffers}) and what the engine keeps ({outside}) of one rank leave no room "
            f"for K/V in {scenario.serving.memory_utilization:.0%} of {device.name}'s {memory_}; raise plan.tp or "
            "plan.pp, or use a smaller weight format"
        )
        raise InputError(scenario.problem("plan", message))
    return blocks
