"""``clustersim audit``: whether what was recorded is legal, of a run of this program or of tables from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from clustersim.cli import options
from clustersim.cli.commands.audit_run import audit_run_directory
from clustersim.cli.status import STATUS
from clustersim.cli.tables import print_json
from clustersim.copies import at_once
from clustersim.errors import InputError, Problem
from clustersim.legality.audit import check_history
from clustersim.legality.deployment import counted
from clustersim.legality.relevance_of_histories import demanded_of
from clustersim.legality.rule import Verdict
from clustersim.simulation.audit import violation_line
from clustersim.simulation.foreign.declared import KEYS
from clustersim.simulation.foreign.history import read_history


@click.command()
@click.argument("recorded", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR | FILE …")
@click.option(
    "--against",
    "other",
    type=click.Path(path_type=Path),
    help="Compare with another run: of the same scenario, or of its requests under another plan.",
)
@click.option(
    "--again",
    type=options.Choice(["full", "folded"]),
    help="Simulate the run again, and compare; full may take long.",
)
@click.option(
    "--given",
    multiple=True,
    metavar="NAME=VALUE",
    help=f"What tables were made under, such as tp=2; again for each of {KEYS}.",
)
@options.allow_code
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def audit(
    ctx: click.Context,
    recorded: tuple[Path, ...],
    other: Path | None,
    again: str | None,
    given: tuple[str, ...],
    allow_code: bool,
    as_json: bool,
) -> None:
    """Check what a run recorded against the legality rules.

    RUN_DIR is what `clustersim run` wrote. Its files are compared with its timeline first. Tables from another
    simulator or an engine, CSV or Parquet, are told apart by their columns: spans, facts, steps, chunks, decodes,
    requests, routes, held, flows. What they lack is not checkable.

    --against says whether the other run has the same timeline, bit for bit; where its plan is another one, whether
    each request came to the same. --again says whether simulating once more gives the same timeline; only that
    runs a scheduler or router of the run's own, and only with --allow-code.

    Exit status 0: legal, no rule is broken, and of tables each that what is declared makes relevant had something to
    look at; others that had nothing are named as not checkable. 1: illegal, a rule is broken or a file says something
    else than the timeline. 2: something can't be read, can't be what a run wrote, or is not comparable. 3: not
    checkable, a rule that should look at the tables found nothing; what would make it checkable is told.
    """
    ctx.with_resource(at_once())
    if len(recorded) == 1 and (recorded[0].is_dir() or not _is_table(recorded[0])):
        if given:
            raise InputError(Problem(path="--given", message="a run directory says itself what it was made under"))
        verdict, compared = audit_run_directory(recorded[0], other, again, allow_code=allow_code or None)
    else:
        if other is not None or again is not None:
            raise InputError(Problem(message="--against and --again need a run directory, not tables"))
        history = read_history(recorded, given)
        verdict, compared = demanded_of(history, check_history(history)), []
    if as_json:
        print_json(verdict.as_json() | ({"compared": compared} if compared else {}))
    else:
        click.echo("\n".join((*verdict_lines(verdict, _name(recorded), many=len(recorded) > 1), *compared)))
    if status := STATUS[verdict.verdict]:
        ctx.exit(status)


NO_SAY: Final = "have no say in"
"""What is said of rules that neither looked at something nor should have."""


def _is_table(path: Path) -> bool:
    """Whether a path is meant as a table: it is a file, or is called as one."""
    return path.exists() or path.suffix.lower().startswith((".csv", ".par", ".tsv"))


def _name(recorded: Sequence[Path]) -> str:
    """Return what was recorded in a few words: the path, or how many files, and where."""
    if len(recorded) == 1:
        return str(recorded[0])
    folders = {path.parent for path in recorded}
    where = f" in {next(iter(folders))}" if len(folders) == 1 and folders != {Path()} else ""
    return f"{len(recorded)} files{where}"


def verdict_lines(verdict: Verdict, name: str, *, many: bool = False) -> Iterator[str]:
    """Yield the verdict on a history and each violation, as lines of text; ``many``: the name is a plural."""
    missed = [rule.id for rule in verdict.rules if rule.is_missed]
    silent = [rule.id for rule in verdict.rules if not rule.looked_at and not rule.is_missed]
    looked = len(verdict.rules) - len(silent) - len(missed)
    if verdict.violations:
        broken = dict.fromkeys(violation.rule for violation in verdict.violations)
        yield f"illegal: {name} {'break' if many else 'breaks'} {counted(len(broken), 'rule')}"
    elif not looked:
        yield f"not checkable: no rule had anything to look at in {name}" + (f": {', '.join(missed)}" if missed else "")
    elif verdict.verdict == "legal":
        yield f"legal: {counted(looked, 'rule')} found nothing wrong with {name}"
    else:
        text = f"not checkable: {counted(looked, 'rule')} found nothing wrong with {name}, and {len(missed)} that "
        yield f"{text}should look at {'them' if many else 'it'} can't: {', '.join(missed)}"
    for words, rules in verdict.needs.items():
        yield f"to make {', '.join(rules)} checkable: {words}"
    for violation in verdict.violations:
        yield violation_line(violation)
    if missed and verdict.violations:
        yield f"not checkable: {', '.join(missed)}"
    if silent:
        yield f"{NO_SAY} {'them' if many else 'it'}: {', '.join(silent)}"
    for rule in verdict.rules:
        if rule.looked_at and rule.lacks:
            yield f"not checkable of {rule.id}: {'; '.join(rule.lacks)}"
    if verdict.violations:
        yield "What a rule says, and why: clustersim rules ID"
