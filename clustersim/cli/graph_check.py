"""What ``clustersim check`` says of step graphs: of a scenario's, behind its plan, and of one in a JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from clustersim.cli.tables import print_json
from clustersim.errors import InputError, Problem
from clustersim.legality.rule import Verdict, together
from clustersim.run.foreign_graph import check_read, foreign_headline, graph_at, left_out_line
from clustersim.run.graph_legality import check_scenario_steps, graph_headline, violation_line
from clustersim.scenario.scenario import Scenario

GRAPH_SUFFIX: Final = ".json"


def with_step_graphs(scenario: Scenario, plan: Verdict) -> Verdict:
    """Return the verdict on a plan, if it is legal together with that on what it expands to."""
    return plan if plan.violations else together([plan, check_scenario_steps(scenario)])


def print_step_graphs(name: str, verdict: Verdict) -> None:
    """Print what the rules of level G found, if they looked at all."""
    graphs = verdict.of_level("G")
    if graphs.rules:
        _print(f"the step graphs of {name}", graphs)


def check_graph_file(name: str, overrides: tuple[str, ...], *, as_json: bool) -> Verdict:
    """Check a step graph in a file, and print what was found."""
    if overrides:
        raise InputError(Problem(path="--set", message=f"{name} is a step graph, which has no values to change"))
    graph = graph_at(Path(name))
    verdict = check_read(graph)
    if as_json:
        print_json(verdict.as_json())
    else:
        click.echo(foreign_headline(name, verdict))
        for violation in verdict.violations:
            click.echo(violation_line(violation))
        if (missing := left_out_line(graph)) is not None:
            click.echo(missing)
        if verdict.violations:
            click.echo("What a rule says, and why: clustersim rules ID")
    return verdict


def _print(name: str, verdict: Verdict) -> None:
    click.echo(graph_headline(name, verdict))
    for violation in verdict.violations:
        click.echo(violation_line(violation))
