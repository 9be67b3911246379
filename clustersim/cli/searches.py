"""What a search prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clustersim.cli.options import kept_and_command, print_confidence
from clustersim.cli.tables import print_table
from clustersim.scenario.confidence import confidence_of
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.files import launched_words, search_command
from clustersim.search.plans.finals import TIES
from clustersim.search.plans.launches import launch_words, launches_of, not_started
from clustersim.search.plans.standings import Standings, metrics


def plain_of(
    found: Standings, deployments: Deployments, files: dict[tuple[int, float | None], str], folder: Path
) -> dict[str, Any]:
    """Return a search as JSON has it."""
    front = [
        {
            "scenario": files[id(one.standing), found.rate_at(one)],
            "plan": one.standing.words,
            "devices": one.standing.candidate.devices,
            "metrics": metrics(one.standing, one.row)
            | {
                "rate_per_s": found.rate_at(one),
                "capacity_per_s": found.capacity_of(one.standing),
                "short_capacity_per_s": one.standing.capacity,
                "tokens_per_s_per_device": one.per_device,
                "user_tokens_per_s": one.user_rate,
            },
            "run": {
                "at_length": found.is_at_length(one.standing, found.rate_at(one)),
                "requests": one.requests,
                "replicas": one.standing.part or "all",
            },
        }
        for one in found.front()
    ]
    best, *ties = found.answers()
    told = found.certificate()
    return {
        "legal": found.legal,
        "pruned": told["pruned"],
        "simulated": told["simulated"],
        "simulated_for_front": (told.get("front") or {}).get("plans", 0),
        "front": front,
        "best": {
            "scenario": files[id(best.standing), None],
            "plan": best.standing.words,
            "devices": best.standing.candidate.devices,
            "capacity_per_s": best.rate,
            "confirmed_per_s": best.ran if best.is_confirmed else None,
            "is_cut": best.is_cut,
            "objective": found.objective,
            "value": best.value,
            "metrics": metrics(best.standing, best.row, is_whole=best.is_whole),
            "shares": list(best.shares),
            "ties": [
                {
                    "scenario": files[id(one.standing), None],
                    "plan": one.standing.words,
                    "value": one.value,
                    "confirmed_per_s": one.ran if one.is_confirmed else None,
                    "is_cut": one.is_cut,
                    "launches_for": launches_of(deployments, one.standing),
                }
                for one in ties
            ],
            "command": search_command(found, deployments, best.standing, best.ran),
            "launches_for": launches_of(deployments, best.standing),
        },
        "confidence": confidence_of(deployments.scenario(best.standing.candidate)),
        "certificate": told,
        "out": str(folder),
    }  # fmt: skip


def print_answer(found: Standings, deployments: Deployments, target: str | None) -> None:
    """Print the best plan, how it was found, and those next to it."""
    legal = launched_words(found, target)
    pruned = ", ".join(f"{count:,} by {reason}" for reason, count in found.pruned.items() if count)
    first, *rest = found.head(f"{legal}; pruned: {pruned or 'none'}")
    refused = not_started(deployments, found)
    for line in (first, *([refused] if refused else []), *rest):
        click.echo(line)
    is_short = bool(found.next_words)
    rows = [
        (one.standing.words, f"{one.standing.candidate.devices}", *one.reached,
         *(f"{metrics(one.standing, one.row).get(key, 0.0):,.1f}" for key in ("ttft_ms.p99", "tpot_ms.p99")),
         launch_words(deployments, one.standing), "short runs, " * (one.rank == "next" and is_short) + one.rank)
        for one in found.shown()
    ]  # fmt: skip
    columns = ("plan", "devices", *found.columns, "TTFT p99 ms", "TPOT p99 ms", "launch --for", "")
    print_table(columns, rows, numbers_from=1, numbered=True)
    if any(one.rank == "tie" for one in found.shown()):
        click.echo(f"tie: less than {TIES:.0%} from the best, as much as a seed changes")
    if found.next_words and any(one.rank == "next" for one in found.shown()):
        click.echo(f"next: {found.next_words}")
    if any(one.standing.row_devices < one.standing.candidate.devices for one in found.shown()):
        click.echo("p99: of the first seed, and of one replica that stands for all (of two pools, of the fewest)")
    print_confidence(deployments.scenario(found.answers()[0].standing.candidate))


def print_written(found: Standings, deployments: Deployments, folder: Path, *, is_cut: bool) -> None:
    """Print what was found beside the answer, what was written, and the command that runs the best plan.

    Parameters
    ----------
    is_cut : bool
        Whether the front was looked for, and left at what there is.
    """
    if is_cut:
        click.echo("front    is left at what there is, which the page has: the same command goes on with it")
    for line in found.notes():
        click.echo(line)
    best = found.answers()[0]
    click.echo(f"page     {folder / 'search.html'}")
    click.echo(kept_and_command(folder, search_command(found, deployments, best.standing, best.ran)))
