"""What ``clustersim check`` says of a step graph in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from clustersim import inputs
from clustersim.cli.status import problems_text
from clustersim.cli.tables import print_json
from clustersim.errors import InputError, Problem
from clustersim.legality.rule import Verdict
from clustersim.run.foreign.graph import check_read, foreign_headline, foreign_json, foreign_lines, violations_at
from clustersim.run.foreign.graph_file import GRAPH_SUFFIXES, graph_at

TABLE_SUFFIXES: Final = (".csv", ".parquet")


def refuse_graph(name: str) -> None:
    """Refuse a step graph, or a table, where a scenario is expected.

    Raises
    ------
    InputError
        With what takes it.
    """
    suffix = Path(name).suffix
    if suffix in TABLE_SUFFIXES:
        message = "is a table of what happened, for clustersim audit"
    elif suffix in GRAPH_SUFFIXES and (suffix != ".json" or _has_nodes(Path(name))):
        message = "is a step graph, for clustersim check"
    else:
        return
    message += "; expected a scenario, such as quickstart or NAME.yaml"
    raise InputError(Problem(file=name, message=message))


def _has_nodes(path: Path) -> bool:
    try:
        found = json.loads(inputs.read_text(path, most=inputs.TEXT_BYTES))
    except (InputError, ValueError, RecursionError):
        return False  # whoever reads it says what is wrong
    return isinstance(found, dict) and "nodes" in found


def check_graph_file(name: str, overrides: tuple[str, ...], names: str | None, *, as_json: bool) -> Verdict:
    """Check a step graph in a file, and print what was found."""
    if overrides:
        raise InputError(Problem(path="--set", message=f"{name} is a step graph, which has no values to change"))
    graph = graph_at(Path(name), names)
    verdict = check_read(graph)
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
