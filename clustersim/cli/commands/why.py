"""``clustersim why``: the same requests with one limit lifted at a time, ranked by what that gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time
from clustersim.cli.status import ILLEGAL
from clustersim.cli.tables import print_table
from clustersim.files import written_whole
from clustersim.limits import Limits
from clustersim.report.layouts import layout as read
from clustersim.report.why.lifted import METRICS, Lifted
from clustersim.report.why.page import check_layout, shown, why_html
from clustersim.report.words.progress import RunsLeft
from clustersim.search.executors import opened
from clustersim.search.journal import opened_journal
from clustersim.search.lifts import lifted_limits
from clustersim.search.runs import Runs, Variants

PAGE = "why.html"
_WIDEST = 26
"""Characters of a limit in a line of the table, which has 80 with its numbers."""


@click.command()
@click.argument("scenario")
@click.option("--layout", default="why", show_default=True, help="A dashboard's name, or its file.")
@options.many_runs
@memory_and_time
@click.pass_context
def why(
    ctx: click.Context,
    scenario: str,
    layout: str,
    overrides: tuple[str, ...],
    executor: str,
    workers: int | None,
    out: Path | None,
    allow_code: bool,
    as_json: bool,
    quiet: bool,
    max_memory: float,
    max_time: float,
) -> None:
    """Find which limit of SCENARIO costs most: its requests again, with one lifted at a time.

    The batch, the token budget, K/V memory, links, host time, faults, one more replica. Each is a run as exact as any
    other; those that help are advice, ranked, with the key that decides. Writes why.html into --out.
    """
    page = read(layout)
    check_layout(page)
    limits = Limits(memory_bytes=max_memory, seconds=max_time)
    variants = Variants(scenario, overrides, allow_code=allow_code or None, limits=limits)
    loaded = variants.scenario()
    folder = out or Path("whys") / f"{loaded.name}-{loaded.digest[:12]}"
    count = len(variants.requests(loaded))
    told = None if as_json or quiet else RunsLeft()
    with opened(executor, workers) as executors, opened_journal(folder) as journal:
        try:
            runs = Runs(variants, executors, journal)
            first, found = lifted_limits(loaded, count, lambda changes: runs.rows(changes, told))
        finally:
            if told is not None:
                told.close()
    if first["failed"]:
        click.echo(f"{loaded.name}: {first['failed']}", err=True)
        ctx.exit(ILLEGAL)
    baseline = {name: first["numbers"].get(name) for name in METRICS}
    with written_whole(folder / PAGE) as beside:
        beside.write_text(why_html(loaded.name, baseline, found, page), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(_plain(baseline, found, folder)))
    elif not quiet:
        _print(baseline, found)
        click.echo(f"page     {folder / PAGE}\nkept     {folder} (a second start goes on there)")


def _plain(baseline: Mapping[str, float | None], found: Sequence[Lifted], folder: Path) -> dict[str, Any]:
    return {
        "baseline": dict(baseline),
        "lifted": [
            {"limit": one.limit, "key": one.key, "metrics": dict(one.metrics), "gains": dict(one.gains),
             "binds": one.binds}
            for one in found
            if not one.why_not
        ],
        "not_lifted": [{"limit": one.limit, "key": one.key, "why": one.why_not} for one in found if one.why_not],
        "out": str(folder),
    }  # fmt: skip


def _print(baseline: Mapping[str, float | None], found: Sequence[Lifted]) -> None:
    rows = [("as it is", *(_short(baseline[name]) for name in METRICS))]
    rows += [(_named(one), *(_short(one.metrics[name]) for name in METRICS)) for one in found if one.binds]
    columns = ("limit and key", *("\n".join(words.split(" ", 1)) for words, _ in METRICS.values()))
    print_table(columns, rows, numbers_from=1)
    idle = [one.limit for one in found if not one.binds and not one.why_not]
    if idle:
        click.echo(f"no gain  {', '.join(idle)}")
    for one in found:
        if one.why_not:
            click.echo(f"not tried: {one.limit}: {one.why_not}")


def _named(one: Lifted) -> str:
    return f"{fill(one.limit, _WIDEST)}\n{one.key}"


def _short(value: float | None) -> str:
    """Write a metric in few characters, so that the table fits 80 columns."""
    return f"{value:,.0f}" if value is not None and abs(value) >= 1000 else shown(value)
