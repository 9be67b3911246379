"""``clustersim rate``: the highest rate that a deployment bears."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time, total_time
from clustersim.cli.tables import print_table
from clustersim.limits import Limits
from clustersim.report.words.progress import RunsLeft
from clustersim.scenario.confidence import confidence_of
from clustersim.search.executors import opened
from clustersim.search.journal import opened_journal
from clustersim.search.rate import Capacity, highest_rate
from clustersim.search.runs import Runs, Variants
from clustersim.search.sweep import command_of
from clustersim.search.tried import SERVED, Progress, few_words
from clustersim.units import format_asked, format_share


@click.command()
@click.argument("scenario")
@options.goals
@click.option("--tolerance", type=options.Number(0.001, 0.5), default=0.02, help="Of the rate [0.02].")
@click.option(
    "--lasting", callback=options.some_time, default="100 s", show_default=True, help="Arrivals of a run last."
)
@options.many_runs
@memory_and_time
@total_time
def rate(
    scenario: str,
    targets: str | None,
    share: float,
    tolerance: float,
    lasting: float,
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
    """Find the highest rate at which SCENARIO meets its targets.

    Bisection over the rate of drawn arrivals, or the scale of a trace, until the lowest rate that fails is within
    --tolerance of the highest that does not. A share of all requests must meet every target: those of the scenario, or
    --targets; and the queue must not grow. Says what breaks first, and why. Exit status 0: found, 1: no rate reaches
    the share, 2: the scenario can't be read.
    """
    limits = Limits(memory_bytes=max_memory, seconds=max_time, total_seconds=max_total)
    flags = options.target_changes(targets)
    variants = Variants(scenario, (*overrides, *flags), allow_code=allow_code or None, limits=limits, flags=flags)
    loaded = variants.scenario()
    folder = out or Path("rates") / f"{loaded.name}-{loaded.digest[:12]}"
    with opened(executor, workers) as executors, opened_journal(folder) as journal:
        runs = Runs(variants, executors, journal)
        left = _Left(is_quiet=as_json or quiet)
        try:
            found = highest_rate(runs, loaded, share=share, tolerance=tolerance, lasting_s=lasting, told=left)
        finally:
            left.close()
    if as_json:
        told = {"confidence": confidence_of(loaded)}
        click.echo(json.dumps(_plain(found, variants, folder, share, tolerance) | told))
    elif not quiet:
        _print(found)
        options.print_confidence(loaded)
        click.echo(options.kept_and_command(folder, command_of(variants, found.best.changes)))
    if found.unreached is not None:
        raise found.unreached


class _Left:
    """Tells how many rates were tried, between which of them the highest lies, and about how long the rest takes."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._work = 0.0, 0.0
        self._line = None if is_quiet else RunsLeft("rates", work=lambda: self._work)

    def __call__(self, told: Progress) -> None:
        if self._line is None:
            return
        self._work = told.done, told.rest
        bracket = ((told.does, "does"), (told.fails, "does not"))
        known = ", ".join(f"{rate:g}/s {verb}" for rate, verb in bracket if rate is not None)
        self._line.noun = f"rates ({known})" if known else "rates"
        self._line(told.tried, told.tried + told.left)

    def close(self) -> None:
        if self._line is not None:
            self._line.close()


def _plain(found: Capacity, variants: Variants, folder: Path, share: float, tolerance: float) -> dict[str, Any]:
    return {
        "rate_per_s": found.best.rate_per_s if found.share else None,
        "share": found.best.share,
        "asked": share,
        "limited_by": found.limited_by,
        "why": found.why,
        "tolerance": tolerance,
        "fails_at_per_s": found.worse.rate_per_s,
        "tried": [{"rate_per_s": one.rate_per_s, "share": one.share} for one in found.tried],
        "command": command_of(variants, found.best.changes),
        "out": str(folder),
    }


def _print(found: Capacity) -> None:
    best, asked = format_share(found.best.share), format_asked(found.share)
    less = "no rate reaches the share asked for; " if found.unreached is not None else ""
    if found.share:
        click.echo(f"{less}{found.best.rate_per_s:g} requests/s arriving: {best} meet every target (asked: {asked})")
        click.echo(f"at {found.worse.rate_per_s:g}/s {format_share(found.worse.share)} do. {found.why}")
    else:
        click.echo(f"{less}{best} meet every target even one by one. {found.why}")
    columns = ("arriving /s", "share", "queue grows", "TTFT p99 ms", "TPOT p99 ms", "served /s", "output tokens/s")
    keys = ("ttft_ms.p99", "tpot_ms.p99", "throughput.requests_per_s", "throughput.output_tokens_per_s")
    rows = [
        (
            f"{one.rate_per_s:g}",
            format_share(one.share),
            "yes" if one.grows else "no",
            *(_shown(one.row["numbers"].get(key)) for key in keys),
        )
        for one in found.tried
    ]
    print_table(columns, rows, numbers_from=0)
    click.echo(f"served: {SERVED}")
    numbers = found.best.row["numbers"]
    if rejected := numbers.get("requests.rejected"):
        arrived = numbers["requests.arrived"]
        click.echo(f"rejected: {rejected:,} of the {arrived:,} that arrive; `clustersim run` says why")
    if found.unreached is None and (few := few_words(found.best.row, found.share, "with a longer --lasting")):
        click.echo(few)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
