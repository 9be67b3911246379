"""What a run will come to, roughly, before it starts: so that nobody waits for what can't end, or is killed for memory.

No prediction: steps and operators within a factor of about three, from the sizes of some requests, a decode step that
reads all weights once, and the law of Little [1]_. Contention, preemption and prefix reuse are left out.

.. [1] J. D. C. Little, "A proof for the queuing formula L = λW", Operations Research 9(3), 1961.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.compiled import COMPILE_S
from clustersim.graph.blueprint import Blueprint, StepKind
from clustersim.graph.expand import step_blueprints
from clustersim.limits import Limits
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.legality import pool_blocks, scenario_memory
from clustersim.values import dataclass
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.requests import Requests

_SAMPLE: Final = 1_000
_WORTH_A_SAMPLE: Final = 1_000_000
_SLOWER: Final = 2.0
"""Attention, communication and the prompts in between double what a decode step takes to read weights (assumed)."""
FULL_S_PER_SPAN: Final = 1.8e-6
"""Of ``full``: 10 and 40 requests of the quickstart took 1.76 and 1.70 µs per operator …"""
FULL_S_PER_STEP: Final = 0.4e-3
"""… and two layers on two ranks, 74 operators a step, 0.5 ms a step."""
FOLDED_S_PER_REQUEST: Final = 30e-6
"""Of ``folded``, what checks and report take: a million requests 20 to 30 s, of one node and of a fleet."""
FOLDED_S_PER_STEP: Final = 5e-6
"""2 to 10 µs a step where the core is not compiled, or can't simulate them."""
COMPILED_S_PER_STEP: Final = 0.1e-6
COMPILED_S_PER_PASS: Final = 5e-6
"""Of the core where it is compiled, as where it would take ``COMPILE_S`` else: some 0.05 µs a step with one stage, and
with stages 3.6 and 9 µs of a pass of each, on PP 8 and 2."""
STAGED_S_PER_PASS: Final = 12e-6
"""With stages, of a pass of each: 7 to 17 µs for 40 to 1,000 requests on PP 2, 4 and 8 of the quickstart."""
LAID_OUT_S_PER_NODE: Final = 0.15e-6
"""Where operators of a rank overlap (SP, experts over replicas, two batches), of each in a pass that is laid out: 0.05
to 0.4 µs of SP 2 and 4, of one stage and of two, 0.23 of DeepSeek-V3 with wide EP, 0.4 of its two batches."""
SLOWED_S_PER_STEP: Final = 1e-3
"""Where a link is weak or a device slow, and passes are chains: 0.7 and 0.9 ms a step of the quickstart."""
BYTES_PER_REQUEST: Final = 1_400
"""A million requests took 1.57 GB with checks and report …"""
BYTES_BEYOND: Final = 150
"""… and of a fleet, what each took that was more than …"""
PAGED_REQUESTS: Final = 4_000_000
"""… so many: a page holds no passes of more, and columns of many are in files. Both processes together: 3 and 6 million
took 1.2 and 1.3 GB, of which what they share and find at once grew by some 100 bytes a request."""
SHORT_STAGES_S_PER_PASS: Final = 25e-6
"""With stages whose K/V pool is too small for who is there: 10 to 33 µs on PP 2, 4 and 8, and 46 for 100 × 130,000
output tokens on TP 8 × PP 2."""
_CHUNKS_PER_ROW: Final = 40.0
"""Where a K/V pool is too small, who gave way is computed anew in chunks, each a row: 0.2 to 0.8 rows a step where
contexts are 32 chunks, 0.03 where they are one; more chunks than these (assumed) make every step a row."""
BYTES_PER_PASS: Final = 450
"""Of a pass that is a row of its own: 300 where 1.6 million were replayed, and half as much for the report."""
BYTES_PER_SPAN: Final = 35
"""Of ``full``, whose operators each have instants of their own: 37 and 32 where 11 and 16 million were replayed."""
BYTES_AT_LEAST: Final = 2e8
"""Of a process that has read a scenario."""

