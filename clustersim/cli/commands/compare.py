"""``clustersim compare``: runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time
from clustersim.cli.tables import print_json, print_table
from clustersim.errors import InputError
from clustersim.limits import Limits
from clustersim.report.comparison.comparison import compare as compared
from clustersim.report.comparison.comparison import comparison_json
from clustersim.report.comparison.entries import names_apart, read_entry, refuse_many
from clustersim.report.comparison.page import comparison_html
from clustersim.report.comparison.panels import FIGURES
from clustersim.report.comparison.text import tables
from clustersim.report.dashboard import write_dashboard
from clustersim.report.files.agreement import refuse_differing
from clustersim.report.layouts import layout


@click.command()
@click.argument("first", metavar="A")
@click.argument("others", metavar="B [C]…", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-o", "--out", type=options.Written(), help="Write a page, too.")
@click.option("--layout", "name", default="compare", show_default=True, help="A name in dashboards/, or a YAML file.")
@options.allow_code
@memory_and_time
def compare(
    first: str,
    others: tuple[str, ...],
    as_json: bool,
    out: Path | None,
    name: str,
    allow_code: bool,
    max_memory: float,
    max_time: float,
) -> None:
    """Compare A with B, and with C and so on: run directories, or scenarios, which are then simulated.

    Shows what differs in the scenarios, every figure of the summaries, and, of the requests that finished in both, how
    much longer each took and which operators, collectives, host work, waits and bubbles that comes from: these parts
    add up to the difference, to the nanosecond. Where the workloads differ, means over all requests stand side by side.
    """
    panels = layout(name, FIGURES)
    limits = Limits(memory_bytes=max_memory, seconds=max_time)
    runs = (first, *others)
    refuse_many(runs, limits)
    entries = [read_entry(*both, allow_code or None, limits) for both in zip(runs, names_apart(runs), strict=True)]
    try:
        found = [compared(entries[0], other) for other in entries[1:]]
    except InputError:
        raise
    except Exception:  # what nobody could add up: is it what the timeline says?
        for given in runs:
            if Path(given).is_dir():
                refuse_differing(Path(given))
        raise
    if out is not None:
        write_dashboard(out, comparison_html(found, panels))
    if as_json:
        data = [comparison_json(one) for one in found]
        print_json(data[0] if len(data) == 1 else {**data[0], "others": data[1:]})
        return
    for one in found:
        for title, columns, rows in tables(one):
            click.echo(title)
            if rows:
                print_table(columns, rows, numbers_from=2 if columns[1] == "kind" else 1)
    if out is not None:
        click.echo(f"wrote {out}")
