"""``clustersim prove``: the step graphs of a plan executed with numbers, beside the unsharded model."""

from __future__ import annotations

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time
from clustersim.cli.options import refuse_graph
from clustersim.cli.status import STATUS, problems_text
from clustersim.cli.tables import print_facts, print_json, print_table
from clustersim.legality.deployment import counted
from clustersim.limits import Limits
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.comparison import TOLERANCE
from clustersim.proof.proof import LOOKED_AT, Proof
from clustersim.scenario.load import load
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.estimate import refuse_large_proof
from clustersim.simulation.legality import check_scenario_plan, problem
from clustersim.simulation.proof import ScenarioProof, prove_scenario


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a value: plan.tp=8.")
@click.option(
    "--orders", type=options.Whole(0, 100), default=2, show_default=True, help="Random orders to execute as well."
)
@options.allow_code
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@memory_and_time
@click.pass_context
def prove(
    ctx: click.Context,
    scenario: str,
    overrides: tuple[str, ...],
    orders: int,
    allow_code: bool,
    as_json: bool,
    max_memory: float,
    max_time: float,
) -> None:
    """Prove the plan of SCENARIO (a path, or the name of one that ships) by execution.

    The step graphs run as a dataflow program in float64 on a small model of the same structure: in the order of the
    program, in that of a recorded timeline, and in random legal orders. Logits and greedy tokens must be those of the
    unsharded model. The steps are decided by a scheduler of ours: one of SCENARIO's own is not needed, and only with
    --allow-code is it made, to see that it can be. Exit status 0: they are, 1: they are not, or the plan is illegal,
    2: the scenario can't be read, 3: nothing of it can be executed.
    """
    refuse_graph(scenario)
    loaded = load(scenario, overrides, allow_code=allow_code)
    if check_scenario_plan(loaded).verdict == "legal":
        refuse_large_proof(loaded, orders, Limits(memory_bytes=max_memory, seconds=max_time))
    found = prove_scenario(loaded, orders=orders)
    if as_json:
        print_json(found.verdict.as_json())
    elif found.proof is None:
        click.echo(f"illegal: the plan of {loaded.name} breaks rules before anything runs")
        click.echo(problems_text([problem(loaded, violation) for violation in found.verdict.violations]))
    else:
        _show(loaded, found, found.proof)
    if status := STATUS[found.verdict.verdict]:
        ctx.exit(status)


def _plans(plan: ParallelPlan, decode: ParallelPlan | None) -> dict[str, str]:
    named = {"plan": plan} if decode is None else {"prefill": plan, "decode": decode}
    found = {}
    for name, one in named.items():
        shape = f"dp {one.sp.degree} in lockstep" if one.sp.whole else f"sp {one.sp.degree}"
        found[name] = f"tp {one.tp}, {shape}, pp {one.pp}, ep {one.ep.degree}: {one.replica_ranks} ranks"
    return found


def _orders(proof: Proof) -> str:
    """Say in which orders nodes ran, and why none of them is one that a run recorded, where none is."""
    if not proof.orders:
        return "none"
    found = f"{', '.join(proof.orders)}; {proof.nodes:,} nodes each"
    if "recorded order" in proof.orders:
        return found
    return f"{found}; no recorded order: no small run is made of replicas that share experts"


def _show(scenario: Scenario, found: ScenarioProof, proof: Proof) -> None:
    script = found.script
    assert script is not None
    if found.verdict.verdict == "legal":
        click.echo(f"legal: executed, the step graphs of {scenario.name} compute what the unsharded model does")
    else:
        what = f"executed, the step graphs of {scenario.name} do not compute what the unsharded model does"
        if not proof.orders:
            what = f"the steps of a small run of {scenario.name} can't be executed: they are not those of its sequences"
        click.echo(f"illegal: {what}")
        for one in found.verdict.violations:
            click.echo(f"{one.where}: {one.message}; {one.fix} [{one.rule}]")
    model, plan = found.model, found.plan
    prompts = ", ".join(str(len(prompt)) for prompt in script.prompts)
    print_facts(
        {
            "model": f"{model.name}: {counted(len(model.layers), 'layer')}, hidden {model.hidden}, "
            f"{model.layers[0].attention.num_heads} heads",
            **_plans(plan, found.decode),
            "steps": f"{len(script.steps)} of which {script.prefill_steps} with prompts ({prompts} tokens)",
            "orders": _orders(proof),
            "logits": f"{proof.num_logits:,} vectors, largest relative error {proof.max_relative_error:.1e} "
            f"(at most {TOLERANCE:.0e})",
            "tokens": f"{proof.num_tokens} greedy ones, {'all equal' if proof.tokens_equal else 'not all equal'}",
        }
    )
    rows = [
        (rule.id, LOOKED_AT[rule.id], f"{rule.looked_at:,}" if rule.looked_at else "not checkable")
        for rule in proof.verdict.rules
    ]
    print_table(("rule", "what it looked at", "how many"), rows, numbers_from=2)
