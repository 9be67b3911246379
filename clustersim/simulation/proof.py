"""Proves the plan of a scenario by execution: a small model, the scenario's plan, and steps that a replay recorded.

The steps are not made up: a small run of the same plan is simulated on the scenario's topology, and what its timeline
says (who was in which step, which operator started when) is executed, beside the order of the program and random ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from clustersim.legality.rule import LookedAt, Verdict, together
from clustersim.model.architecture import ModelSpec
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.brought import of_moves
from clustersim.proof.course import gone_astray
from clustersim.proof.execution import Event
from clustersim.proof.hand_over import Halves, halves, prove_hand_over
from clustersim.proof.order import orders_from_spans
from clustersim.proof.proof import RULES, Proof, graphs_of, prove, unexecuted
from clustersim.proof.script import Part, Script, chunked_script, in_halves, owner_of, random_prompts
from clustersim.proof.shrink import shrunk, shrunk_together
from clustersim.proof.wiring import wired
from clustersim.replay.replay import replay
from clustersim.scenario.scenario import Pool, Scenario
from clustersim.serving.config import ServingConfig
from clustersim.simulation.legality import check_scenario_plan
from clustersim.simulation.replay_input import replay_input
from clustersim.timeline.parts import rows_of
from clustersim.timeline.soundness import refuse_unsound
from clustersim.timeline.tables import Table
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass
from clustersim.workload.requests import Requests

PROMPTS: Final = (37, 9, 23, 14)
OUTPUT_TOKENS: Final = 5
BUDGET: Final = 24
"""Tokens of a step: prompts come in chunks, beside the decodes of others."""

Starts = list[dict[tuple[int, int, str, int], tuple[int, int]]]
"""Per step: (rank, layer, operator, half of the step) → start and end in ns."""


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
    if scenario.hands_over:
        return _prove_pools(scenario, orders)
    if scenario.plan.is_lockstep:
        return _prove_lockstep(scenario, orders)
    model, plan = shrunk(scenario.model, scenario.plan, positions=max(PROMPTS) + OUTPUT_TOKENS)
    timeline = small_run(scenario, model, plan)
    script, starts = recorded(timeline, plan, model.vocab, scenario.seed)
    if (astray := gone_astray(script)) is not None:
        proof = unexecuted(astray, plan, model)
        return ScenarioProof(verdict=proof.verdict, proof=proof, model=model, plan=plan, script=script)
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
    plans, order, brought = (source, target), {}, None
    if source.sp.whole or target.sp.whole:  # no run is recorded for those that share experts
        budget = max(BUDGET, 4 * source.sp.degree)
        steps = halves(model, plans, PROMPTS, output_tokens=OUTPUT_TOKENS, budget=budget, seed=scenario.seed)
    else:
        timeline = small_run(scenario, model, source, target)
        told = [recorded(timeline, one, model.vocab, scenario.seed, replica=at) for at, one in enumerate(plans)]
        (first, _), (second, starts) = told
        steps = Halves(prefill=first, decode=second)
        if (astray := gone_astray(steps.whole)) is not None:
            proof = unexecuted(astray, source, model)
            return ScenarioProof(
                verdict=proof.verdict, proof=proof, model=model, plan=source, script=steps.whole, decode=target
            )
        prompts, decodes = (_recorded_order(model, one, *found) for one, found in zip(plans, told, strict=True))
        order = {"recorded order": (prompts, decodes)}
        brought = of_moves(
            model,
            plans,
            timeline.moves,
            _first_ranks(timeline),
            _first_reads(second, starts),
            scenario.precision.kv_bytes,
        )
    proof = prove_hand_over(model, plans, steps, orders=orders, recorded=order, brought=brought, seed=scenario.seed)
    return ScenarioProof(
        verdict=proof.verdict, proof=proof, model=model, plan=source, script=steps.whole, decode=target
    )


def _recorded_order(model: ModelSpec, plan: ParallelPlan, script: Script, starts: Starts) -> list[Event]:
    """Return the order in which a recorded timeline ran the nodes of its steps."""
    graphs = {kind: wired(graph) for kind, graph in graphs_of(model, plan, script).items()}
    return orders_from_spans(script, graphs, starts)


def _first_ranks(timeline: Timeline) -> tuple[int, int]:
    """Return the first global rank of each of two replicas."""
    first, second = timeline.layout.stage_base(np.array([0, 1]), np.array([0, 0])).tolist()
    return first, second


def _first_reads(script: Script, starts: Starts) -> dict[int, int]:
    """Return when the first step of each sequence starts; it may read what was moved then."""
    found: dict[int, int] = {}
    for parts, spans in zip(script.steps, starts, strict=True):
        begins = min((start for start, _ in spans.values()), default=0)
        for part in parts:
            found[part.sequence] = min(found.get(part.sequence, begins), begins)
    return found


def small_run(scenario: Scenario, model: ModelSpec, plan: ParallelPlan, decode: ParallelPlan | None = None) -> Timeline:
    """Simulate a few short requests of a small model on the scenario's topology, and return the timeline.

    With ``decode``, requests go on in a second pool of one replica, where the first one of the scenario's pool is.
    """
    # Room for a segment on every SP rank, and blocks for everything: what is proven is the plan.
    transfer = scenario.serving.transfer if scenario.hands_over else "whole"
    serving = ServingConfig(max_batch_tokens=max(BUDGET, 4 * plan.sp.degree), kv_blocks=1024, transfer=transfer)
    plans = [plan]
    if decode is not None:
        plans = [_placed(*one) for one in zip((plan, decode), scenario.pools, strict=True)]
    pools = tuple(replace(pool, plan=one, serving=serving) for pool, one in zip(scenario.pools, plans, strict=True))
    requests = Requests(
        arrived_at_ns=np.zeros(len(PROMPTS), np.int64),
        prompt_tokens=np.array(PROMPTS),
        output_tokens=np.full(len(PROMPTS), OUTPUT_TOKENS),
        source="the proof",
    )
    run = replace(scenario.run, horizon_ns=None)
    small = replace(scenario, model=model, pools=pools, run=run)
    return replay(replace(replay_input(small, requests), first_token="prefill")).timeline  # no client throws one away


def _placed(small: ParallelPlan, pool: Pool) -> ParallelPlan:
    """Return the plan of one replica on the devices of the pool's first one."""
    mesh = Mesh(plan=pool.plan)
    return replace(small, placement=tuple(mesh.device(rank) for rank in range(small.replica_ranks)))


