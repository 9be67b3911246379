"""``clustersim why``: the same requests with one limit lifted at a time, ranked by what that gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Final

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time, total_time
from clustersim.cli.signals import write_on
from clustersim.cli.status import ILLEGAL, INTERRUPTED
from clustersim.cli.tables import print_table
from clustersim.clock import NS_PER_S
from clustersim.errors import LimitError, TerminatedError, did_you_mean
from clustersim.files import written_whole
from clustersim.limits import Limits
from clustersim.report.layouts import layout as read
from clustersim.report.metrics.latencies import targets_ns
from clustersim.report.why.lifted import FINISHED, GOODPUT, METRICS, Lifted, misses
from clustersim.report.why.page import check_layout, enough_words, shown, why_html
from clustersim.report.words.progress import RunsLeft
from clustersim.scenario.scenario import Scenario, TraceWorkload
from clustersim.search.enough import MOST_RUNS
from clustersim.search.executors import opened
from clustersim.search.journal import opened_journal
from clustersim.search.lifts import NAMES
from clustersim.search.point import Row
from clustersim.search.runs import NOT_FINISHED, Runs, Variants
from clustersim.search.why import changes_of, lifted_limits
from clustersim.simulation.estimate import Estimate, estimate
from clustersim.units import format_seconds, plural

PAGE = "why.html"
MISSED: Final = "!"
"""Behind a figure of a table that misses its target."""
LONG_S: Final = 60.0
"""From which on it is said what makes it shorter."""
_WIDEST = 26
"""Characters of a limit in a line of the table, which has 80 with its numbers."""


@click.command()
@click.argument("scenario")
@click.option("--only", metavar="NAME,…", help=f"Which limits to lift: some of {', '.join(NAMES)} [all].")
@click.option("--layout", default="why", show_default=True, help="A dashboard's name, or its file.")
@options.many_runs
@memory_and_time
@total_time
@click.pass_context
def why(
    ctx: click.Context,
    scenario: str,
    only: str | None,
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
    max_total: float,
) -> None:
    """Find which limit of SCENARIO costs most: its requests again, with one lifted at a time.

    The batch, the token budget, K/V memory, links, host time, faults, one more replica. Each is a run as exact as any
    other; those that help are advice, ranked, with the key that decides. Writes why.html into --out. Ctrl-C prints what
    is finished, and so does --max-total.
    """
    page, chosen = read(layout), _chosen(only)
    check_layout(page)
    limits = Limits(memory_bytes=max_memory, seconds=max_time, total_seconds=max_total)
    variants = Variants(scenario, overrides, allow_code=allow_code or None, limits=limits)
    loaded = variants.scenario()
    folder = out or Path("whys") / f"{loaded.name}-{loaded.digest[:12]}"
    requests = variants.requests(loaded)
    count = len(requests)
    stopped: KeyboardInterrupt | TerminatedError | LimitError | None = None
    with opened(executor, workers) as executors, opened_journal(folder) as journal:
        runs = Runs(variants, executors, journal)
        told = None if as_json or quiet else RunsLeft(cpu=lambda: runs.cpu_s)
        try:
            runs.refuse_long(changes_of(loaded, count, chosen))
            asked = _Asked(runs, loaded, estimate(loaded, requests, count), told)
            first, found = lifted_limits(loaded, count, asked.rows, chosen)
        except (KeyboardInterrupt, TerminatedError, LimitError) as error:
            write_on()
            stopped = error
            first, found = lifted_limits(loaded, count, runs.finished, chosen)
            if first["failed"] == NOT_FINISHED:
                raise
        finally:
            if told is not None:
                told.close()
    if first["failed"]:
        click.echo(f"{loaded.name}: {first['failed']}", err=True)
        ctx.exit(ILLEGAL)
    baseline = {name: first["numbers"].get(name) for name in METRICS}
    targets = targets_ns(loaded.targets)
    with written_whole(folder / PAGE) as beside:
        beside.write_text(why_html(loaded.name, baseline, found, page, targets), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(_plain(baseline, found, folder, targets)))
    elif not quiet:
        _print(baseline, found, targets)
        if not only:
            click.echo(f"alone    the same with --only {_first(found)}; or some: {','.join(NAMES)}")
        click.echo(f"page     {folder / PAGE}\nkept     {folder} (a second start goes on there)")
    if isinstance(stopped, LimitError):
        raise stopped
    if stopped is not None:
        left = sum(one.why_not == NOT_FINISHED for one in found)
        said, status = "interrupted", INTERRUPTED
        if isinstance(stopped, TerminatedError):
            said, status = "asked to end", stopped.status
        click.echo(f"clustersim: {said}, {plural(left, 'run')} not finished", err=True)
        ctx.exit(status)


def _chosen(only: str | None) -> tuple[str, ...]:
    """Return the names of limits that are asked for."""
    names = tuple(filter(None, (one.strip() for one in (only or "").split(","))))
    if only is not None and not names:
        raise click.BadParameter(f"names no limit; expected some of {', '.join(NAMES)}", param_hint="--only")
    for name in names:
        if name not in NAMES:
            raise click.BadParameter(f"{name!r} is no limit{did_you_mean(name, NAMES)}", param_hint="--only")
    return names


class _Asked:
    """Asks for runs, and says about how much CPU they take: when the first tells what one takes, and as they end.

    Parameters
    ----------
    runs : Runs
    scenario : Scenario
    found : Estimate
        Of one run.
    told : RunsLeft or None
        None: nothing is said.
    """

    def __init__(self, runs: Runs, scenario: Scenario, found: Estimate, told: RunsLeft | None) -> None:
        self._runs, self._scenario, self._found = runs, scenario, found
        self._told = told
        self._calls = 0
        self._first_s = 0.0

    def rows(self, all_changes: Sequence[Sequence[str]]) -> list[Row]:
        """Return the row of each run; those of the first call are one: the scenario as it is."""
        fresh = [one["failed"] == NOT_FINISHED for one in self._runs.finished(all_changes)]
        if self._told is not None and any(fresh):
            self._told.close()
            if said := (self._before, self._after, self._enough, lambda _: "")[min(self._calls, 3)](len(fresh)):
                click.echo(said, err=True)
        self._calls += 1
        found = self._runs.rows(all_changes, self._told)
        self._first_s = self._first_s or self._runs.cpu_s
        return found

    def _before(self, runs: int) -> str:
        each = f"{plural(self._found.requests, 'request')} and, roughly estimated, {self._found.steps:,.0f} steps"
        words = f"each run has {each}; the scenario as it is comes first"
        return words + (self._shorter(self._found.seconds) if self._found.seconds >= LONG_S else "")

    def _after(self, runs: int) -> str:
        words = f"{plural(runs, 'run')} without one limit each"
        if not self._first_s:
            return words
        seconds = self._first_s * runs
        words += f": about {format_seconds(seconds)} of CPU, as it is took {format_seconds(self._first_s)}"
        return words + (self._shorter(seconds) if seconds >= LONG_S else "")

    def _enough(self, runs: int) -> str:
        words = f"how much of {plural(runs, 'limit')} is enough: at most {MOST_RUNS} runs each"
        return words + (f", about {format_seconds(self._first_s)} of CPU a run" if self._first_s else "")

    def _shorter(self, seconds: float) -> str:
        key = "workload.trace.requests" if isinstance(self._scenario.workload, TraceWorkload) else "workload.requests"
        fewer = max(20, int(self._found.requests * LONG_S / 2 / seconds))
        return f"; shorter with --set {key}={fewer}, or with some limits: --only {NAMES[0]},{NAMES[1]}"


def _plain(
    baseline: Mapping[str, float | None], found: Sequence[Lifted], folder: Path, targets: Mapping[str, float]
) -> dict[str, Any]:
    return {
        "baseline": dict(baseline),
        "missed": [name for name in METRICS if misses(name, baseline[name], targets)],
        "lifted": [
            {"limit": one.limit, "name": one.name, "key": one.key,
             "metrics": dict(one.metrics), "gains": dict(one.gains), "binds": one.binds, "enough": _enough(one),
             "missed": [name for name in METRICS if misses(name, one.metrics.get(name), targets)]}
            for one in found
            if not one.why_not
        ],
        "not_lifted": [{"limit": one.limit, "key": one.key, "why": one.why_not} for one in found if one.why_not],
        "out": str(folder),
    }  # fmt: skip


def _print(baseline: Mapping[str, float | None], found: Sequence[Lifted], targets: Mapping[str, float]) -> None:
    some = [baseline, *(one.metrics for one in found if one.binds)]
    left_out = GOODPUT if len({metrics[FINISHED] for metrics in some}) > 1 else FINISHED
    told = [name for name in METRICS if name != left_out]

    def cells(metrics: Mapping[str, float | None]) -> list[str]:
        return [_short(metrics[name]) + MISSED * misses(name, metrics[name], targets) for name in told]

    rows = [("as it is", *cells(baseline)), *((_named(one), *cells(one.metrics)) for one in found if one.binds)]
    columns = ("limit and key", *("\n".join(METRICS[name][0].split(" ", 1)) for name in told))
    print_table(columns, rows, numbers_from=1)
    if any(MISSED in cell for row in rows for cell in row[1:]):
        limits = (f"{name.upper()} {format_seconds(limit / NS_PER_S)}" for name, limit in targets.items())
        click.echo(f"{MISSED} misses its target: p99 of {', '.join(limits)}")
    for one in found:
        if words := enough_words(one, targets):
            click.echo(f"enough   {words}")
    idle = [one.limit for one in found if not one.binds and not one.why_not]
    if idle:
        click.echo(f"no gain  {', '.join(idle)}")
    for one in found:
        if one.why_not:
            click.echo(f"not tried: {one.limit}: {one.why_not}")


def _enough(one: Lifted) -> dict[str, Any] | None:
    much = one.enough
    return None if much is None else {
        "words": much.words or None, "set": list(much.changes), "metrics": dict(much.metrics),
        "falls_short": much.falls_short or None,
    }  # fmt: skip


def _first(found: Sequence[Lifted]) -> str:
    """Return what ``--only`` calls the limit that helps most."""
    return next((one.name for one in found if one.name), NAMES[0])


def _named(one: Lifted) -> str:
    return f"{fill(one.limit, _WIDEST)}\n{fill(f'{one.key} ({one.name})', _WIDEST)}"


def _short(value: float | None) -> str:
    """Write a metric in few characters, so that the table fits 80 columns."""
    return f"{value:,.0f}" if value is not None and abs(value) >= 1000 else shown(value)
