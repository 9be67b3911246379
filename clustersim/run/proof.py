"""Proves the plan of a scenario by execution: a small model, the scenario's plan, and steps that a replay recorded.

The steps are not made up: a small run of the same plan is simulated on the scenario's topology, and what its timeline
says (who was in which step, which operator started when) is executed, beside the order of the program and random ones.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from clustersim.legality.rule import LookedAt, Verdict, together
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.hand_over import halves, prove_hand_over
from clustersim.proof.order import orders_from_spans
from clustersim.proof.proof import RULES, Proof, graphs_of, prove
from clustersim.proof.script import Part, Script, chunked_script, owner_of, random_prompts
from clustersim.proof.shrink import shrunk, shrunk_together
from clustersim.proof.wiring import wired
from clustersim.replay.replay import replay
from clustersim.run.legality import check_scenario_plan
from clustersim.run.simulate import replay_input
from clustersim.scenario.scenario import Scenario
from clustersim.serving.config import ServingConfig
from clustersim.timeline.timeline import Timeline
from clustersim.workload.requests import Requests

PROMPTS: Final = (37, 9, 23, 14)
OUTPUT_TOKENS: Final = 5
BUDGET: Final = 24
"""Tokens of a step: prompts come in chunks, beside the decodes of others."""

Starts = list[dict[tuple[int, int, str], tuple[int, int]]]
"""Per step: (rank, layer, operator) → start and end in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioProof:
    """What proving a scenario brought.

    Parameters
    ----------
    verdict : Verdict
        Of level X; of level P as well where the plan is illegal, and was not executed.
    proof : Proof or None
    model : ModelSpec
        The small model.
    plan : ParallelPlan
        The plan of one replica of it.
    script : Script or None
        The steps.
    decode : ParallelPlan or None
        That of a decode pool, where prompts are computed under ``plan`` and go on there.
    """

    verdict: Verdict
    proof: Proof | None
    model: ModelSpec
    plan: ParallelPlan
    script: Script | None
    decode: ParallelPlan | None = None


def prove_scenario(scenario: Scenario, *, orders: int = 2) -> ScenarioProof:
    """Prove the plan of a scenario.

    Parameters
    ----------
    scenario : Scenario
    orders : int
        Random legal orders in which the nodes run as well, under the scenario's seed.

    Raises
    ------
    InputError
        When replicas that share experts have stages or split prompts.
    """
    checked = check_scenario_plan(scenario)
    if checked.verdict == "illegal":
        silent = tuple(LookedAt(id=rule, level="X", looked_at=0) for rule in RULES)
        verdict = together((checked, Verdict(violations=(), rules=silent)))
        return ScenarioProof(verdict=verdict, proof=None, model=scenario.model, plan=scenario.plan, script=None)
    scenario.refuse_split_lockstep("executed")
    if scenario.pools:
        return _prove_pools(scenario, orders)
    if scenario.plan.is_lockstep:
        return _prove_lockstep(scenario, orders)
    model, plan = shrunk(scenario.model, scenario.plan, positions=max(PROMPTS) + OUTPUT_TOKENS)
    timeline = small_run(scenario, model, plan)
    script, starts = recorded(timeline, plan, model.vocab, scenario.seed)
    graphs = graphs_of(model, plan, script)
    ready = {kind: wired(graph) for kind, graph in graphs.items()}
    order = orders_from_spans(script, ready, starts)
    proof = prove(
        model, plan, script, graphs=graphs, orders=orders, recorded={"recorded order": order}, seed=scenario.seed
    )
    return ScenarioProof(verdict=proof.verdict, proof=proof, model=model, plan=plan, script=script)


def _prove_lockstep(scenario: Scenario, orders: int) -> ScenarioProof:
    """Prove replicas that share experts, all of them as one program; no run is recorded for it."""
    model, plan = shrunk(scenario.model, scenario.plan.lockstep, positions=max(PROMPTS) + OUTPUT_TOKENS)
    script = chunked_script(
        PROMPTS, output_tokens=OUTPUT_TOKENS, budget=BUDGET, vocab=model.vocab, plan=plan, seed=scenario.seed
    )
    proof = prove(model, plan, script, orders=orders, seed=scenario.seed)
    return ScenarioProof(verdict=proof.verdict, proof=proof, model=model, plan=plan, script=script)


