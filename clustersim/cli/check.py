"""``clustersim check``: whether a plan is legal, before anything runs."""

from __future__ import annotations

import click

from clustersim.cli.status import ILLEGAL, problems_text
from clustersim.cli.tables import print_json
from clustersim.run.legality import check_scenario, headline, problem
from clustersim.scenario.load import load


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a value: plan.tp=8.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(ctx: click.Context, scenario: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check that the plan of SCENARIO (a path, or the name of one that ships) is legal.

    Prints every violation with the rule that it breaks and what would be legal. Exit status 0: legal, 1: illegal,
    2: the scenario can't be read.
    """
    loaded = load(scenario, overrides)
    verdict = check_scenario(loaded)
    if as_json:
        print_json(verdict.as_json())
    else:
        click.echo(headline(loaded, verdict))
        for violation in verdict.violations:
            click.echo(problems_text([problem(loaded, violation)]))
        if verdict.violations:
            click.echo("What a rule says, and why: clustersim rules ID")
    if verdict.verdict != "legal":
        ctx.exit(ILLEGAL)
