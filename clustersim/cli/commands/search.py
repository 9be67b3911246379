"""``clustersim search``: the best of all legal plans."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time, total_time
from clustersim.cli.tables import print_table
from clustersim.interop.launch.launch import TARGETS, refusal_of
from clustersim.limits import Limits
from clustersim.report.layouts import layout as read
from clustersim.report.search.page import check_layout, search_html
from clustersim.report.words.progress import RunsLeft
from clustersim.search.executors import opened
from clustersim.search.journal import opened_journal
from clustersim.search.plans.deployments import Deployments, refuse_no_knob
from clustersim.search.plans.files import (
    digest,
    front_words,
    left_for,
    search_command,
    searched_of,
    write_search,
)
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.question import OBJECTIVES, Question
from clustersim.search.plans.result import Found, metrics
from clustersim.search.plans.room import AskedLaunch, room_of
from clustersim.search.plans.search import Search, found_by
from clustersim.search.point import Row
from clustersim.search.runs import Variants
from clustersim.search.varied import varied_of
from clustersim.units import plural

NEXT: Final = 4
"""Plans behind the finalists that the terminal lists; the page has all."""


@click.command()
@click.argument("scenario")
@click.option("--devices", type=options.Whole(1, 100_000), metavar="N", help="At most so many devices.")
@click.option("--exactly", is_flag=True, help="Use all of them.")
@click.option("--topology", metavar="NAME", help="In place of the scenario's.")
@click.option("--budget", metavar="USD/h", help="At most so much per hour: '100 USD/h'.")
@click.option("--knobs", multiple=True, metavar="KEY=VALUES", help="serving.max_batch_tokens=2048,8192.")
@click.option("--for", "target", type=options.Choice(TARGETS), help="Only plans that this starts: vllm, ...")
@click.option("--objective", type=options.Choice(OBJECTIVES), help="[per device; per USD with --budget].")
@options.goals
@click.option(
    "--lasting", callback=options.duration, default="100 s", show_default=True, help="Arrivals of a run last."
)
@click.option(
    "--effort",
    callback=options.most_seconds,
    metavar="TIME",
    default="60 s",
    show_default=True,
    help="Simulate for so long, of CPU and about; all: to the end.",
)
@click.option(
    "--front",
    type=options.Number(0, 1),
    metavar="SHARE",
    help="Simulate plans for the front, too, until none is expected to add more than this share of its area: 0.01.",
)
@click.option("--exhaustive", is_flag=True, help="Simulate every plan up to its capacity.")
@click.option("--layout", default="search", show_default=True, help="A dashboard's name, or its file.")
@options.many_runs
@memory_and_time
@total_time
def search(
    scenario: str,
    devices: int | None,
    exactly: bool,
    topology: str | None,
    budget: str | None,
    knobs: tuple[str, ...],
    target: str | None,
    objective: str | None,
    targets: str | None,
    share: float,
    lasting: float,
    effort: float,
    front: float | None,
    exhaustive: bool,
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
    """Find the best legal plan for the requests of SCENARIO: the one with the highest rate per device.

    Enumerates every legal plan (TP, SP, PP, EP, DP; one pool, and two with every ratio) with every combination of
    --knobs. What a bound that is proven rules out is not simulated; the rest is screened in order of bounds, and the
    best ones are simulated at length. Writes the best plan and those that tie with it, points.parquet and search.html.
    """
    began = time.monotonic()
    page = read(layout)
    check_layout(page)
    limits = Limits(memory_bytes=max_memory, seconds=max_time, total_seconds=max_total)
    changes = (*overrides, *((f"topology={topology}",) if topology else ()), *options.target_changes(targets))
    variants = Variants(scenario, changes, allow_code=allow_code or None, limits=limits)
    varied = [varied_of(text, "--knobs") for text in knobs]
    refuse_no_knob(varied)
    with options.naming_targets((*overrides, *((topology,) if topology else ())), targets):
        room, always = room_of(variants.scenario(), devices=devices, exactly=exactly, budget=budget)
        room = replace(room, launch=_asked_launch(target))
        chosen = objective or ("capacity_per_usd" if budget else "capacity_per_device")
        question = Question(
            room=room,
            share=share,
            lasting_s=lasting,
            objective=chosen,
            exhaustive=exhaustive,
            effort_s=effort,
            front=None if exhaustive else front,
        )
        room.refuse_unpriced(chosen)
        deployments = Deployments(variants, varied, always)
        name = deployments.base.name
        folder = out or Path("searches") / f"{name}-{digest(variants, question, varied)}"
        told = None if as_json or quiet else RunsLeft("plans")
        with opened(executor, workers) as executors, opened_journal(folder) as journal:
            try:
                found = found_by(Search(deployments, question, executors, journal), told)
            finally:
                if told is not None:
                    told.close()
    searched = searched_of(found, deployments, question)
    files = write_search(folder, found, deployments, searched, search_html(searched, page))
    if as_json:
        plain = {"for": target} | _plain(found, deployments, files, folder)
        click.echo(json.dumps(plain | {"wall_s": time.monotonic() - began}))
    elif not quiet:
        _print(found, deployments, folder, share, target)
        best = found.best
        command = search_command(found, deployments, best.standing, best.capacity)
        click.echo(options.kept_and_command(folder, command))


def _plain(found: Found, deployments: Deployments, files: dict[int, str], folder: Path) -> dict[str, Any]:
    front = [
        {
            "scenario": files[id(one.standing)],
            "plan": one.standing.words,
            "devices": one.standing.candidate.devices,
            "metrics": metrics(one.row)
            | {
                "rate_per_s": rate_of(one.step),
                "capacity_per_s": one.standing.capacity,
                "tokens_per_s_per_device": one.per_device,
                "user_tokens_per_s": one.user_rate,
            },
        }
        for one in found.front()
    ]
    best = found.best
    return {
        "legal": found.legal,
        "pruned": found.pruned,
        "simulated": sum(one.passed is not None for one in found.standings),
        "front": front,
        "best": {
            "scenario": files[id(best.standing)],
            "plan": best.standing.words,
            "devices": best.standing.candidate.devices,
            "capacity_per_s": best.capacity,
            "objective": found.objective,
            "value": found.value(best),
            "metrics": metrics(best.row),
            "ties": [
                {
                    "scenario": files[id(one.standing)],
                    "plan": one.standing.words,
                    "value": found.value(one),
                    "launches_for": _startable(deployments, one.standing),
                }
                for one in found.ties
            ],
            "command": search_command(found, deployments, best.standing, best.capacity),
            "launches_for": _startable(deployments, best.standing),
        },
        "certificate": found.certificate(),
        "out": str(folder),
    }  # fmt: skip


def _next(found: Found) -> list[tuple[Standing, float, Row]]:
    """Return the best plans that were simulated behind the finalists, the rate that each bore, and its row there."""
    last = {id(one.standing) for one in found.finalists}
    some = [
        (one, one.capacity, one.row)
        for one in found.standings
        if one.capacity is not None and one.row is not None and id(one) not in last
    ]
    return sorted(some, key=lambda one: -one[1] * found.worth(one[0]))[:NEXT]


def _asked_launch(target: str | None) -> AskedLaunch | None:
    if target is None:
        return None
    return AskedLaunch(name=target, refusal=lambda scenario: refusal_of(scenario, target))


def _startable(deployments: Deployments, one: Standing) -> list[str]:
    """Return what a plan can be launched for: what an engine refuses is legal, and nothing to start a server with."""
    scenario = deployments.scenario(one.candidate)
    return [target for target in TARGETS if refusal_of(scenario, target) is None]


def _startable_words(deployments: Deployments, one: Standing) -> str:
    found = _startable(deployments, one)
    return "all" if len(found) == len(TARGETS) else ",".join(found) or "none"


def _print(found: Found, deployments: Deployments, folder: Path, share: float, target: str | None) -> None:
    best = found.best
    told = found.certificate()
    click.echo(
        f"{best.standing.words} on {plural(best.standing.candidate.devices, 'device')}: {best.capacity:g} requests/s "
        f"({found.objective.replace('_', ' ')} {found.value(best):.4g})"
    )
    click.echo(f"a rate counts where {share:.0%} of requests meet every target")
    legal = f"{found.legal:,} legal plans" + (f" that launch for {target}" if target else "")
    pruned = ", ".join(f"{count:,} by {reason}" for reason, count in found.pruned.items() if count)
    click.echo(
        f"{legal}; pruned: {pruned or 'none'}; {told['screened']:,} screened by a run that fails; "
        f"{told['simulated']:,} simulated ({plural(found.runs, 'run')})"
    )
    if told["open"]:
        most, tie = f"{told['nearest_open']:.4g}", " (a tie with the best)" if told["settled"] else ""
        click.echo(f"{told['open']:,} left open, which reach {most} at most{tie}, {left_for(told)}")
    if found.filled is not None:
        click.echo(f"front: {front_words(found)}")
    rows = [
        (one.standing.words, f"{one.standing.candidate.devices}", f"{one.capacity:g}", f"{found.value(one):.4g}",
         *(f"{metrics(one.row).get(key, 0.0):,.1f}" for key in ("ttft_ms.p99", "tpot_ms.p99")),
         _startable_words(deployments, one.standing),
         "best" if one is best else "tie" if one in found.ties else "")
        for one in found.finalists
    ]  # fmt: skip
    rows += [
        (one.words, f"{one.candidate.devices}", f"{rate:g}", f"{rate * found.worth(one):.4g}",
         *(f"{metrics(row).get(key, 0.0):,.1f}" for key in ("ttft_ms.p99", "tpot_ms.p99")),
         _startable_words(deployments, one), "next")
        for one, rate, row in _next(found)
    ]  # fmt: skip
    value = found.objective.replace("_", " ")
    columns = ("plan", "devices", "requests/s", value, "TTFT p99 ms", "TPOT p99 ms", "launch --for", "")
    print_table(columns, rows, numbers_from=1)
    if len(rows) > len(found.finalists):
        click.echo("next: found in shorter runs than those of the best")
    click.echo(f"page     {folder / 'search.html'}")
