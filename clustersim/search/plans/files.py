"""What a search writes: the best plan and its ties as scenarios, a table of all plans, and what its page shows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from clustersim.files import written_whole
from clustersim.report.search.searched import Plan, Searched
from clustersim.scenario.resolve import to_yaml
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.finals import TIES, Finalist
from clustersim.search.plans.front.points import Point, at_capacity
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.launches import launch_words, not_started
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.question import Question
from clustersim.search.plans.result import UNITS, Found, left_for, most_open
from clustersim.search.plans.standings import Standings, metrics
from clustersim.search.runs import Variants
from clustersim.search.sweep import POINTS, command_of
from clustersim.search.varied import Varied
from clustersim.units import format_asked, format_share, plural

PAGE: Final = "search.html"
LAUNCHED: Final = 100
"""Simulated plans behind the finalists of which it is told what starts them, which takes 5 ms each."""
LEAST: Final = "goodput.share_least"
"""Of the runs of a finalist, one for each seed."""
CONFIRMED: Final = "confirmed_per_s"
"""The rate at which enough requests meet their targets in the run of a plan's command."""
_RANKED: Final = re.compile(r"(tie|front)-[0-9]+\.yaml")
_ORDER: Final = ("best", "tie", "simulated", "screened", "open", "failed", "pruned")


def digest(variants: Variants, question: Any, knobs: Sequence[Varied]) -> str:
    """Return what tells a search from others of its scenario."""
    asked = repr(replace(question, effort_s=0.0, front=None, front_s=None))  # which only say how far to go
    told = json.dumps([variants.text, variants.overrides, asked, [(one.key, one.values) for one in knobs]])
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def searched_of(found: Found, deployments: Deployments, question: Question) -> Searched:
    """Return what the page of a search shows."""
    front = found.front()
    on_front = {id(one.standing) for one in front}
    long = {id(one.standing): one for one in found.finalists}
    ties = {id(one.standing) for one in found.ties}
    best = found.best
    able = [one for one in found.standings if one.fate == "simulated"]
    able.sort(key=lambda one: -(one.capacity or 0.0) * found.worth(one))
    simulated = {id(one) for one in able[:LAUNCHED]}
    plans = []
    for one in found.standings:
        finalist = long.get(id(one))
        reached = finalist.capacity if finalist is not None else one.capacity
        fate = "best" if one is best.standing else "tie" if id(one) in ties else one.fate
        worth, point, row = found.worth(one), at_capacity(one), one.row if one.passed is not None else None
        numbers, rate = metrics(one, row), reached
        if finalist is not None and finalist.row is not None and finalist.step is not None:
            row, whole, rate = finalist.row, finalist.whole, finalist.rate
            point = Point(standing=one, step=finalist.step if finalist.ran is None else finalist.ran, row=row)
            numbers = metrics(one, whole or row, is_whole=whole is not None) | {LEAST: min(finalist.shares)}
            numbers |= {CONFIRMED: rate} if finalist.is_confirmed else {}
        bound = one.bound.step is not None and one.bound.why == "most requests per second"
        plans.append(
            Plan(
                words=one.words,
                devices=one.candidate.devices,
                usd_per_hour=question.room.cost(one.candidate),
                fate=fate,
                why=_why(one, fate, found) if finalist is None else _final_why(finalist, fate, found),
                bound=_step_value(one) * worth if bound else None,
                reached=None if reached is None else reached * worth,
                requests_per_s=reached,
                numbers=numbers,
                tokens_per_device=None if point is None else point.per_device,
                tokens_per_user=None if point is None else point.user_rate,
                on_front=id(one) in on_front,
                stands_for=one.same * one.partitions,
                at_length=None if reached is None else finalist is not None,
                command=search_command(found, deployments, one, rate),
                launches_for=launch_words(deployments, one) if finalist is not None or id(one) in simulated else None,
            )
        )
    plans.sort(key=lambda plan: (_ORDER.index(plan.fate), -(plan.reached or 0.0), -(plan.bound or 0.0), plan.words))
    return Searched(
        name=deployments.base.name,
        unit=UNITS[found.objective],
        subtitle=f"{legal_words(found, question)}; best: {best.standing.words}{found.confirmed_words()}"
        + not_started(deployments, found, "; "),
        plans=plans,
        front=found.drawn(),
        certificate=_sentences(found, question),
    )