def recorded(
    timeline: Timeline, plan: ParallelPlan, vocab: int, seed: int, *, replica: int = 0
) -> tuple[Script, Starts]:
    """Return the steps that a timeline recorded of one replica, and when each of their operators ran.

    What the second of two replicas carries was prefilled, and its first token sampled, on the other one.

    Raises
    ------
    InputError
        When the tables can't be those of a timeline.
    """
    refuse_unsound(timeline, Path("timeline of a small run"))
    slots: dict[int, int] = {}
    owners = _owners(timeline, replica)
    steps, chunks, decodes = (_of(table, replica) for table in (timeline.steps, timeline.chunks, timeline.decodes))
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
    computed = Counter(dict(enumerate(PROMPTS)) if replica else {})
    parts = []
    for step in sorted(slots):
        here = []
        for request, count, decoding in sorted(carried[step], key=lambda one: (not one[2], one[0])):
            here.append(
                Part(
                    sequence=request, start=computed[request], count=count, decodes=decoding,
                    owner=owners.get(request, owner_of(request, plan)),
                )
            )  # fmt: skip
            computed[request] += count
        parts.append(in_halves(here, plan))
    script = Script(prompts=random_prompts(PROMPTS, vocab, seed), output_tokens=OUTPUT_TOKENS, steps=tuple(parts))
    return script, _starts(timeline, sorted(slots), replica)


def _owners(timeline: Timeline, replica: int) -> dict[int, int]:
    """Return the SP ranks that keep sequences, as far as the plan leaves it open."""
    kept = _of(timeline.owners, replica)
    return dict(zip(kept["request"].tolist(), kept["owner"].tolist(), strict=True))


def _of(table: Table, replica: int) -> Table:
    return rows_of(table, table["replica"] == replica)


def _starts(timeline: Timeline, steps: list[int], replica: int) -> Starts:
    at = {step: index for index, step in enumerate(steps)}
    found: Starts = [{} for _ in steps]
    spans = timeline.unfold()
    first = int(timeline.layout.stage_base(np.array([replica]), np.array([0]))[0])
    mine = np.flatnonzero((spans.replica == replica) & (spans.step >= 0))  # transfers from pool to pool are of no step
    columns = (spans.start_ns, spans.end_ns, spans.rank, spans.layer, spans.name, spans.half, spans.step)
    for start, end, rank, layer, name, half, step in zip(*(column[mine].tolist() for column in columns), strict=True):
        found[at[step]][rank - first, layer, spans.names[name], half] = start, end
    return found
