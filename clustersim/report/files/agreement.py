"""Whether the files of a run directory say what its timeline says: requests, steps, summary and verdict.

What was recorded is the timeline; the other files are made from it, so each of their figures is worked out anew here.
Requests and counts are compared as of a run that was just simulated (:mod:`clustersim.simulation.agreement`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.errors import InputError, Problem
from clustersim.legality.deployment import counted
from clustersim.legality.rule import LEVELS, Verdict, Violation
from clustersim.report.files.recorded import RecordedRun, read_recorded
from clustersim.report.files.run_directory import step_columns
from clustersim.report.files.summary_again import run_again, summary_again
from clustersim.simulation.agreement import REQUESTS, SCENARIO, Agreement, Compared, agreement, of_a_run, same, tables
from clustersim.simulation.causes.labels import COLUMNS
from clustersim.simulation.simulate import RunResult

ASKED_LATER: Final = frozenset({"RUN-5", "TP-9", "DP-4"})
"""Rules that compare with something that was not there when the run was audited first."""
_NOT_OF_A_RUN: Final = (ArithmeticError, AssertionError, LookupError, MemoryError, ValueError)
"""What working out the figures of tables that no run wrote may come to."""
ABSENT: Final = None
"""What is said where nothing is."""
_FROM_VERDICT: Final = ("legal", "legality")
"""Values of ``summary.json`` that are compared with ``verdict.json``: no timeline says them."""
_OF_VIOLATION: Final = ("rule", "level", "where", "message", "fix")


def as_run(recorded: RecordedRun) -> tuple[Agreement, ...]:
    """Compare what its own audit compares of a run: requests, and counts of steps and operators."""
    return of_a_run(recorded.run.requests, recorded.requests, recorded.run.timeline)


def agreements(recorded: RecordedRun, verdict: Verdict) -> tuple[Agreement, ...]:
    """Compare the other files of a run directory with its timeline, and its verdict with what the rules say now.

    Parameters
    ----------
    recorded : RecordedRun
    verdict : Verdict
        Of the rules of its plan and of what was recorded, found anew, with :func:`as_run`.
    """
    run, timeline = recorded.run, recorded.run.timeline
    steps, again = len(timeline.steps["step"]), _again(recorded)
    return (
        *_other_scenario(recorded),
        agreement("RUN-5", "steps.parquet", counted(steps, "row"), tables(run.steps, step_columns(timeline))),
        agreement("RUN-5", REQUESTS, "causes", _causes(recorded, again)),
        agreement("RUN-5", "summary.json", "figures", _summary(recorded, again), _of_summary),
        agreement("RUN-5", "verdict.json", "answers", _verdicts(recorded, verdict), lambda _: "the rules say"),
    )


def _other_scenario(recorded: RecordedRun) -> Iterator[Agreement]:
    """Yield that the scenario is not the one that ``summary.json`` has: all else that differs may follow from that."""
    said, found = recorded.run.summary["digest"], recorded.scenario.digest
    if said == found or same(recorded.run.summary["scenario"], json.loads(json.dumps(recorded.scenario.portable))):
        return
    message = (
        f"is not the one that this run had (digest {said[:12]} in summary.json, {found[:12]} of this file): it was "
        "changed, or another version, with other defaults, wrote the run"
    )
    fix = "put back the scenario of the run, or run this one again"
    violation = Violation(rule="RUN-5", level="T", where=SCENARIO, message=message, fix=fix)
    yield Agreement(rule="RUN-5", file=SCENARIO, what="digest", looked_at=1, violation=violation)


def refuse_differing(run_dir: Path) -> None:
    """Refuse a run directory of which a file that pages are drawn from does not say what its timeline says.

    Raises
    ------
    InputError
        With the first value of each such file, or where a file can't be read.
    """
    recorded = read_recorded(run_dir)
    nothing = Verdict(violations=(), rules=())
    problems = [
        Problem(file=str(run_dir / one.file), message=f"{one.violation.where}: {one.violation.message}")
        for one in (*as_run(recorded), *agreements(recorded, nothing))
        if one.violation is not None and one.file != "verdict.json"
    ]
    if problems:
        raise InputError(problems)


def _of_summary(where: str) -> str:
    return "verdict.json says" if where.split(".", maxsplit=1)[0] in _FROM_VERDICT else "the timeline says"


def _again(recorded: RecordedRun) -> RunResult | None:
    """Return what simulating brought, with its causes; None where tables can't be what a run wrote."""
    try:
        found = run_again(recorded)
        _ = found.table
    except _NOT_OF_A_RUN:
        return None
    return found


