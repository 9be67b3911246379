"""``clustersim audit``: whether what was recorded is legal, of a run of this program or of tables from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from clustersim.cli.status import ILLEGAL
from clustersim.cli.tables import print_json
from clustersim.errors import InputError, Problem
from clustersim.legality.audit import check_history
from clustersim.legality.deployment import counted
from clustersim.legality.history import History
from clustersim.legality.rule import Verdict
from clustersim.report.run_directory import read_run
from clustersim.run.audit import against, history_of, violation_line
from clustersim.run.foreign_given import KEYS
from clustersim.run.foreign_history import read_history
from clustersim.run.simulate import simulate
from clustersim.scenario.load import load
from clustersim.timeline.digest import digest_of


@click.command()
@click.argument("recorded", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR | FILE …")
@click.option(
    "--against", "other", type=click.Path(path_type=Path), help="A run of the same requests under another plan."
)
@click.option("--again", type=click.Choice(["full", "folded"]), help="Simulate the run again, and compare.")
@click.option(
    "--given",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"What tables were made under, such as tp=2; again for each of {KEYS}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def audit(
    ctx: click.Context,
    recorded: tuple[Path, ...],
    other: Path | None,
    again: str | None,
    given: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check what a run recorded against the legality rules.

    RUN_DIR is what `clustersim run` wrote. Tables from another simulator or an engine, CSV or Parquet, are told apart
    by their columns: spans, facts, steps, chunks, decodes, requests, routes, held, flows. What they lack is not
    checkable.

    Exit status 0: legal, 1: illegal, or not checkable, 2: something can't be read.
    """
    if len(recorded) == 1 and recorded[0].is_dir():
        if given:
            raise InputError(Problem(path="--given", message="a run directory says itself what it was made under"))
        history = recorded_history(recorded[0], again)
        if other is not None:
            history = against(history, recorded_history(other, None))
    else:
        if other is not None or again is not None:
            raise InputError(Problem(message="--against and --again need a run directory, not tables"))
        history = read_history(recorded, given)
    verdict = check_history(history)
    if as_json:
        print_json(verdict.as_json())
    else:
        click.echo("\n".join(verdict_lines(verdict, " ".join(map(str, recorded)))))
    if verdict.verdict != "legal":
        ctx.exit(ILLEGAL)


def recorded_history(path: Path, again: str | None) -> History:
    """Return the history of a run directory, with the digests that it should have.

    Parameters
    ----------
    path : Path
    again : str or None
        A replay in which the run is simulated once more.
    """
    run = read_run(path)
    scenario = load(path / "scenario.yaml")
    reasons = run.requests["reason"]
    told = run.requests["request"][np.array([reason is not None for reason in reasons], bool)]
    history = history_of(scenario, run.timeline, int(run.summary["kv_blocks"]), told.tolist())
    digests = [
        ("in the tables", digest_of(run.timeline)),
        ("in templates.json", run.timeline.digest),
        ("in summary.json", str(run.summary["timeline_digest"])),
    ]
    if again is not None:
        repeated = simulate(load(path / "scenario.yaml", (f"run.replay={again}",)))
        digests.append((f"simulated again, {again}", repeated.timeline.digest))
    return replace(history, digests=tuple(digests))


def verdict_lines(verdict: Verdict, name: str) -> Iterator[str]:
    """Yield the verdict on a history and each violation, as lines of text."""
    silent = [rule.id for rule in verdict.rules if not rule.looked_at]
    looked = len(verdict.rules) - len(silent)
    if verdict.violations:
        broken = dict.fromkeys(violation.rule for violation in verdict.violations)
        yield f"illegal: {name} breaks {counted(len(broken), 'rule')}"
    elif looked:
        yield f"legal: {counted(looked, 'rule')} found nothing wrong with {name}"
    else:
        yield f"not checkable: no rule had anything to look at in {name}"
    for violation in verdict.violations:
        yield violation_line(violation)
    if silent:
        yield f"not checkable: {', '.join(silent)}"
    for rule in verdict.rules:
        if rule.looked_at and rule.lacks:
            yield f"not checkable of {rule.id}: {'; '.join(rule.lacks)}"
    if verdict.violations:
        yield "What a rule says, and why: clustersim rules ID"
