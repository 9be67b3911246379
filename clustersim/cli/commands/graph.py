"""``clustersim graph``: the step graph of a scenario as a picture, or for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from clustersim.cli import options
from clustersim.cli.limits import largest_size
from clustersim.cli.options import refuse_graph
from clustersim.errors import IllegalPlanError, InputError, Problem
from clustersim.files import refuse_unwritable, written_whole
from clustersim.graph.batch import StepBatch
from clustersim.graph.blueprint import STEP_KINDS, StepKind
from clustersim.graph.export import WRITERS, model_facts, plan_facts, told
from clustersim.graph.prices.priced import PricedGraph
from clustersim.legality.deployment import either
from clustersim.limits import Limits
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ParallelPlan
from clustersim.report.graph_page.page import graph_page
from clustersim.report.words.run import setup_words
from clustersim.scenario.load import load
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.schema import POOLS
from clustersim.simulation.estimate import graph_nodes
from clustersim.simulation.legality import check_scenario_plan, verdict_lines
from clustersim.simulation.step import step_batch, step_graph
from clustersim.workload.limits import MAX_TOKENS

SUFFIXES: Final = (".html", *WRITERS)
NODE_BYTES: Final = {".html": 100, ".json": 390, ".dot": 300, ".graphml": 720}
"""About what a node takes in a file, measured on the quickstart; of a page what a browser unpacks (assumed)."""
MOST_SEQUENCES: Final = 1_000_000
"""Of one step (assumed: a thousand times what engines run)."""
_PROMPT, _SEQUENCES, _CONTEXT = 1024, 8, 1024


@click.command()
@click.argument("scenario")
@click.option(
    "--step", "kind", type=options.Choice(STEP_KINDS), help="What the step carries [prefill; of a decode pool decode]."
)
@click.option("--pool", type=options.Choice(POOLS), help="Of which pool, where there are two.")
@click.option(
    "-o",
    "--output",
    type=options.Written(),
    help="NAME.html, .graphml, .dot or .json [SCENARIO-STEP.html].",
)
@click.option("--tokens", type=options.Whole(1, MAX_TOKENS), help=f"Prefill, mixed: tokens of the prompt [{_PROMPT}].")
@click.option(
    "--batch", type=options.Whole(1, MOST_SEQUENCES), help=f"Decode, mixed: sequences that decode [{_SEQUENCES}]."
)
@click.option(
    "--context", type=options.Whole(1, MAX_TOKENS), help=f"Decode, mixed: tokens before the step [{_CONTEXT}]."
)
@click.option("--stage", type=options.Whole(min=0), help="Only this pipeline stage [all].")
@click.option("--replica", type=options.Whole(min=0), help="Whose devices and links [0].")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a value: plan.tp=8.")
@largest_size
def graph(
    scenario: str,
    kind: StepKind | None,
    pool: str | None,
    output: Path | None,
    tokens: int | None,
    batch: int | None,
    context: int | None,
    stage: int | None,
    replica: int | None,
    overrides: tuple[str, ...],
    max_size: float,
) -> None:
    """Write the graph of one step of SCENARIO (a path, or the name of one that ships).

    Every operator of every rank of one replica, or of all replicas where they share experts: what it works on, how long
    it takes, what it needs. HTML is for people; GraphML, DOT and JSON are for programs.
    """
    refuse_graph(scenario)
    whole = load(scenario, overrides, allow_code=False)
    whole.refuse_split_lockstep("drawn")
    loaded = _of_pool(whole, pool)
    kind = kind or ("decode" if pool == "decode" else "prefill")
    target = output if output is not None else Path(f"{loaded.name}-{kind}.html")
    problems = [*_unused(kind, tokens, batch, context), *_out_of_range(loaded, stage, replica), *_other_suffix(target)]
    if problems:
        raise InputError(problems)
    refuse_unwritable(target)
    verdict = check_scenario_plan(whole)
    if verdict.verdict != "legal":
        raise IllegalPlanError("\n".join(verdict_lines(whole, verdict)))
    nodes = graph_nodes(loaded, kind, stage)
    Limits(size_bytes=max_size).refuse(
        f"{target}: {nodes:,} nodes",
        "draw one stage (--stage), or a model with fewer layers: they are alike",
        size_bytes=nodes * NODE_BYTES[target.suffix],
    )
    tokens, context = tokens or _PROMPT, context or _CONTEXT
    step = step_batch(
        kind, loaded.model, loaded.plan.lockstep.sp,
        prompt_tokens=tokens, sequences=batch or _SEQUENCES, context_tokens=context,
    )  # fmt: skip
    priced = step_graph(loaded, step, stages=None if stage is None else (stage,), replica=replica or 0)
    together = loaded.plan.dp if loaded.plan.is_lockstep else 1
    _write(target, priced, loaded, replica or 0, stage, step_words(step, tokens, context, together))
    nodes, edges = len(priced.graph), len(priced.graph.source)
    click.echo(f"{target}: {nodes:,} nodes, {edges:,} edges")
    if loaded.plan.is_two_batch:
        click.echo("drawn as one micro-batch (ep.overlap none): two_batch lets two such overlap", err=True)


def _write(target: Path, priced: PricedGraph, scenario: Scenario, replica: int, stage: int | None, words: str) -> None:
    plan, together = scenario.plan, scenario.plan.is_lockstep
    mesh, base, ranks = Mesh(plan=plan), replica * plan.replica_ranks, plan.world if together else plan.replica_ranks
    devices = [scenario.topology.devices[mesh.device(base + rank)] for rank in range(ranks)]
    title = setup_words({"scenario": scenario.document})
    if target.suffix == ".html":
        named = scenario.name + (f", replica {replica}" if plan.dp > 1 and not together else "")
        text = graph_page(priced, title=title, subtitle=f"{words} ({named})", devices=devices)
    else:
        whose = {} if together else {"replica": replica}
        about: Mapping[str, Any] = {
            "title": f"{title}: {words}", "scenario": scenario.name, **whose, "devices": devices,
            "topology": {"devices": list(scenario.topology.devices)}, "plan": plan_facts(_drawn(plan)),
            "model": model_facts(scenario.model), "precision": told(scenario.precision),
        }  # fmt: skip
        about = about if stage is None else {**about, "stages": [stage]}
        text = WRITERS[target.suffix](priced, about)
    with written_whole(target) as beside:
        beside.write_text(text, encoding="utf-8")


def _drawn(plan: ParallelPlan) -> ParallelPlan:
    """Return what a graph is of: it shows one micro-batch, and not the two that overlap in a step of two halves."""
    ep = replace(plan.ep, overlap="none", overlap_decode_tokens=0, overlap_prefill_tokens=0)
    return replace(plan, ep=ep)


def step_words(batch: StepBatch, prompt_tokens: int, context_tokens: int, replicas: int = 1) -> str:
    """Say what a step carries; ``replicas`` that share experts each bring as much."""
    if replicas > 1:
        each = replace(batch, decode_sequences=batch.decode_sequences[:1])
        return f"{step_words(each, prompt_tokens, context_tokens)} on each of {replicas} replicas"
    count = batch.num_decodes
    decodes = f"{count:,} sequence{'s' if count > 1 else ''} behind {context_tokens:,} tokens each"
    match batch.kind:
        case "prefill":
            return f"prefill of a prompt of {prompt_tokens:,} tokens"
        case "decode":
            return f"decode of {decodes}"
        case _:
            return f"prefill of a prompt of {prompt_tokens:,} tokens with decode of {decodes}"


def _unused(kind: StepKind, tokens: int | None, batch: int | None, context: int | None) -> list[Problem]:
    """Return a problem for each option that this kind of step has no use for."""
    missing = {"prefill": {"--batch": batch, "--context": context}, "decode": {"--tokens": tokens}, "mixed": {}}[kind]
    other = "decode" if kind == "prefill" else "prefill"
    return [
        Problem(path=option, message=f"a {kind} step has none; use --step {other} or --step mixed")
        for option, value in missing.items()
        if value is not None
    ]


def _of_pool(scenario: Scenario, pool: str | None) -> Scenario:
    """Return a scenario of the pool that is named, with its name and what its plan says; or the only one.

    Raises
    ------
    InputError
        When none is named of two, or one where there are no pools.
    """
    if (pool is None) == scenario.hands_over:
        message = "there are no pools to choose from; leave it out"
        if scenario.hands_over:
            message = (
                f"there are two pools, each with a plan of its own; use {either([f'--pool {one}' for one in POOLS])}"
            )
        raise InputError(Problem(path="--pool", message=message))
    if pool is None:
        return scenario
    chosen = scenario.each_pool()[[one.name for one in scenario.pools].index(pool)]
    document = {**scenario.document, "plan": scenario.document["plan"][pool]}
    return replace(chosen, name=f"{scenario.name}-{pool}", document=document)


def _out_of_range(scenario: Scenario, stage: int | None, replica: int | None) -> list[Problem]:
    plan = scenario.plan
    found = []
    if stage is not None and stage >= plan.pp:
        found.append(Problem(path="--stage", message=f"{stage} is not in 0 … {plan.pp - 1} (plan.pp is {plan.pp})"))
    if replica is not None and plan.is_lockstep:
        found.append(Problem(path="--replica", message="all replicas share experts and are in the graph; leave it out"))
    elif replica is not None and replica >= plan.dp:
        found.append(Problem(path="--replica", message=f"{replica} is not in 0 … {plan.dp - 1} (plan.dp is {plan.dp})"))
    return found


def _other_suffix(target: Path) -> list[Problem]:
    if target.suffix not in SUFFIXES:
        known = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        return [Problem(path="--output", message=f"{target}: the suffix says the format; use {known}")]
    return []
