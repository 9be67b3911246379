"""Tables and JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

PIPED_WIDTH: Final = 160
"""Characters per line where stdout is no terminal: wide enough that nothing is cut."""
_WIDEST: Final = 1000


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int, numbered: bool = False
) -> None:
    """Print a table; columns from the position ``numbers_from`` on are aligned to the right.

    With ``numbered`` a terminal that is too narrow for it gets numbers in the first column, and what they stand for
    in lines of their own below.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    def made(cells: Sequence[Sequence[str]]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for position, column in enumerate(columns):
            table.add_column(column, justify="right" if position >= numbers_from else "left", overflow="fold")
        for row in cells:
            table.add_row(*row)
        return table

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False, markup=False)
    table = made(rows)
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    if not numbered or needed <= console.width:
        console.print(table)
        return
    console.print(made([(f"{number}", *row[1:]) for number, row in enumerate(rows, 1)]))
    for number, row in enumerate(rows, 1):
        click.echo(f"{number:>2}  {row[0]}")


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and values line by line."""
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")


def print_json(value: Any) -> None:
    """Print a value as JSON; a number that is not finite is refused."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))