def launched_words(found: Standings, target: str | None) -> str:
    """Return how many plans are legal, and whose servers are started, which not all are where their ranks lie."""
    if target is None:
        return plural(found.legal, "legal plan")
    servers = f"{plural(found.legal, 'legal plan')} of servers that launch for {target}"
    return servers + (f" ({found.unplaced:,} of them do not where their ranks are)" if found.unplaced else "")


def legal_words(found: Standings, question: Question) -> str:
    """Return how many plans are legal, and on what."""
    many = "exactly" if question.room.exactly else "at most"
    launch = question.room.launch
    legal = launched_words(found, launch.name if launch else None)
    return f"{legal} on {many} {plural(question.room.devices, 'device')}"


def search_command(found: Standings, deployments: Deployments, one: Standing, rate: float | None) -> str:
    """Return the command that simulates a plan at a rate, or the scenario's where none is known."""
    return command_of(deployments.variants, (*deployments.changes(one.candidate), *found.rated(one, rate)))


def _step_value(one: Standing) -> float:
    return rate_of(one.bound.step or 0)


def _final_why(one: Finalist, fate: str, found: Found) -> str:
    if fate == "best":
        return "reaches most at length" if found.ties else ""
    tie = f": a tie, as it is less than {TIES:.0%} apart" if fate == "tie" else ""
    return f"reaches {format_share(found.value(one) / found.value(found.best))} of the best at length{tie}"


def _why(one: Standing, fate: str, found: Found) -> str:
    if fate == "pruned" and one.why == "most requests per second":
        return f"proven: fewer than {_step_value(one):.4g} requests/s"
    if fate == "pruned":
        return f"proven: {one.why}" + (
            f" is {one.bound.tpot_ms:.4g} ms" if one.why == "least TPOT" and one.bound.tpot_ms else ""
        )
    if fate == "screened" and one.row is not None and one.passed is None:
        cut = one.numbers.get("cut_s")
        share = one.numbers["goodput.share"]
        return f"{one.why}: {'at most ' if cut else ''}{format_share(share)} meet their targets" + (
            f", seen after {cut:.0f} s" if cut else ""
        )
    if fate == "simulated" and one.capacity is not None:
        return f"reaches {found.short_share(one)} of the best in short runs" + (f"; {one.why}" if one.why else "")
    return "" if fate in ("best", "tie") else one.why


def _sentences(found: Found, question: Question) -> list[str]:
    told = found.certificate()
    unit = UNITS[found.objective]
    launch = question.room.launch
    value = f"{'at least ' * found.best.is_cut}{found.value(found.best):.4g}"
    shares = ", ".join(format_share(share) for share in found.best.shares)
    lines = [
        f"The best plan bears {value} {unit} arriving; at length {shares} of requests meet their targets "
        f"(asked: {format_asked(found.share or 0.0)})"
        + (", one figure for each seed" if len(found.best.shares) > 1 else "")
        + ".",
        "; ".join(
            (
                f"{launched_words(found, launch.name if launch else None)} (rules of level P)",
                *(f"{plural(count, 'is', 'are')} left out by {reason}" for reason, count in told["pruned"].items()),
            )
        )
        + ".",
    ]
    if found.unreached is not None:
        lines.insert(0, f"Not reached: {found.unreached.problems[0].message}.")
    if whole := found.whole_words():
        lines.insert(1 if found.best.is_confirmed else 0, f"{whole[:1].upper()}{whole[1:]}.")
    if told["nearest_pruned"] is not None:
        lines.append(
            f"Of those left out by their bound the best can reach {told['nearest_pruned']:.4g} {unit} at most."
        )
    if told["screened"]:
        ran = told["screened"] - told["looked_at"]
        lines.append(
            f"{plural(told['screened'], 'plan fails', 'plans fail')} at a rate above what the third best reaches, "
            f"{told['looked_at']:,} of them in a look, at the least times of their steps (which is no proof), {ran:,} "
            f"in a run; the highest of these rates is {told['nearest_screened']:.4g} {unit}."
        )
    if told["open"]:
        most = most_open(told, unit)
        lines.append(
            f"{plural(told['open'], 'plan was', 'plans were')} not simulated to the end, {most}, {left_for(told)}."
        )
    whose = "its" if told["simulated"] == 1 else "their"
    lines.append(f"{plural(told['simulated'], 'plan is', 'plans are')} simulated up to {whose} capacity.")
    if found.filled is not None:
        lines.append(f"For the front {found.front_words()}.")
    lines += [f"{reason}: {plural(count, 'plan')}." for reason, count in told["failed"].items()]
    return [*lines, *(f"Uncertain: {text}." for text in told["uncertain"])]


