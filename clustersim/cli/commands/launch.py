"""``clustersim launch``: what starts a scenario with a serving engine."""

from __future__ import annotations

from pathlib import Path

import click

from clustersim.cli import options
from clustersim.cli.status import ILLEGAL
from clustersim.cli.tables import print_json
from clustersim.errors import IllegalPlanError
from clustersim.files import written_whole
from clustersim.interop.launch.launch import TARGETS, launch_of
from clustersim.interop.launch.text import launch_json, launch_text, simulated_words, unsaid_lines
from clustersim.scenario.load import load
from clustersim.simulation.legality import check_scenario, verdict_lines


@click.command()
@click.argument("scenario")
@click.option("--for", "target", required=True, type=options.Choice(TARGETS), help="What to write it for.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a value: plan.tp=8.")
@click.option("--model", metavar="NAME", help="What servers load: a checkpoint's name, or a folder.")
@click.option("--image", metavar="NAME", help="Of containers.")
@click.option(
    "--add",
    multiple=True,
    metavar="OPTIONS",
    help="Options that every server is given besides those that the scenario says.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-o", "--out", type=options.Written(), help="Write a file [standard output].")
@click.pass_context
def launch(
    ctx: click.Context,
    scenario: str,
    target: str,
    overrides: tuple[str, ...],
    model: str | None,
    image: str | None,
    add: tuple[str, ...],
    as_json: bool,
    out: Path | None,
) -> None:
    """Write what starts SCENARIO (a path, or the name of one that ships).

    Plain commands for vllm, sglang and trtllm, with a `vllm bench serve` that sends the workload where it can;
    manifests for k8s, llm-d and dynamo. What the scenario says and these have no words for is listed as NOT SAID, here
    and on standard error. `clustersim from-command` reads those of vLLM and SGLang back.

    Exit status 0: written, 1: the plan is illegal, or the engine refuses it, by rules that are named, 2: the scenario
    can't be read.
    """
    loaded = load(scenario, overrides, allow_code=False)
    verdict = check_scenario(loaded)
    if verdict.violations:
        click.echo("\n".join(verdict_lines(loaded, verdict)), err=True)
        ctx.exit(ILLEGAL)
    try:
        found = launch_of(loaded, target, model=model, image=image, add=add)
    except IllegalPlanError as error:
        click.echo(str(error), err=True)
        ctx.exit(ILLEGAL)
    if found.simulated_as:
        click.echo(f"simulated as another engine: {simulated_words(found)}", err=True)
    for line in unsaid_lines(found):
        click.echo(f"not said: {line}", err=True)
    if out is not None:
        with written_whole(out) as beside:
            beside.write_text(launch_text(loaded, found), encoding="utf-8")
    if as_json:
        print_json(launch_json(found))
    elif out is None:
        click.echo(launch_text(loaded, found), nl=False)
    else:
        click.echo(f"wrote {out}")
