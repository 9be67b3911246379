"""``clustersim sweep``: a run for each combination of values, in one table and on one page."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time, total_time
from clustersim.cli.status import ILLEGAL
from clustersim.inputs import is_file
from clustersim.limits import Limits
from clustersim.report.layouts import layout as read
from clustersim.report.layouts import overview
from clustersim.report.sweep.page import check_layout, sweep_html
from clustersim.report.words.progress import RunsLeft
from clustersim.scenario.confidence import confidence_of
from clustersim.search.executors import opened
from clustersim.search.journal import opened_journal
from clustersim.search.runs import Kept, Runs, Variants
from clustersim.search.sweep import (
    PAGE,
    POINTS,
    Sweep,
    failures,
    refuse_texts,
    summary_of,
    swept_of,
    table_of,
    write_points,
)
from clustersim.search.varied import SweepFile, combinations, read_sweep, varied_of
from clustersim.units import plural


@click.command()
@click.argument("scenario")
@click.option("--vary", "varied", multiple=True, metavar="KEY=VALUES", help="plan.tp=1,2,4, or seed=1..10:1.")
@click.option("--zip", "zipped", is_flag=True, help="Take the n-th value of each key, not all combinations.")
@click.option("--layout", default="sweep", show_default=True, help="A dashboard's name, or its file.")
@click.option("--runs", "keep_runs", is_flag=True, help="Write the run directory of each run, with its dashboard, too.")
@click.option(
    "--script", type=options.Choice(["inside", "beside"]),
    help="Where plotly's script is: in each page, or once in --out for all pages there [inside; with --runs beside].",
)  # fmt: skip
@click.option("--audit/--no-audit", default=False, help="Check step graphs and what was recorded, too [no].")
@options.many_runs
@memory_and_time
@total_time
@click.pass_context
def sweep(
    ctx: click.Context,
    scenario: str,
    varied: tuple[str, ...],
    zipped: bool,
    layout: str,
    keep_runs: bool,
    script: str | None,
    audit: bool,
    overrides: tuple[str, ...],
    executor: str,
    workers: int | None,
    out: Path | None,
    allow_code: bool,
    as_json: bool,
    quiet: bool,
    max_memory: float,
    max_time: float,
    max_total: float,
) -> None:
    """Simulate variants of SCENARIO (a path, the name of one that ships, or a file with its `vary`).

    Writes points.parquet (a row per run) and sweep.html into --out. A sweep that was interrupted goes on where it was
    when it is started again. What can't be simulated has the reason in its row; limits are those of each run,
    but for --max-total.
    """
    file = _sweep_file(scenario)
    keys = (*file.varied, *map(varied_of, varied))
    swept = Sweep(varied=keys, chosen=tuple(combinations(keys, zipped=zipped or file.zipped)))
    page = read(layout)
    check_layout(page)
    limits = Limits(memory_bytes=max_memory, seconds=max_time, total_seconds=max_total)
    variants = Variants(file.scenario, (*file.overrides, *overrides), allow_code=allow_code or None, limits=limits)
    refuse_texts(swept, variants)
    folder = out or Path("sweeps") / f"{Path(file.scenario).stem}-{_digest(variants, swept)}"
    told = None if as_json or quiet else RunsLeft()
    above = 0 if (script or ("beside" if keep_runs else "inside")) == "beside" else None
    kept = Kept(folder=folder / "runs", layout=overview(), above=None if above is None else 2) if keep_runs else None
    with opened(executor, workers) as executors, opened_journal(folder) as journal:
        try:
            runs = Runs(variants, executors, journal, audit=audit, kept=kept)
            rows = runs.rows(swept.all_changes, told)
        finally:
            if told is not None:
                told.close()
    shown = swept_of(swept, rows, variants)
    write_points(folder, table_of(shown), sweep_html(shown, page), above)
    least = min((run for run, row in enumerate(rows) if row["numbers"]), default=None,
                key=lambda run: rows[run]["numbers"].get("confidence.figures", 0))  # fmt: skip
    least_known = None if least is None else variants.scenario(swept.changes(least))
    found = summary_of(rows, folder, None if least_known is None else confidence_of(least_known))
    if as_json:
        click.echo(json.dumps(found))
    elif not quiet:
        there = f" ({plural(runs.there, 'was', 'were')} there before)" if runs.there else ""
        click.echo(f"{found['points']:,} runs, {found['failed']:,} failed{there}")
        if least_known is not None:  # of the runs the one with the fewest figures
            options.print_confidence(least_known)
        click.echo(f"points  {folder / POINTS}\npage    {folder / PAGE}")
    for line in failures(shown):
        click.echo(line, err=True)
    if found["failed"] == found["points"]:
        ctx.exit(ILLEGAL)


def _sweep_file(name: str) -> SweepFile:
    """Return what a file of a sweep says; of a scenario nothing that varies."""
    path = Path(name)
    found = read_sweep(path) if is_file(path) and path.suffix in (".yaml", ".yml", ".json") else None
    return SweepFile(scenario=name, overrides=(), varied=(), zipped=False) if found is None else found


def _digest(variants: Variants, swept: Sweep) -> str:
    """Return what tells a sweep from others of its scenario."""
    text = json.dumps([variants.text, variants.overrides, [one.key for one in swept.varied], swept.chosen])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