def write_search(
    folder: Path, found: Standings, deployments: Deployments, searched: Searched, html: str
) -> dict[tuple[int, float | None], str]:
    """Write scenarios, table and page; return the file of each plan that has one, by its standing's id and a rate.

    The best plan and its ties, without a rate, have the requests of their commands; those of the front have theirs.
    """
    best, *ties = found.answers()
    named: list[tuple[str, Standing, float | None, float | None]] = [("best", best.standing, None, best.ran)]
    named += [(f"tie-{at}", one.standing, None, one.ran) for at, one in enumerate(ties, 2)]
    front = found.front()
    rates = [(one.standing, found.rate_at(one)) for one in front]
    named += [(f"front-{at}", one, rate, rate) for at, (one, rate) in enumerate(rates, 1)]
    files: dict[tuple[int, float | None], str] = {}
    whole = {id(one.standing) for one in (best, *ties) if one.is_whole}
    runs = {f"front-{at}": found.run_words(one) for at, one in enumerate(front, 1)}
    for name, one, key, rate in named:
        path = folder / f"{name}.yaml"
        changes = (*deployments.changes(one.candidate), *found.rated(one, rate))
        with written_whole(path) as beside:
            text = to_yaml(deployments.variants.scenario(changes).document)
            head = _head(one, runs.get(name, ""), is_whole=key is None and id(one) in whole)
            beside.write_text(f"{head}{text}", encoding="utf-8")
        files.setdefault((id(one), key), str(path))
    for path in folder.iterdir():
        if _RANKED.fullmatch(path.name) and path.stem not in {name for name, *_ in named}:
            path.unlink(missing_ok=True)  # of a search before, that had more of them
    with written_whole(folder / POINTS) as beside:
        pq.write_table(table_of(searched), beside)
    with written_whole(folder / PAGE) as beside:
        beside.write_text(html, encoding="utf-8")
    return files


def _head(one: Standing, run: str, *, is_whole: bool) -> str:
    """Return a comment above a scenario: its plan, the run that the front has of it, and whether what is told of it is
    of a part."""
    told = f"# {one.words}\n" + (f"# The front has a {run} of it.\n" if run else "")
    if one.part and not is_whole:
        told += f"# In what the search tells {one.part}: this file runs all, which may give slightly other figures.\n"
    return told


def table_of(searched: Searched) -> pa.Table:
    """Return ``points.parquet``: a row per plan, with what became of it, why, and its command."""
    plans = searched.plans
    columns: dict[str, Any] = {
        name: [getattr(plan, name) for plan in plans]
        for name in (
            "words", "devices", "usd_per_hour", "fate", "why", "bound", "reached", "requests_per_s", "at_length",
            "tokens_per_device", "tokens_per_user", "on_front", "stands_for", "launches_for",
        )
    }  # fmt: skip
    for key in dict.fromkeys(key for plan in plans for key in plan.numbers):
        columns[key] = [plan.numbers.get(key) for plan in plans]
    floats = ("usd_per_hour", "bound", "reached", "requests_per_s", "tokens_per_device", "tokens_per_user")
    kinds = dict.fromkeys(floats, pa.float64()) | {"at_length": pa.bool_()}
    made = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    return pa.table(made | {"command": pa.array([plan.command for plan in plans], pa.string())})
