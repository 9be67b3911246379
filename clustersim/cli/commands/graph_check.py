"""What ``clustersim check`` says of a step graph in a file."""

from __future__ import annotations

from pathlib import Path

import click

from clustersim.cli.status import problems_text
from clustersim.cli.tables import print_json
from clustersim.errors import InputError, Problem
from clustersim.legality.rule import Verdict
from clustersim.scenario.load import load
from clustersim.simulation.foreign.graph import check_read, foreign_headline, foreign_json, foreign_lines, violations_at
from clustersim.simulation.foreign.graph_file import graph_at


def check_graph_file(
    name: str, of: str | None, overrides: tuple[str, ...], names: str | None, *, as_json: bool
) -> Verdict:
    """Check a step graph in a file, with the scenario that it is of if that is known, and print what was found."""
    if overrides and of is None:
        raise InputError(Problem(path="--set", message=f"{name} is a step graph, which has no values to change"))
    graph = graph_at(Path(name), names)
    verdict = check_read(graph, None if of is None else load(of, overrides, allow_code=False))
    if as_json:
        print_json(foreign_json(graph, verdict))
    else:
        click.echo(foreign_headline(name, verdict))
        if verdict.violations:
            click.echo(problems_text(violations_at(graph, verdict)))
        for line in foreign_lines(graph, verdict):
            click.echo(line)
        if verdict.violations:
            click.echo("What a rule says, and why: clustersim rules ID")
    return verdict
