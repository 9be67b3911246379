"""``clustersim search``: the best of all legal plans."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time, total_time
from clustersim.cli.searches import plain_of, print_answer, print_written
from clustersim.cli.signals import write_on
from clustersim.cli.status import drop_stdout
from clustersim.errors import InputError, Problem, TerminatedError, UnreachedError
from clustersim.interop.launch.launch import TARGETS, launch_of, refusal_of
from clustersim.limits import Limits
from clustersim.report.layouts import layout as read
from clustersim.report.search.page import check_layout, search_html
from clustersim.report.words.progress import RunsLeft
from clustersim.search.executors import Executors, opened
from clustersim.search.journal import Journal, opened_journal
from clustersim.search.load import at_rate
from clustersim.search.plans.deployments import Deployments, refuse_no_knob
from clustersim.search.plans.files import digest, searched_of, write_search
from clustersim.search.plans.fixed.page import fixed_searched_of
from clustersim.search.plans.fixed.result import Fixed
from clustersim.search.plans.fixed.search import FixedSearch, fixed_by
from clustersim.search.plans.front.search import with_front
from clustersim.search.plans.nearest import nearest_of
from clustersim.search.plans.question import OBJECTIVES, Question
from clustersim.search.plans.result import Found
from clustersim.search.plans.room import AskedLaunch, room_of
from clustersim.search.plans.search import Search, found_by, with_whole
from clustersim.search.runs import Variants
from clustersim.search.varied import varied_of
from clustersim.units import format_seconds

FRONT: Final = 0.0005
"""Of the area below the front, that no run may be expected to add (measured: 0.99 of what all runs have)."""
_SLOWEST: Final = 2.0
"""Seconds that one of effort may take (assumed): whatever compiling takes once, the rest takes no more of each."""


@click.command()
@click.argument("scenario")
@click.option("--devices", type=options.Whole(1, 100_000), metavar="N", help="At most so many devices.")
@click.option("--exactly", is_flag=True, help="Use all of them.")
@click.option("--topology", metavar="NAME", help="In place of the scenario's.")
@click.option("--budget", metavar="USD/h", help="At most so much per hour: '100 USD/h'.")
@click.option("--knobs", multiple=True, metavar="KEY=VALUES", help="serving.max_batch_tokens=2048,8192.")
@click.option("--for", "target", type=options.Choice(TARGETS), help="Only plans that this starts: vllm, ...")
@click.option(
    "--objective",
    metavar="NUMBER",
    help=f"{', '.join(OBJECTIVES)}; or a number of the summary, at the rate that the scenario has: tpot_ms.p99.",
)
@click.option("--rate", callback=options.rate, metavar="RATE", help="That rate, such as '20/s' [the scenario's].")
@options.goals
@click.option(
    "--lasting", callback=options.some_time, default="100 s", show_default=True, help="Arrivals of a run last."
)
@click.option(
    "--effort",
    callback=options.most_seconds,
    metavar="TIME",
    default="180 s",
    show_default=True,
    help="Take so long, of CPU and about, the front included; all: to the end.",
)
@click.option(
    "--front",
    type=options.Number(0, 1),
    metavar="SHARE",
    help="For the front, simulate until no run is expected to add more than this share of its area, for as much effort "
    f"again; 1: none [{FRONT}, for half of the effort, of more than 512 plans a quarter, or what is left].",
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
    rate: float | None,
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
    varied = [varied_of(text, "--knobs") for text in knobs]
    refuse_no_knob(varied)
    asked = ({f"topology={topology}": "--topology"} if topology else {}) | options.target_changes(targets)
    knob_flags = {text: f"--knobs {text}" for one in varied for text in one.changes}
    flags = knob_flags | asked
    variants = Variants(scenario, (*overrides, *asked), allow_code=allow_code or None, limits=limits, flags=flags)
    usd = None if budget is None else options.price(budget, "--budget", "100 USD/h")
    if any(text.partition("=")[0].partition(".")[0] == "plan" for text in overrides):
        click.echo("note: --set plan…: changes nothing, as every plan is enumerated; of one: clustersim rate", err=True)
    room, always = room_of(variants.scenario(), devices=devices, exactly=exactly, usd=usd)
    room = replace(room, launch=_asked_launch(target))
    chosen = ("capacity_per_usd" if budget else "capacity_per_device") if objective is None else objective
    if rate is not None and chosen in OBJECTIVES:
        message = f"is for an --objective that is a number of the summary; {chosen} looks for the highest rate"
        raise InputError(Problem(path="--rate", message=message))
    question = Question(
        room=room,
        share=share,
        lasting_s=lasting,
        objective=chosen,
        exhaustive=exhaustive,
        effort_s=effort,
        rate_per_s=rate,
        front=None if front == 1.0 or (front is None and exhaustive) else FRONT if front is None else front,
        front_s=None if front is None else effort,
    )
    room.refuse_unpriced(chosen)
    if rate is not None:
        always = (*always, *at_rate(variants.scenario(), variants.requests, rate))
    deployments = Deployments(variants, varied, always, pairs=room.devices > 1)
    name = deployments.base.name
    folder = out or Path("searches") / f"{name}-{digest(variants, question, varied)}"
    told = _Told(deployments, target, is_quiet=as_json or quiet)
    stopped: BaseException | None = None
    try:
        with opened(executor, workers) as executors, opened_journal(folder) as journal:
            _search(deployments, question, executors, journal, told)
    except (KeyboardInterrupt, TerminatedError) as error:
        if told.found is None:
            raise
        write_on()
        stopped = error
    finally:
        told.close()
    stopped = stopped or told.gone
    found = told.found
    assert found is not None
    if isinstance(found, Found):
        searched = searched_of(found, deployments, question)
    else:
        searched = fixed_searched_of(found, deployments, question)
    if target is not None and (other := _simulated_as(deployments, found, target)):
        click.echo(f"simulated as {other}, launched for {target}; --set serving.engine=… simulates another", err=True)
    files = write_search(folder, found, deployments, searched, search_html(searched, page))
    if as_json:
        plain = {"for": target} | plain_of(found, deployments, files, folder)
        click.echo(json.dumps(plain | {"answer_s": told.answered - began, "wall_s": time.monotonic() - began}))
    elif not quiet:
        has_front = question.front is None or not isinstance(found, Found) or found.filled is not None
        print_written(found, deployments, folder, is_cut=stopped is not None and not has_front)
    if stopped is not None:
        raise stopped
    if found.unreached is not None:
        raise found.unreached


class _Told:
    """What is told of a search under way, and what it found so far."""

    def __init__(self, deployments: Deployments, target: str | None, *, is_quiet: bool) -> None:
        self._deployments, self._target, self._is_quiet = deployments, target, is_quiet
        self.found: Found | Fixed | None = None
        self.answered = 0.0
        self.gone: BaseException | None = None
        """How printing ended where the reader of standard output was gone: files are written all the same."""
        self.left: RunsLeft | None = None

    def begin(
        self, work: Callable[[], tuple[float, float]] | None = None, *, has_front: bool = False
    ) -> RunsLeft | None:
        """Return what tells how far it is."""
        self.left = None if self._is_quiet else RunsLeft("plans", work=work, slowest=_SLOWEST)
        if self.left is not None and has_front:
            self.left.then = "the front"
        return self.left

    def answer(self, found: Found | Fixed) -> None:
        """Print the answer."""
        self.close()
        self.found, self.answered = found, time.monotonic()
        if self._is_quiet:
            return
        try:
            print_answer(found, self._deployments, self._target)
        except (BrokenPipeError, SystemExit) as gone:  # tables leave by SystemExit
            drop_stdout()
            self.gone = gone

    def front(self, left_s: float) -> None:
        """Say that runs for the front begin; Ctrl-C, or SIGTERM, leaves it at what there is."""
        if self.left is not None:
            self.left.noun, self.left.then, self.left.most = "plans; the front", "", "at most "
            if left_s <= 0.0:
                click.echo("front    is not looked for: no effort is left (more --effort goes on)", err=True)
                return
            most = f", for {format_seconds(left_s)} of CPU at most" if math.isfinite(left_s) else ""
            click.echo(f"front    is looked for{most}; Ctrl-C or SIGTERM leaves it at what there is", err=True)

    def close(self) -> None:
        """Clear the line of a terminal."""
        if self.left is not None:
            self.left.close()


def _search(deployments: Deployments, question: Question, executors: Executors, journal: Journal, told: _Told) -> None:
    """Search by capacity, or by a number at one rate, and tell what is best; the front comes behind the answer."""
    if question.is_fixed:
        told.answer(fixed_by(FixedSearch(deployments, question, executors, journal), told.begin()))
        return
    made = Search(deployments, question, executors, journal)
    left = told.begin(made.work, has_front=question.front is not None)
    try:
        found = found_by(made, left)
    except UnreachedError as unreached:
        made, found = nearest_of(made, unreached, left)
    try:
        found = with_whole(made, found, [found.best])
    finally:
        told.answer(found)
    told.found = with_front(made, found, told.front)
    told.found = with_whole(made, told.found, found.ties)


def _simulated_as(deployments: Deployments, found: Found | Fixed, target: str) -> str:
    """Return the engine whose host times and policy the best plan has, where that is not the one it is launched for."""
    scenario = deployments.scenario(found.answers()[0].standing.candidate)
    return launch_of(scenario, target, model=scenario.model.name).simulated_as


def _asked_launch(target: str | None) -> AskedLaunch | None:
    if target is None:
        return None
    return AskedLaunch(name=target, refusal=lambda scenario, beside: refusal_of(scenario, target, beside=beside))