def _causes(recorded: RecordedRun, again: RunResult | None) -> Iterator[Compared]:
    """Compare what the time of each request is said to have been spent on."""
    if again is None:
        yield "causes", "causes", "nothing that they could be worked out from"
        return
    follows = {name: again.table[name].astype(np.float64).filled(np.nan) for name in COLUMNS}
    yield from tables(recorded.run.requests, follows)


def _summary(recorded: RecordedRun, again: RunResult | None) -> Iterator[Compared]:
    """Compare every value of ``summary.json``; what is legal with ``verdict.json``, which is compared too."""
    try:
        follows = json.loads(json.dumps(summary_again(recorded, again)))
    except _NOT_OF_A_RUN:
        yield "figures", "figures", "nothing that they could be worked out from"
    else:
        yield from compared(follows, recorded.run.summary)


def compared(follows: Any, said: Any, where: str = "") -> Iterator[Compared]:
    """Yield dotted names of all values of either one, what is said there, and what follows."""
    if isinstance(follows, Mapping) and isinstance(said, Mapping) and (follows or said):
        for key in (*follows, *(key for key in said if key not in follows)):
            yield from compared(follows.get(key, ABSENT), said.get(key, ABSENT), f"{where}.{key}" if where else key)
    elif isinstance(follows, list) and isinstance(said, list) and len(follows) == len(said) > 0:
        for number, (mine, other) in enumerate(zip(follows, said, strict=True)):
            yield from compared(mine, other, f"{where}[{number}]")
    else:
        yield where, said, follows


def _verdicts(recorded: RecordedRun, verdict: Verdict) -> Iterator[Compared]:
    """Compare what ``verdict.json`` answers for each rule with what the rules answer now.

    A run that was not audited has no level T. Places of violations are of the file that was run, and not compared.
    """
    said = recorded.verdict
    yield "verdict", said.word, "illegal" if said.broken else said.word if said.word != "illegal" else "legal"
    told = {level for _, level in said.answers} | said.levels.keys()
    asked = [level for level in LEVELS if level in told]
    for one in asked:
        yield f"levels.{one}", said.levels.get(one, ABSENT), _together(said.answers, one)
    now: dict[tuple[str, str], tuple[str, int]] = {
        (entry.id, entry.level): (verdict.of(entry.id, entry.level), entry.looked_at)
        for entry in verdict.rules
        if entry.level in asked
    }
    for rule, level in dict.fromkeys((*said.answers, *now)):
        if rule not in ASKED_LATER:
            answer, looked = now.get((rule, level), (ABSENT, ABSENT))
            yield f"{rule} at level {level}", said.answers.get((rule, level), ABSENT), answer
            yield f"{rule} at level {level}, looked_at", said.looked_at.get((rule, level), ABSENT), looked
    found = [one.as_json() for one in verdict.violations if one.level in asked and one.rule not in ASKED_LATER]
    kept = [{name: one.get(name) for name in _OF_VIOLATION} for one in said.violations]
    yield from compared(found, [one for one in kept if one["rule"] not in ASKED_LATER], "violations")


def _together(answers: Mapping[tuple[str, str], str], level: str) -> str:
    found = {answer for (_, of), answer in answers.items() if of == level}
    return next((word for word in ("illegal", "legal") if word in found), "not_checkable")
