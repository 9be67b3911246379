"""``clustersim schema``: the JSON schema of scenarios, for editors."""

from __future__ import annotations

import click

from clustersim.cli.tables import print_json
from clustersim.scenario.keys.json_schema import json_schema


@click.command()
def schema() -> None:
    """Print the JSON schema of scenarios.

    An editor uses it when the first line of a scenario is
    `# yaml-language-server: $schema=schema.json`.
    """
    print_json(json_schema())