def _prove_pools(scenario: Scenario, orders: int) -> ScenarioProof:
    """Prove that prompts which one pool computes go on in the other one, whatever the plans of both are."""
    prefill, decode = (pool.plan.lockstep for pool in scenario.pools)
    positions = max(PROMPTS) + OUTPUT_TOKENS
    model, (source, target) = shrunk_together(scenario.model, (prefill, decode), positions=positions)
    budget = max(BUDGET, 4 * source.sp.degree)
    plans = source, target
    steps = halves(model, plans, PROMPTS, output_tokens=OUTPUT_TOKENS, budget=budget, seed=scenario.seed)
    proof = prove_hand_over(model, plans, steps, orders=orders, seed=scenario.seed)
    return ScenarioProof(
        verdict=proof.verdict, proof=proof, model=model, plan=source, script=steps.whole, decode=target
    )


def small_run(scenario: Scenario, model: ModelSpec, plan: ParallelPlan) -> Timeline:
    """Simulate a few short requests of a small model on the scenario's topology, and return the timeline."""
    # Room for a segment on every SP rank, and blocks for everything: what is proven is the plan.
    serving = ServingConfig(max_batch_tokens=max(BUDGET, 4 * plan.sp.degree), kv_blocks=1024)
    requests = Requests(
        arrived_at_ns=np.zeros(len(PROMPTS), np.int64),
        prompt_tokens=np.array(PROMPTS),
        output_tokens=np.full(len(PROMPTS), OUTPUT_TOKENS),
        source="the proof",
    )
    small = replace(scenario, model=model, plan=plan, serving=serving, run=replace(scenario.run, horizon_ns=None))
    return replay(replay_input(small, requests)).timeline


def recorded(timeline: Timeline, plan: ParallelPlan, vocab: int, seed: int) -> tuple[Script, Starts]:
    """Return the steps that a timeline of one replica recorded, and when each of their operators ran."""
    slots: dict[int, int] = {}
    steps, chunks, decodes = timeline.steps, timeline.chunks, timeline.decodes
    for first, count, slot in zip(*(steps[name].tolist() for name in ("step", "count", "slot")), strict=True):
        slots |= dict.fromkeys(range(first, first + count), slot)
    carried: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    episodes = zip(*(decodes[name].tolist() for name in ("slot", "request", "first_step", "last_step")), strict=True)
    for slot, request, first, last in episodes:
        for step in range(first, last + 1):
            if slots[step] == slot:
                carried[step].append((request, 1, True))
    for step, request, count in zip(*(chunks[name].tolist() for name in ("step", "request", "count")), strict=True):
        carried[step].append((request, count, False))
    computed = dict.fromkeys(range(len(PROMPTS)), 0)
    parts = []
    for step in sorted(slots):
        here = []
        for request, count, decoding in sorted(carried[step], key=lambda one: (not one[2], one[0])):
            here.append(
                Part(
                    sequence=request, start=computed[request], count=count, decodes=decoding,
                    owner=owner_of(request, plan),
                )
            )  # fmt: skip
            computed[request] += count
        parts.append(tuple(here))
    script = Script(prompts=random_prompts(PROMPTS, vocab, seed), output_tokens=OUTPUT_TOKENS, steps=tuple(parts))
    return script, _starts(timeline, sorted(slots))


def _starts(timeline: Timeline, steps: list[int]) -> Starts:
    at = {step: index for index, step in enumerate(steps)}
    found: Starts = [{} for _ in steps]
    spans = timeline.unfold()
    columns = (spans.start_ns, spans.end_ns, spans.rank, spans.layer, spans.name, spans.step)
    for start, end, rank, layer, name, step in zip(*(column.tolist() for column in columns), strict=True):
        found[at[step]][rank, layer, spans.names[name]] = start, end
    return found
