"""What a search prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from clustersim.cli.options import kept_and_command
from clustersim.cli.tables import print_table
from clustersim.interop.launch.launch import TARGETS, refusal_of
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.files import front_words, left_for, search_command
from clustersim.search.plans.fixed.result import Fixed, rate_words
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.result import Found, metrics
from clustersim.search.point import Row
from clustersim.units import plural

NEXT: Final = 4
"""Plans behind the finalists that the terminal lists; the page has all."""


def plain_of(found: Found | Fixed, deployments: Deployments, files: dict[int, str], folder: Path) -> dict[str, Any]:
    """Return a search as JSON has it."""
    front = [
        {
            "scenario": files[id(one.standing)],
            "plan": one.standing.words,
            "devices": one.standing.candidate.devices,
            "metrics": metrics(one.row)
            | {
                "rate_per_s": found.rate_per_s if isinstance(found, Fixed) else rate_of(one.step),
                "capacity_per_s": one.standing.capacity,
                "tokens_per_s_per_device": one.per_device,
                "user_tokens_per_s": one.user_rate,
            },
        }
        for one in found.front()
    ]
    best, *ties = found.answers()
    return {
        "legal": found.legal,
        "pruned": found.pruned,
        "simulated": sum(one.passed is not None or one.fate == "simulated" for one in found.standings),
        "front": front,
        "best": {
            "scenario": files[id(best.standing)],
            "plan": best.standing.words,
            "devices": best.standing.candidate.devices,
            "capacity_per_s": best.rate,
            "objective": found.objective,
            "value": best.value,
            "metrics": metrics(best.row),
            "ties": [
                {
                    "scenario": files[id(one.standing)],
                    "plan": one.standing.words,
                    "value": one.value,
                    "launches_for": _startable(deployments, one.standing),
                }
                for one in ties
            ],
            "command": search_command(found, deployments, best.standing, best.rate),
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


def _startable(deployments: Deployments, one: Standing) -> list[str]:
    """Return what a plan can be launched for: what an engine refuses is legal, and nothing to start a server with."""
    scenario = deployments.scenario(one.candidate)
    return [target for target in TARGETS if refusal_of(scenario, target) is None]


def _startable_words(deployments: Deployments, one: Standing) -> str:
    found = _startable(deployments, one)
    return "all" if len(found) == len(TARGETS) else ",".join(found) or "none"


def print_found(found: Found, deployments: Deployments, folder: Path, share: float, target: str | None) -> None:
    """Print the best plan by capacity, and those next to it."""
    best = found.best
    told = found.certificate()
    click.echo(
        f"{best.standing.words} on {plural(best.standing.candidate.devices, 'device')}: {best.capacity:g} requests/s "
        f"({found.objective.replace('_', ' ')} {found.value(best):.4g})"
    )
    click.echo(f"a rate counts where {share:.0%} of requests meet every target")
    click.echo(
        f"{_legal_words(found, target)}; {told['screened']:,} screened by a run that fails; "
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
    _print_page(folder, found, deployments, best.standing, best.capacity)


def print_fixed(found: Fixed, deployments: Deployments, folder: Path, target: str | None) -> None:
    """Print the best plan by a number of the summary, and those next to it."""
    best, told = found.best, found.certificate()
    click.echo(
        f"{best.words} on {plural(best.candidate.devices, 'device')}: {found.objective} {found.value(best):.6g} "
        f"({found.direction}) at {rate_words(found.rate_per_s)}"
    )
    if found.share is not None:
        click.echo(f"a plan counts where {found.share:.0%} of requests meet every target")
    late = f"; of {told['too_few_in_time']:,} too few requests meet their targets" if told["too_few_in_time"] else ""
    click.echo(f"{_legal_words(found, target)}; {told['simulated']:,} simulated ({plural(found.runs, 'run')}){late}")
    if told["open"]:
        click.echo(f"{told['open']:,} left open, of which nothing is known: the effort was spent (--effort goes on)")
    ties = found.ties
    shown = [one for one in found.ranked if one is best or one in ties]
    shown += [one for one in found.ranked if one not in shown][:NEXT]
    rows = [
        (one.words, f"{one.candidate.devices}", f"{found.value(one):.6g}",
         *(f"{metrics(one.row).get(key, 0.0):,.1f}" for key in ("ttft_ms.p99", "tpot_ms.p99")),
         _startable_words(deployments, one), "best" if one is best else "tie" if one in ties else "next")
        for one in shown
    ]  # fmt: skip
    columns = ("plan", "devices", found.objective, "TTFT p99 ms", "TPOT p99 ms", "launch --for", "")
    print_table(columns, rows, numbers_from=1)
    _print_page(folder, found, deployments, best, None)


def _legal_words(found: Found | Fixed, target: str | None) -> str:
    legal = plural(found.legal, "legal plan") + (f" that launch for {target}" if target else "")
    pruned = ", ".join(f"{count:,} by {reason}" for reason, count in found.pruned.items() if count)
    return f"{legal}; pruned: {pruned or 'none'}"


def _print_page(
    folder: Path, found: Found | Fixed, deployments: Deployments, best: Standing, rate: float | None
) -> None:
    click.echo(f"page     {folder / 'search.html'}")
    click.echo(kept_and_command(folder, search_command(found, deployments, best, rate)))
