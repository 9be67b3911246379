"""``clustersim check``: whether a plan and its step graphs are legal, before anything runs; the nearest legal plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from clustersim.cli.commands.graph_check import check_graph_file
from clustersim.cli.options import GRAPH_SUFFIXES, TABLE_SUFFIXES, Written
from clustersim.cli.status import STATUS, problems_text
from clustersim.cli.tables import print_json
from clustersim.errors import Problem
from clustersim.legality.deployment import counted
from clustersim.legality.repair.mending import ALONE
from clustersim.legality.rule import Verdict
from clustersim.scenario.document import shown
from clustersim.scenario.load import load
from clustersim.scenario.scenario import INSTEAD, Scenario
from clustersim.simulation.account import account_lines, memory_account
from clustersim.simulation.graph_legality import violation_line
from clustersim.simulation.legality import check_scenario, headlines, problem, verdict_json
from clustersim.simulation.repair.fix import (
    Fix,
    default_target,
    fix_scenario,
    fixed_text,
    instead_of,
    refuse_target,
    write_whole,
)
from clustersim.simulation.repair.proposals import MOST_OFFERED
from clustersim.simulation.replay_input import refusals, refuse_unreadable


def audit_command() -> click.Command:
    """Return ``clustersim audit``, which only tables need."""
    from clustersim.cli.commands.audit import audit

    return audit


@click.command()
@click.argument("scenario")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a value: plan.tp=8.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--fix", is_flag=True, help="Write the nearest legal scenario.")
@click.option("--out", type=Written(), help="Where to [NAME.legal.yaml beside SCENARIO].")
@click.option("--of", metavar="SCENARIO", help="Of a step graph: what it is of, to compare what operators take.")
@click.option("--names", help="Of a step graph: patterns of its names, a file or one that ships.")
@click.pass_context
def check(
    ctx: click.Context,
    scenario: str,
    overrides: tuple[str, ...],
    as_json: bool,
    fix: bool,
    out: Path | None,
    of: str | None,
    names: str | None,
) -> None:
    """Check that the plan of SCENARIO (a path, or the name of one that ships) is legal, and what it expands to.

    A legal plan is expanded: to a prefill, a mixed and several decode steps, one after the other, whose graphs are
    checked as well. SCENARIO may also be a step graph itself, NAME.json, .graphml, .dot or .gv, of `clustersim graph`
    or of another program, whose names --names maps to those of step graphs (durations that it states are compared with
    what its operators cost where --of says which scenario it is of, with the values that --set changes); or one table
    of spans, facts or steps, NAME.csv or NAME.parquet (several of them, and what they were made under:
    `clustersim audit`).

    Prints every violation with the rule that it breaks and what would be legal; of a legal scenario that `run`
    refuses, why. --fix writes the nearest legal scenario: fewest changed fields, each with the rule that asks for it;
    a file that is there already is overwritten only when --out names it. Exit status 0: legal, or a legal one was
    written, 1: illegal, 2: the scenario can't be read, 3: not checkable, a rule that the declared plan makes relevant
    found nothing to look at.
    """
    if out is not None and not fix:
        raise click.UsageError("--out says where --fix writes; add --fix")
    if scenario.endswith(GRAPH_SUFFIXES):
        if fix:
            raise click.UsageError("--fix changes a scenario, and a step graph is none")
        if status := STATUS[check_graph_file(scenario, of, overrides, names, as_json=as_json).verdict]:
            ctx.exit(status)
        return
    if names is not None or of is not None:
        option = "--names" if of is None else "--of"
        raise click.UsageError(f"{option} is for step graphs: NAME.json, .graphml, .dot or .gv")
    if scenario.endswith(TABLE_SUFFIXES):
        if fix or overrides:
            raise click.UsageError("a table of what happened has no values to change; see clustersim audit --given")
        ctx.invoke(
            audit_command(),
            recorded=(Path(scenario),),
            other=None,
            again=None,
            given=(),
            allow_code=False,
            as_json=as_json,
        )
        return
    loaded = load(scenario, overrides, allow_code=False)
    verdict = check_scenario(loaded)
    if verdict.verdict == "legal":
        refuse_unreadable(loaded)
    lines = [*_verdict_lines(loaded, verdict)]  # they quote the file, which --out may name
    document = verdict_json(loaded, verdict)
    sound = all(found.rule == "KV-6" for found in verdict.of_level("P").violations)
    document["memory"] = memory_account(loaded) if sound else []
    lines += account_lines(document["memory"])
    unable = _unable(loaded, verdict)
    document |= {"simulates": not unable and verdict.verdict == "legal", "not_simulated": _unable_json(unable)}
    lines += _unable_lines(unable)
    document["left_out"] = list(loaded.not_simulated(longest_tokens=0))
    lines += [f"NOT SIMULATED: {what}." for what in document["left_out"]]
    written = None
    if fix:
        nearest = _nearest(loaded, verdict)
        written = _written(scenario, overrides, nearest, out)
        lines += _fix_lines(loaded, nearest, written)
        if written is not None:
            mended = load(written, allow_code=False)
            unable = _unable(mended, check_scenario(mended))
            lines += _unable_lines(unable)
            document |= {"simulates": not unable, "not_simulated": _unable_json(unable)}
        document["fix"] = _fix_json(loaded, nearest, written)
    elif as_json and verdict.of_level("P").violations:
        document["fix"] = _fix_json(loaded, _nearest(loaded, verdict), None)
    elif not as_json and _needs_several(verdict):
        lines.append(_together((scenario, *overrides), _nearest(loaded, verdict, alternatives=1)))
    print_json(document) if as_json else click.echo("\n".join(lines))
    if written is None and (status := STATUS[verdict.verdict]):
        ctx.exit(status)


def _unable(scenario: Scenario, verdict: Verdict) -> tuple[Problem, ...]:
    """Return why a legal scenario can't be simulated, and what can be; of an illegal one its violations are told."""
    found = refusals(scenario) if verdict.verdict == "legal" else ()
    if not any(one.path.endswith("ep.scope") for one in found):
        return found
    others = [f"{one}" for one in instead_of(scenario, 2)]
    words = f"write instead {' or '.join(others)}" if others else "no plan nearby can be"
    return tuple(replace(one, message=one.message.replace(INSTEAD, words)) for one in found)


