"""One scenario, start to end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array, to_ns
from clustersim.cost.points import read_points
from clustersim.cost.protocol import CostModel
from clustersim.cost.roofline import RooflineCost
from clustersim.cost.table import TableCost
from clustersim.errors import IllegalPlanError, InputError, Problem
from clustersim.model.architecture import ModelSpec
from clustersim.plan.reshard import kv_shards
from clustersim.replay.compiled.choice import expected_s
from clustersim.replay.input import CompiledMode, HostPool, PoolInput
from clustersim.replay.replay import Progress, ReplayInput, ReplayResult, replay
from clustersim.run.legality import check_scenario_plan, pool_blocks, scenario_memory, violation_lines
from clustersim.run.prefixes import Figures, prefix_figures
from clustersim.run.priced import KeptPrices, priced
from clustersim.run.requests import request_columns
from clustersim.run.step_rows import StepRows
from clustersim.scenario.scenario import Scenario
from clustersim.serving.config import ServingConfig
from clustersim.timeline.timeline import Timeline
from clustersim.timeline.tokens import TokenTimes, token_times
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.requests import Requests

FEW: Final = 100
"""Requests that are drawn to see whether they can be."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult:
    """What simulating a scenario brought.

    Parameters
    ----------
    scenario : Scenario
    requests : mapping of arrays
        The columns of ``requests.parquet``; what did not happen may be masked.
    times : TokenTimes
        When its requests got their tokens.
    replayed : ReplayResult
    input : ReplayInput
        What the replay was a function of.
    simulate_s : float
        Wall seconds that the replay took.
    notes : tuple of str
        What a reader of the numbers must know of how they were made.
    """

    scenario: Scenario
    requests: Mapping[str, Any]
    times: TokenTimes
    replayed: ReplayResult
    input: ReplayInput
    simulate_s: float
    notes: tuple[str, ...] = ()

    @property
    def timeline(self) -> Timeline:
        """The folded timeline."""
        return self.replayed.timeline

    @property
    def token_gaps(self) -> tuple[Int64Array, Int64Array]:
        """Times between consecutive tokens of a request, as (values, weights) in ns."""
        return self.times.gaps

    @cached_property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of requests, as figures are worked out from them: with NaN for what did not happen."""
        return {
            name: np.where(values.mask, np.nan, values.data) if isinstance(values, np.ma.MaskedArray) else values
            for name, values in self.requests.items()
        }

    @cached_property
    def prefix_cache(self) -> Figures | None:
        """How much of the prompts was cached (``run.prefixes``); None where prefixes are not kept."""
        serving = self.scenario.serving
        kept = serving.prefix_caching
        return prefix_figures(self.input.requests, self.columns, serving.kv_block_tokens) if kept else None

    @cached_property
    def step_rows(self) -> StepRows:
        """Its steps, as rows that are the same figures in both replays."""
        return StepRows(self.timeline, self.scenario.serving.kv_block_tokens)


def simulate(
    scenario: Scenario,
    progress: Progress | None = None,
    processes: int | None = 1,
    requests: Requests | None = None,
    executor: Executor | None = None,
    compiled: CompiledMode = "auto",
    kept: KeptPrices | None = None,
) -> RunResult:
    """Simulate a scenario.

    Parameters
    ----------
    scenario : Scenario
    progress : callable, optional
        Called with (now in ns, requests accounted for, requests).
    processes : int or None
        How many processes may replay replicas that nothing connects; None for as many as there are cores to use and
        work to do. The result does not depend on it.
    requests : Requests, optional
        Those of the scenario, where they are at hand.
    executor : Executor, optional
        Where these processes are, but for this one; by default they are started on this machine.
    compiled : str
        Which lanes are compiled, where they can be: ``auto`` (where it pays), ``always`` or ``never``. The result does
        not depend on it.
    kept : KeptPrices, optional
        Prices of earlier runs, for those that are priced alike, and of this one for later ones. The result does not
        depend on it.

    Raises
    ------
    InputError
        When code of the scenario may not run, or the trace is broken, the model does not fit into the devices, or a
        group can't run the algorithm that is named for its collective.
    IllegalPlanError
        When the plan breaks rules so that nothing can be made of it; whoever wants any illegal plan refused checks it
        first (:func:`clustersim.run.legality.check_scenario`).
    StallError
        When the simulation cannot go on.
    """
    scenario.refuse_code()
    requests = scenario.requests() if requests is None else requests
    try:
        behind_s = 0.0 if kept is None else kept.behind_s
        inputs = replace(replay_input(scenario, requests, kept), compiled=compiled, behind_s=behind_s)
        started = time.perf_counter()
        replayed = replay(inputs, progress, processes, executor)
    except (ArithmeticError, LookupError, ValueError):  # an illegal plan may have no shape at all
        verdict = check_scenario_plan(scenario)
        if not verdict.violations:
            raise
        lines = "\n".join(violation_lines(scenario, verdict))
        raise IllegalPlanError(f"{scenario.name} is illegal, so it was not simulated:\n{lines}") from None
    except InputError as error:  # what only prices can tell, such as a group for which an algorithm is not made
        raise InputError(
            scenario.problem(found.path, found.message) if found.path else found for found in error.problems
        ) from None
    took = time.perf_counter() - started
    if kept is not None:
        kept.behind_s += expected_s(requests)
    times = token_times(replayed.timeline, len(requests.prompt_tokens))
    return RunResult(
        scenario=scenario,
        requests=request_columns(requests, inputs, replayed, times, to_ns(scenario.engine.front_end_s)),
        times=times,
        replayed=replayed,
        input=inputs,
        simulate_s=took,
        notes=(
            *_too_long(requests, scenario.model),
            *_shared_prefixes(requests, scenario.serving),
            *(
                note
                for cost in dict.fromkeys(pool.pricer.cost for pool in inputs.pools)
                for note in _outside_table(cost)
            ),
        ),
    )


def _too_long(requests: Requests, model: ModelSpec) -> tuple[str, ...]:
    """Say how many requests are longer than the model's context window; the last token needs no position."""
    limit = model.max_positions
    positions = requests.prompt_tokens + np.maximum(requests.output_tokens - 1, 0)
    count = 0 if limit is None else int((positions > limit).sum())
    if not count:
        return ()
    are = "request is" if count == 1 else "requests are"
    return (f"{count:,} {are} longer than the context window of {limit:,} tokens, and served all the same.",)