PROOF_S_PER_NODE: Final = 60e-6
PROOF_BYTES_PER_NODE: Final = 5_000
"""Of a proof: 3,582 nodes of the quickstart took 54 µs each in an order, 39,728 nodes of PP 16 × TP 8 240 MB."""
_PROOF_STEPS: Final = 10
_PROOF_POSITIONS: Final = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Requests, steps, operators (of ``full``: None where they are folded), bytes of memory and seconds, roughly."""

    requests: int
    steps: float
    spans: float | None
    memory_bytes: float
    seconds: float


def requests_within(scenario: Scenario, limits: Limits, requests: Requests | None = None) -> Requests:
    """Return the requests of a scenario, those that are at hand or read or drawn, where a run is within its limits.

    Raises
    ------
    InputError
        With the estimate and what to change, before many requests are drawn; or what is wrong with the workload.
    """
    if requests is None:
        refuse_many(scenario, limits)
    requests = scenario.requests() if requests is None else requests
    _refuse(scenario, estimate(scenario, requests, len(requests)), limits)
    return requests


def refuse_many(scenario: Scenario, limits: Limits) -> None:
    """Refuse requests that are too many for the limits of a run, before they are drawn or repeated.

    Raises
    ------
    InputError
        As :func:`requests_within`.
    """
    asked = scenario.num_requests
    if asked is not None and asked > _WORTH_A_SAMPLE:
        sample = scenario.with_few_requests(_SAMPLE).requests()
        repeats = isinstance(scenario.workload, DrawnWorkload) or scenario.workload.repeat
        _refuse(scenario, estimate(scenario, sample, asked if repeats else len(sample)), limits)


def _refuse(scenario: Scenario, found: Estimate, limits: Limits) -> None:
    events = "" if found.spans is None else f" of {found.spans:,.0f} operators, each an event,"
    what = f"{found.requests:,} requests with about {found.steps:,.0f} steps{events}"
    advice = "simulate fewer requests or shorter ones (workload)"
    if found.spans is not None:
        advice += ", or use --replay folded: it gives the same timeline"
    limits.refuse(what, advice, memory_bytes=found.memory_bytes, seconds=found.seconds)


def estimate(scenario: Scenario, requests: Requests, count: int) -> Estimate:
    """Return what a run comes to.

    Parameters
    ----------
    scenario : Scenario
    requests : Requests
        Its requests, or the first of them.
    count : int
        How many there are in all.
    """
    full = scenario.run.replay == "full"
    slowed = _slowed_share(scenario, requests, count)
    pools = scenario.each_pool()
    steps = spans = rows = folded_s = 0.0
    for number, one in enumerate(pools):
        decode_steps, anew = _decode_steps(one, requests, count)
        carried = {"prefill": _prompt_steps(one, requests, count), "decode": decode_steps}
        if len(pools) > 1:
            carried = {"prefill": carried["prefill"]} if number == 0 else {"decode": carried["decode"]}
        if full or not _is_chain(one):
            blueprints = step_blueprints(one.model, one.plan.lockstep, one.precision)
            nodes = math.fsum(taken * _nodes(blueprints[kind]) for kind, taken in carried.items())
            spans += one.plan.tp * one.plan.sp.degree * nodes if full or slowed else 0.0
            folded_s += LAID_OUT_S_PER_NODE * nodes * (1 + one.plan.is_two_batch)
        taken = math.fsum(carried.values())
        steps += taken
        rows += taken * (one.plan.pp if full or one.plan.pp > 1 else anew)
        per_pass_s = SHORT_STAGES_S_PER_PASS if anew else STAGED_S_PER_PASS
        core_s = taken * (one.plan.pp * per_pass_s if one.plan.pp > 1 else FOLDED_S_PER_STEP)
        if core_s + FOLDED_S_PER_REQUEST * count > COMPILE_S and not anew and len(pools) == 1 and _may_be_compiled(one):
            core_s = taken * (one.plan.pp * COMPILED_S_PER_PASS if one.plan.pp > 1 else COMPILED_S_PER_STEP)
        folded_s += core_s
    slowed_s = slowed * SLOWED_S_PER_STEP * steps + (1 - slowed) * folded_s
    seconds = FULL_S_PER_SPAN * spans + FULL_S_PER_STEP * steps if spans else slowed_s
    of_requests = BYTES_PER_REQUEST * min(count, PAGED_REQUESTS) + BYTES_BEYOND * max(count - PAGED_REQUESTS, 0)
    return Estimate(
        requests=count,
        steps=steps,
        spans=spans if full else None,
        memory_bytes=BYTES_AT_LEAST + of_requests + BYTES_PER_PASS * rows + BYTES_PER_SPAN * spans * full,
        seconds=seconds + FOLDED_S_PER_REQUEST * count,
    )


def _may_be_compiled(scenario: Scenario) -> bool:
    """Return whether the core may simulate a pool, as far as a scenario tells."""
    serving = scenario.serving
    named = isinstance(serving.scheduler, str) and isinstance(serving.router, str)
    slowed = any(not fault.fails for fault in scenario.faults)
    return named and not serving.prefix_caching and not slowed and _is_chain(scenario)


def _slowed_share(scenario: Scenario, requests: Requests, count: int) -> float:
    """Return for which part of the time in which requests come some link is weak or some device slow."""
    lasts = requests.span_ns * count // max(len(requests), 1)
    slow = sorted((fault for fault in scenario.faults if not fault.fails), key=lambda fault: fault.at_ns)
    if requests.concurrency is not None or not lasts:  # nobody knows how long the run is
        return float(bool(slow))
    total = until = 0
    for fault in slow:
        last = lasts if fault.until_ns is None else min(fault.until_ns, lasts)
        total += max(0, last - max(fault.at_ns, until))
        until = max(until, last)
    return total / lasts


def _is_chain(scenario: Scenario) -> bool:
    """Return whether the operators of a pass of its only pool run one after the other, so that slow ones do, too."""
    plan = scenario.plan
    return plan.sp.degree == 1 and not plan.is_lockstep and not plan.is_two_batch


def _prompt_steps(scenario: Scenario, requests: Requests, count: int) -> float:
    """Return how many steps carry prompts, of all replicas: one for each, and more where one exceeds the budget."""
    return count * float(np.ceil(requests.prompt_tokens / scenario.serving.max_batch_tokens).mean())


def _decode_steps(scenario: Scenario, requests: Requests, count: int) -> tuple[float, float]:
    """Return how many steps decode, of all replicas: the tokens, over the sequences that share a step.

    And which share of steps are rows of their own because the K/V pool has no room for all who could run: then
    sequences give way again and again.
    """
    output, prompt = float(requests.output_tokens.mean()), float(requests.prompt_tokens.mean())
    plan, serving, device = scenario.plan, scenario.serving, scenario.topology.device
    memory = scenario_memory(scenario)
    weights_s = math.fsum(rank.weights_bytes for rank in memory) / device.memory_bytes_per_s
    token_s = _SLOWER * weights_s + plan.pp * (scenario.engine.schedule_s + scenario.engine.sample_s)
    context = max(1.0, prompt + output / 2)
    places = max(1, pool_blocks(scenario, memory)) * serving.kv_block_tokens / context
    most = min(serving.max_batch_requests, max(1.0, count / plan.dp))
    if requests.concurrency is not None:
        running = requests.concurrency / plan.dp
    else:
        lasts_s = float(requests.arrived_at_ns[-1] - requests.arrived_at_ns[0]) / NS_PER_S
        rate = (len(requests) - 1) / lasts_s / plan.dp if lasts_s > 0.0 else math.inf
        running = rate * output * token_s if output else 0.0
    running = min(running, most)
    sharing = max(1.0, min(running, places) / plan.pp)
    anew = min(1.0, context / serving.max_batch_tokens / _CHUNKS_PER_ROW) if running > places else 0.0
    return count * max(0.0, output - 1.0) / sharing, anew


def refuse_large_proof(scenario: Scenario, orders: int, limits: Limits) -> None:
    """Refuse to execute a plan in more orders, or on more ranks, than time and memory allow.

    Raises
    ------
    InputError
        With the estimate and what to change.
    """
    from clustersim.proof.shrink import shrunk  # a run asks for no proof

    nodes = 0
    for one in scenario.each_pool():
        model, plan = shrunk(one.model, one.plan.lockstep, positions=_PROOF_POSITIONS)
        nodes += plan.tp * plan.sp.degree * _nodes(step_blueprints(model, plan, one.precision)["mixed"])
    nodes *= _PROOF_STEPS
    limits.refuse(
        f"executing about {nodes:,} nodes in {orders + 2:,} orders",
        "prove it in fewer orders (--orders), or a plan with fewer ranks",
        memory_bytes=BYTES_AT_LEAST + PROOF_BYTES_PER_NODE * nodes,
        seconds=PROOF_S_PER_NODE * nodes * (orders + 2),
    )


def graph_nodes(scenario: Scenario, kind: StepKind, stage: int | None) -> int:
    """Return how many nodes the graph of a step has, all ranks of a replica (or of all that share experts) drawn."""
    blueprint = step_blueprints(scenario.model, scenario.plan.lockstep, scenario.precision)[kind]
    shown = blueprint.stages if stage is None else blueprint.stages[stage : stage + 1]
    ranks = scenario.plan.lockstep.sp.degree * scenario.plan.tp
    return ranks * sum(len(unit.body.nodes) for units in shown for unit in units)


def _nodes(blueprint: Blueprint) -> int:
    """Return how many operators a rank of each stage has in a step, all stages together."""
    return sum(len(unit.body.nodes) for stage in blueprint.stages for unit in stage)
