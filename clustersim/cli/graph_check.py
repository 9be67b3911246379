"""What ``clustersim check`` says of a step graph in a JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from clustersim.cli.tables import print_json
from clustersim.errors import InputError, Problem
from clustersim.legality.rule import Verdict
from clustersim.run.foreign_graph import check_read, foreign_headline, graph_at, left_out_line
from clustersim.run.graph_legality import violation_line

GRAPH_SUFFIX: Final = ".json"


def check_graph_file(name: str, overrides: tuple[str, ...], *, as_json: bool) -> Verdict:
    """Check a step graph in a file, and print what was found."""
    if overrides:
        raise InputError(Problem(path="--set", message=f"{name} is a step graph, which has no values to change"))
    graph = graph_at(Path(name))
    verdict = check_read(graph)
    if as_json:
        at = {"file": name, "line": None, "column": None}
        violations = [violation.as_json() | at for violation in verdict.violations]
        print_json(verdict.as_json() | {"violations": violations})
    else:
        click.echo(foreign_headline(name, verdict))
        for violation in verdict.violations:
            click.echo(violation_line(violation))
        if (missing := left_out_line(graph)) is not None:
            click.echo(missing)
        if verdict.violations:
            click.echo("What a rule says, and why: clustersim rules ID")
    return verdict