def _shared_prefixes(requests: Requests, serving: ServingConfig) -> tuple[str, ...]:
    """Say that shared prefixes are computed in full all the same, or that none are known."""
    if serving.prefix_caching:
        return () if requests.prefix_hashes is not None else ("Nothing says which prompts share a prefix: none does.",)
    if requests.prefix_hashes is None:
        return ()
    blocks = np.concatenate([np.empty(0, np.int64), *requests.prefix_hashes])
    repeated = len(blocks) - len(np.unique(blocks))
    if not repeated:
        return ()
    share = repeated / len(blocks)
    return (
        f"{share:.0%} of the prompts' blocks came before in this workload; serving.prefix_caching is off, so all are "
        f"computed.",
    )


def _outside_table(cost: CostModel) -> tuple[str, ...]:
    """Say where durations were asked for that a measured table does not cover."""
    if not isinstance(cost, TableCost):
        return ()
    return tuple(
        f"{count:,} prices of {op} lay outside the measured table; the roofline, scaled at its edge, stood in."
        for op, count in cost.outside.items()
        if count
    )


def cost_model(scenario: Scenario) -> CostModel:
    """Return what prices operators: the roofline, or the scenario's table of measured points before it."""
    roofline = RooflineCost(scenario.topology.device.running(scenario.engine.family), scenario.precision)
    if scenario.cost_table is None:
        return roofline
    points, name = read_points(scenario.cost_table), scenario.topology.device.name
    own = [one for one in points if one.device in {None, name}]
    if not own:
        measured = ", ".join(dict.fromkeys(one.device for one in points if one.device))
        raise InputError(scenario.problem("cost.table", f"has no point of device {name!r}; it has some of {measured}"))
    return TableCost(own, roofline)


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
            serving=one.serving,
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
    )


def refuse_unreadable(scenario: Scenario) -> None:
    """Read the files that simulating would read: its trace, or some requests that are drawn, and its measurements.

    Raises
    ------
    InputError
        As simulating would.
    """
    drawn = scenario.workload
    if isinstance(drawn, DrawnWorkload):
        scenario = replace(scenario, workload=replace(drawn, requests=min(drawn.requests, FEW)))
    scenario.requests()
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
        message = (
            f"weights ({worst.weights_bytes / 2**30:.1f} GiB) and buffers ({worst.buffers_bytes / 2**30:.1f} GiB) of "
            f"one rank leave no room for K/V in {scenario.serving.memory_utilization:.0%} of {device.name}'s "
            f"{device.memory_bytes / 2**30:.1f} GiB; raise plan.tp or plan.pp, or use a smaller weight format"
        )
        raise InputError(scenario.problem("plan", message))
    return blocks
