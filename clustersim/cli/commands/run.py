"""``clustersim run``: simulate a scenario, print the summary, write the run directory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time
from clustersim.cli.options import refuse_graph
from clustersim.cli.status import ILLEGAL
from clustersim.copies import at_once, beside
from clustersim.legality.rule import Verdict, together
from clustersim.limits import Limits
from clustersim.memory import give_back
from clustersim.replay.by_core import waits_for_compiler
from clustersim.report.files.run_directory import check_writable, write_run
from clustersim.report.files.summary import ALSO, legality_of, summary_of
from clustersim.report.files.vllm_bench import write_vllm_bench
from clustersim.report.layouts import overview
from clustersim.report.words.explain import explanation_lines, explanation_of
from clustersim.report.words.progress import ProgressBar
from clustersim.report.words.run import remarks
from clustersim.report.words.terminal import print_summary
from clustersim.scenario.expect import failed_expectations
from clustersim.scenario.load import load
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.audit import audit_run, violation_line
from clustersim.simulation.estimate import requests_within
from clustersim.simulation.legality import check_scenario, verdict_json, verdict_lines
from clustersim.simulation.simulate import RunResult, simulate

Answer: TypeAlias = Callable[[], tuple[Verdict, dict[str, float]]]
"""Says what the audit found, and the wall seconds that it took."""

_MANY: Final = 1 << 14
"""Requests whose audit takes longer than a copy of the process, which is 10 to 30 ms."""


@click.command()
@click.argument("scenario")
@click.option("--out", type=click.Path(path_type=Path), help="The run directory [runs/NAME-DIGEST].")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a value: plan.tp=8.")
@click.option("--replay", type=options.Choice(["full", "folded"]), help="Every operator an event, or folded.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@click.option("--explain", is_flag=True, help="Say what was folded and what was not, and why.")
@click.option("--processes", type=options.Whole(1, 1024), metavar="N", help="How many may work at once [cores].")
@click.option("--executor", help="Where the others are: dask[:ADDRESS] or ray[:ADDRESS].")
@click.option("--vllm-json", type=options.Written(), help="Write results as vLLM's serving benchmark does.")
@click.option("--save-detailed", is_flag=True, help="With --vllm-json: the lists by request, too, as vLLM has them.")
@options.allow_code
@click.option("--dashboard/--no-dashboard", default=True, help="Write dashboard.html, too [yes].")
@options.script
@click.option("--audit/--no-audit", default=True, help="Check that what was recorded is legal [yes].")
@memory_and_time
@click.pass_context
def run(
    ctx: click.Context,
    scenario: str,
    out: Path | None,
    overrides: tuple[str, ...],
    replay: str | None,
    as_json: bool,
    quiet: bool,
    explain: bool,
    processes: int | None,
    executor: str | None,
    vllm_json: Path | None,
    save_detailed: bool,
    allow_code: bool,
    dashboard: bool,
    script: str,
    audit: bool,
    max_memory: float,
    max_time: float,
) -> None:
    """Simulate SCENARIO (a path, or the name of one that ships)."""
    if save_detailed and vllm_json is None:
        raise click.UsageError("--save-detailed says what --vllm-json writes; add --vllm-json FILE")
    refuse_graph(scenario)
    started = time.perf_counter()
    ctx.with_resource(at_once(processes))
    chosen = (*overrides, f"run.replay={replay}") if replay else overrides
    loaded = load(scenario, chosen, allow_code=allow_code or None)
    target = out if out is not None else Path("runs") / f"{loaded.name}-{loaded.digest[:12]}"
    verdict = check_scenario(loaded)
    if verdict.violations:
        _refuse(ctx, loaded, verdict, as_json=as_json)
        return
    loaded.refuse_code()
    check_writable(target)
    requests = requests_within(loaded, Limits(memory_bytes=max_memory, seconds=max_time))
    with _elsewhere(executor, processes) as (pool, count), ProgressBar() as progress:
        shown, by_events = (None, None) if as_json or quiet else (progress, progress.by_events)
        each = loaded.each_pool()
        staged = any(one.plan.pp > 1 for one in each)
        if shown is not None and waits_for_compiler(requests, staged=staged):
            click.echo("the simulator may be compiled first, once on a machine: some 20 s", err=True)
        result = simulate(loaded, shown, count, requests, pool, by_events=by_events)
    layout, above = overview() if dashboard else None, 1 if script == "beside" else None
    with _audited(result) if audit else nullcontext(_unasked) as answer:
        summary = summary_of(result, also=ALSO)
        write_run(target, result, summary, lambda: together((verdict, answer()[0])), layout, above)
    audited, audit_s = answer()
    summary |= legality_of(together((verdict, audited)))
    if vllm_json is not None:
        write_vllm_bench(vllm_json, result, detailed=save_detailed)
    wall_s = {"total": time.perf_counter() - started, "simulate": result.simulate_s, **audit_s}
    timed = {**summary, "wall_s": wall_s}
    failures = failed_expectations(loaded.expect, timed)
    plans = [one.plan for one in result.scenario.each_pool()]
    explained = {"explain": explanation_of(result.replayed, plans)} if explain else {}
    if as_json:
        click.echo(json.dumps({**timed, "run_dir": str(target), **explained}))
    elif not quiet:
        _print(result, timed, target, target / "dashboard.html" if dashboard else None)
    if (as_json or quiet) and summary["requests"]["rejected"]:
        why = next(line for line in remarks(summary) if "rejected" in line)
        click.echo(f"note: {why}", err=True)
    if explain and not as_json:
        click.echo("\n".join(explanation_lines(explained["explain"])), err=True)
    for failure in failures:
        click.echo(f"expect: {failure}", err=True)
    for violation in audited.violations:
        click.echo(violation_line(violation), err=True)
    if failures or audited.violations:
        ctx.exit(ILLEGAL)


@contextmanager
def _elsewhere(executor: str | None, processes: int | None) -> Iterator[tuple[Executor | None, int | None]]:
    """Open the executor that is asked for; yield it, and in how many processes to replay: its own and this one."""
    if executor in (None, "local"):
        yield None, processes
        return
    from clustersim.search.executors import opened

    others = None if processes is None else max(1, processes - 1)
    with opened(executor, others) as executors, executors.pool() as pool:
        yield pool, executors.workers + 1 if processes is None else processes


def _audited(result: RunResult) -> AbstractContextManager[Answer]:
    """Audit what was recorded, that of many requests beside what else is done; return what waits for the answer."""

    def audited() -> tuple[Verdict, dict[str, float]]:
        started = time.perf_counter()
        verdict = audit_run(result)
        return verdict, {"audit": time.perf_counter() - started}

    if len(result.times.count) < _MANY:
        return nullcontext(cache(audited))
    give_back(len(result.table["request"]))  # both need the table; a copy has what is there, however little it needs
    return beside(audited)


def _unasked() -> tuple[Verdict, dict[str, float]]:
    """Answer where nobody asked for an audit."""
    return Verdict(violations=(), rules=()), {}


def _refuse(ctx: click.Context, scenario: Scenario, verdict: Verdict, *, as_json: bool) -> None:
    """Report what is illegal before it runs: it is not simulated. A scenario that expects that has done its work."""
    named = {"name": scenario.name, "digest": scenario.digest, "seed": scenario.seed}
    outcome = named | legality_of(verdict)
    failures = failed_expectations(scenario.expect, outcome) if scenario.expect else ["legal"]
    if as_json:
        click.echo(json.dumps({**outcome, **verdict_json(scenario, verdict)}))
    else:
        for line in verdict_lines(scenario, verdict):
            click.echo(line, err=True)
    expected = bool(scenario.expect) and not failures
    if expected:
        click.echo("as expected: it is illegal, so nothing was simulated", err=True)
    ctx.exit(0 if expected else ILLEGAL)


def _print(result: RunResult, summary: dict[str, Any], target: Path, dashboard: Path | None) -> None:
    requests, steps = result.columns, result.step_rows.rows
    print_summary(
        summary,
        remarks=[*remarks(summary, requests, steps), *result.notes],
        run_dir=target,
        dashboard=dashboard,
    )
