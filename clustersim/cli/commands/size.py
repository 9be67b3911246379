"""``clustersim size``: the fewest devices, nodes or dollars that meet targets."""

from __future__ import annotations

import json
from pathlib import Path

import click

from clustersim.cli import options
from clustersim.cli.limits import memory_and_time, total_time
from clustersim.cli.tables import print_table
from clustersim.errors import IllegalPlanError, InputError, LimitError, Problem, UnreachedError
from clustersim.limits import Limits
from clustersim.report.words.run import plan_words
from clustersim.scenario.confidence import confidence_of
from clustersim.scenario.schema import POOLS
from clustersim.search.executors import opened
from clustersim.search.journal import opened_journal
from clustersim.search.point import words_of
from clustersim.search.runs import Runs, Variants
from clustersim.search.size import BY, FOUND, SURVIVES, Size, Sized, Sizer, least_size, nested
from clustersim.search.sweep import Sweep, command_of, refuse_texts
from clustersim.search.tried import few_words
from clustersim.search.varied import combinations, varied_of
from clustersim.units import format_asked, format_share, plural


@click.command()
@click.argument("scenario")
@options.goals
@click.option("--by", type=options.Choice(BY), default="devices", show_default=True, help="What is to be least.")
@click.option("--survive", type=options.Choice(SURVIVES), help="Targets are met with the first of them down, too.")
@click.option(
    "--rack-nodes", type=options.Whole(1), metavar="N", help="Nodes of a rack [the topology's nodes_per_leaf]."
)
@click.option("--vary", "varied", multiple=True, metavar="KEY=VALUES", help="Try these plans: plan.tp=1,2,4.")
@click.option("--most", type=options.Whole(1), default=256, show_default=True, metavar="N", help="Replicas to try.")
@options.many_runs
@memory_and_time
@total_time
def size(
    scenario: str,
    targets: str | None,
    share: float,
    by: str,
    survive: str | None,
    rack_nodes: int | None,
    varied: tuple[str, ...],
    most: int,
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
    """Find the fewest devices with which SCENARIO meets its targets.

    Replicas (plan.dp; of two pools plan.prefill.dp and plan.decode.dp, in any ratio) are added, and nodes as they need
    them, until a share of all requests meets every target; so neither of them varies. With --vary, plans are compared,
    and the one that takes least of --by is chosen; plans that are illegal, or can't do, are named.

    Exit status 0: found, 1: no size does, or every plan is illegal, 2: the scenario can't be read.
    """
    if rack_nodes is not None and survive != "rack":
        raise click.UsageError("--rack-nodes says what --survive rack loses; add that")
    keys = [varied_of(text) for text in varied]
    if found_itself := [one.key for one in keys if FOUND.match(one.key)]:
        message = "is what size finds; vary another key of the plan, such as plan.tp=4,8"
        raise InputError(Problem(message=message, file="--vary", path=found_itself[0]))
    limits = Limits(memory_bytes=max_memory, seconds=max_time, total_seconds=max_total)
    flags = options.target_changes(targets)
    variants = Variants(scenario, (*overrides, *flags), allow_code=allow_code or None, limits=limits, flags=flags)
    plans = combinations(keys, zipped=False) if keys else [()]
    refuse_texts(Sweep(varied=tuple(keys), chosen=tuple(plans)), variants)
    found: list[Sized] = []
    problems: list[Problem] = []
    illegal: list[str] = []
    is_unreached = False
    left_out: list[dict[str, str]] = []
    loaded = variants.scenario()
    folder = out or Path("sizes") / f"{loaded.name}-{loaded.digest[:12]}"
    with opened(executor, workers) as executors, opened_journal(folder) as journal:
        runs = Runs(variants, executors, journal)
        for values in plans:
            own = [f"{key.key}={value}" for key, value in zip(keys, values, strict=True)]
            try:
                sizer = Sizer(runs, own, survive, rack_nodes)
                if by == "usd":
                    sizer.refuse_unpriced()
                found.append(least_size(sizer, share=share, most=most))
            except LimitError:
                raise
            except (InputError, IllegalPlanError) as error:
                is_unreached = is_unreached or isinstance(error, UnreachedError)
                problems += error.problems if isinstance(error, InputError) else ()
                illegal += [str(error)] if isinstance(error, IllegalPlanError) else []
                left_out.append({"plan": ", ".join(own), "why": words_of(error)})
    if not found and problems:
        if is_unreached and as_json:
            click.echo(json.dumps({"devices": None, "left_out": left_out, "out": str(folder)}))
        kind = UnreachedError if is_unreached else InputError
        raise kind(dict.fromkeys((*problems, *(Problem(message=one) for one in illegal))))
    if not found:
        raise IllegalPlanError("\n".join(dict.fromkeys(illegal)))
    best = min(found, key=lambda one: (one.best.amount(by), one.best.devices, -one.best.share))
    command = command_of(variants, best.best.worst_changes)
    sized = variants.scenario(best.best.changes)
    plan = plan_words(sized.document["plan"])
    if as_json:
        plain = {"plan": plan} | _plain(best.best) | {"summary": nested(best.best.worst["numbers"])}
        more = {"limited_by": best.limited_by, "why": best.why, "tried": [_plain(one) for one in best.tried]}
        told = {"confidence": confidence_of(sized), "command": command, "out": str(folder)}
        click.echo(json.dumps(plain | more | ({"left_out": left_out} if keys else {}) | told))
    elif not quiet:
        _print(best, share, plan)
        if len(plans) > 1:
            click.echo(f"the least of {plural(len(found), 'plan')} that can meet the targets")
            for one in left_out:
                click.echo(f"left out: {'' if one['why'].startswith('illegal') else one['plan'] + ': '}{one['why']}")
        options.print_confidence(sized)
        click.echo(options.kept_and_command(folder, command))


def _plain(one: Size) -> dict[str, object]:
    return {
        "devices": one.devices,
        "nodes": one.nodes,
        "replicas": one.replicas,
        **({"pools": dict(zip(POOLS, one.counts, strict=True))} if len(one.counts) > 1 else {}),
        "usd_per_hour": one.usd_per_hour,
        "share": one.share,
    }


def _print(found: Sized, share: float, plan: str) -> None:
    best = found.best
    price = "" if best.usd_per_hour is None else f", {best.usd_per_hour:,.2f} USD/h"
    lost = ", with the loss" if best.lost else ""
    sizes = (best.devices, "device"), (best.nodes, "node"), (best.replicas, "replica")
    devices, nodes, replicas = (plural(*one) for one in sizes)
    click.echo(f"{devices} on {nodes}, {_counts(best, replicas)}{price} ({plan})")
    click.echo(f"{format_share(best.share)} of requests meet every target{lost} (asked: {format_asked(share)})")
    if found.why is not None:
        click.echo(f"one replica less: {found.why}")
    columns = ("replicas", "devices", "nodes", "share", "TTFT p99 ms", "TPOT p99 ms")
    if best.lost:
        click.echo("share, p99 and command are of the run that does worst, most often one with the loss")
    rows = [
        (" + ".join(map(str, one.counts)), str(one.devices), str(one.nodes), format_share(one.share),
         *(_shown(one, key) for key in ("ttft_ms.p99", "tpot_ms.p99")))
        for one in found.tried
    ]  # fmt: skip
    print_table(columns, rows, numbers_from=0)
    if few := few_words(best.worst, share, "with more of them"):
        click.echo(few)


def _counts(one: Size, replicas: str) -> str:
    """Return how many replicas there are, of two pools those of each."""
    if len(one.counts) == 1:
        return replicas
    return f"{replicas}: {' and '.join(f'{count} of {name}' for count, name in zip(one.counts, POOLS, strict=True))}"


def _shown(one: Size, key: str) -> str:
    value = one.worst["numbers"].get(key)
    return "–" if value is None else f"{value:,.1f}"
