"""``clustersim check``: whether a plan and the step graphs that it expands to are legal, before anything runs."""

from __future__ import annotations

from pathlib import Path

import click

from clustersim.cli.status import ILLEGAL, problems_text
from clustersim.cli.tables import print_json
from clustersim.errors import InputError, Problem
from clustersim.legality.rule import Verdict, together
from clustersim.run.graph_legality import check_foreign, check_scenario_steps, graph_headline, violation_line
from clustersim.run.legality import check_scenario, headline, problem
from clustersim.scenario.load import load


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a value: plan.tp=8.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(ctx: click.Context, scenario: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check that the plan of SCENARIO (a path, or the name of one that ships) is legal, and what it expands to.

    A legal plan is expanded: to a prefill, a mixed and several decode steps, one after the other, whose graphs are
    checked as well. SCENARIO may also be a step graph itself, NAME.json as `clustersim graph` writes it.

    Prints every violation with the rule that it breaks and what would be legal. Exit status 0: legal, 1: illegal,
    2: the scenario can't be read.
    """
    verdict = (
        _graph_file(scenario, overrides, as_json)
        if scenario.endswith(".json")
        else _scenario(scenario, overrides, as_json)
    )
    if as_json:
        print_json(verdict.as_json())
    elif verdict.violations:
        click.echo("What a rule says, and why: clustersim rules ID")
    if verdict.verdict != "legal":
        ctx.exit(ILLEGAL)


def _scenario(name: str, overrides: tuple[str, ...], quiet: bool) -> Verdict:
    loaded = load(name, overrides)
    plan = check_scenario(loaded)
    if not quiet:
        click.echo(headline(loaded, plan))
        for violation in plan.violations:
            click.echo(problems_text([problem(loaded, violation)]))
    if plan.violations:
        return plan
    graphs = check_scenario_steps(loaded)
    if not quiet:
        _show(f"the step graphs of {loaded.name}", graphs)
    return together([plan, graphs])


def _graph_file(name: str, overrides: tuple[str, ...], quiet: bool) -> Verdict:
    if overrides:
        raise InputError(Problem(path="--set", message=f"{name} is a step graph, which has no values to change"))
    verdict = check_foreign(Path(name))
    if not quiet:
        _show(name, verdict)
    return verdict


def _show(name: str, verdict: Verdict) -> None:
    click.echo(graph_headline(name, verdict))
    for violation in verdict.violations:
        click.echo(violation_line(violation))
