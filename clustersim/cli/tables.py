"""Tables and JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

PIPED_WIDTH: Final = 160
"""Characters per line where stdout is no terminal: wide enough that nothing is cut."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int) -> None:
    """Print a table; columns from the position ``numbers_from`` on are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position >= numbers_from else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False, markup=False).print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and values line by line."""
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")


def print_json(value: Any) -> None:
    """Print a value as JSON; a number that is not finite is refused."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))