def _unable_lines(problems: Sequence[Problem]) -> Iterator[str]:
    return (f"legal, but it can't be simulated: {one.path}: {one.message}" for one in problems)


def _unable_json(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    names = ("path", "message", "file", "line", "column")
    return [{name: getattr(one, name) for name in names} for one in problems]


def _needs_several(verdict: Verdict) -> bool:
    """Whether what mends one place need not mend all."""
    return len(verdict.violations) > 1 or any(found.fix.startswith(ALONE) for found in verdict.violations)


def _nearest(scenario: Scenario, verdict: Verdict, alternatives: int = MOST_OFFERED) -> Fix:
    """Return the nearest legal scenario, from which both the advice and what --fix writes are taken."""
    if not verdict.violations:
        return Fix(changes=())
    if not verdict.of_level("P").violations:
        reason = "the plan is legal, and no change of it is known to mend what is wrong with its step graphs"
        return Fix(changes=None, reason=reason)
    return fix_scenario(scenario, alternatives=alternatives)


def _written(name: str, overrides: tuple[str, ...], fix: Fix, out: Path | None) -> Path | None:
    """Write the nearest legal scenario, if it is another one, and return its file."""
    if not fix.changes:
        return None
    target = out if out is not None else default_target(name)
    refuse_target(target, overwrite=out is not None)
    write_whole(fixed_text(name, overrides, fix, target), target)
    return target


def _fix_json(scenario: Scenario, fix: Fix, target: Path | None) -> dict[str, Any]:
    return {
        "legal": fix.changes is not None,
        "file": None if target is None else str(target),
        "changes": [change.as_json() for change in fix.changes or ()],
        "reason": fix.reason,
        "alternatives": [one.as_json() for one in fix.alternatives],
        "examined": fix.examined,
        "tried": fix.tried,
        "proven": fix.proven,
        "expect": _contradicted(scenario) if fix.changes else None,
    }


def _verdict_lines(scenario: Scenario, verdict: Verdict) -> Iterator[str]:
    """Yield the verdict of each level, with the violations below it, and the line of the file of each."""
    for level, headline in zip(verdict.levels, headlines(scenario, verdict), strict=True):
        yield headline
        for violation in verdict.of_level(level).violations:
            yield problems_text([problem(scenario, violation)]) if level == "P" else violation_line(violation)
    if verdict.violations:
        yield "What a rule says, and why: clustersim rules ID"


def _together(asked: Sequence[str], nearest: Fix) -> str:
    """Say which changes mend all places at once; of each place the verdict says what would mend it alone."""
    if nearest.changes is None:
        return f"Together: {nearest.reason}"
    changes = ", ".join(map(str, nearest.changes))
    name, *overrides = map(shlex.quote, asked)
    command = " ".join(["clustersim check", name, *(f"--set {one}" for one in overrides), "--fix"])
    return f"Together: {changes} ({command} writes it)"


def _fix_lines(scenario: Scenario, fix: Fix, target: Path | None) -> Iterator[str]:
    """Yield what was changed and why, or why nothing was."""
    if target is None:
        yield "nothing was written: it is legal as it is" if fix.reason is None else f"no fix: {fix.reason}"
        return
    changes = fix.changes or ()
    yield f"fixed: {counted(len(changes), 'change')}, written to {shown(target)}"
    for change in changes:
        yield f"  {change}\n    {change.rule}: {change.statement}\n    without it: {change.message}"
    for other in fix.alternatives[1:]:
        ours, theirs = f"{fix.alternatives[0].distance:.4g}", f"{other.distance:.4g}"
        away = f"as near, at distance {theirs}" if ours == theirs else f"at distance {theirs} rather than {ours}"
        yield f"also legal, {away}: {other}"
    if (told := _contradicted(scenario)) is not None:
        yield told


def _contradicted(scenario: Scenario) -> str | None:
    """Say that what the scenario expects fails once it is legal; None where it does not."""
    if any(expectation.key == "legal" and expectation.check({"legal": True}) for expectation in scenario.expect):
        return "Its expect still says legal: false, which is no rule's matter: change it before you run it."
    return None
