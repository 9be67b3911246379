"""Whether the files of a run directory say what its timeline says: requests, steps, summary and verdict.

What was recorded is the timeline; the other files are made from it, so each of their figures is worked out anew here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from clustersim.errors import InputError, Problem
from clustersim.legality.deployment import counted
from clustersim.legality.rule import LEVELS, LookedAt, Verdict, Violation
from clustersim.report.files.recorded import RecordedRun, read_recorded
from clustersim.report.files.run_directory import step_columns
from clustersim.report.files.summary_again import summary_again
from clustersim.report.metrics.latencies import EXPLAINED, Columns

CLOSE: Final = 1e-9
"""Relative difference of two sums of the same numbers: machines may add them in another order."""
ASKED_LATER: Final = frozenset({"RUN-5", "TP-9", "DP-4"})
"""Rules that compare with something that was not there when the run was audited first."""
_NOT_OF_A_RUN: Final = (ArithmeticError, AssertionError, LookupError, MemoryError, ValueError)
"""What working out the figures of tables that no run wrote may come to."""
_SCENARIO: Final = "scenario.yaml"
ABSENT: Final = None
"""What is said where nothing is."""
_FROM_VERDICT: Final = ("legal", "legality")
"""Values of ``summary.json`` that are compared with ``verdict.json``: no timeline says them."""
_NAMED: Final = 8
"""Of values that differ, how many more are named."""
_OF_VIOLATION: Final = ("rule", "level", "where", "message", "fix")
_FIX: Final = "run the scenario again, or use what follows from the timeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How many values of a file were compared, and the first one that is not what follows from the timeline.

    Parameters
    ----------
    rule : str
        The rule that asks for it: RUN-4 for the account of requests, RUN-5 for what else was recorded.
    file, what : str
        Of what the values are: ``requests.parquet``, ``12 requests``.
    looked_at : int
    violation : Violation or None
    """

    rule: Literal["RUN-4", "RUN-5"]
    file: str
    what: str
    looked_at: int
    violation: Violation | None


def agreements(recorded: RecordedRun, verdict: Verdict) -> tuple[Agreement, ...]:
    """Compare every file of a run directory with its timeline.

    Parameters
    ----------
    recorded : RecordedRun
    verdict : Verdict
        Of the rules of its plan and of what was recorded, found anew.
    """
    run, timeline = recorded.run, recorded.run.timeline
    rows = len(recorded.requests["request"])
    steps = len(timeline.steps["step"])
    return (
        *_other_scenario(recorded),
        _agreement("RUN-4", "requests.parquet", counted(rows, "request"), _requests(recorded)),
        _agreement("RUN-5", "steps.parquet", counted(steps, "row"), _table(run.steps, step_columns(timeline))),
        _agreement("RUN-5", "timeline/templates.json", "counts", _head(recorded)),
        _agreement("RUN-5", "summary.json", "figures", _summary(recorded)),
        _agreement("RUN-5", "verdict.json", "answers", _verdicts(recorded, verdict), by="the rules say"),
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
    violation = Violation(rule="RUN-5", level="T", where=_SCENARIO, message=message, fix=fix)
    yield Agreement(rule="RUN-5", file=_SCENARIO, what="digest", looked_at=1, violation=violation)


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
        for one in agreements(recorded, nothing)
        if one.violation is not None and one.file != "verdict.json"
    ]
    if problems:
        raise InputError(problems)


def with_agreements(verdict: Verdict, found: Sequence[Agreement]) -> Verdict:
    """Return a verdict together with what the files say otherwise; another scenario is told before what follows."""
    looked = {rule: sum(one.looked_at for one in found if one.rule == rule) for rule in ("RUN-4", "RUN-5")}
    told = [one.violation for one in found if one.violation is not None]
    causes = [one for one in told if one.where == _SCENARIO]
    return Verdict(
        violations=(*causes, *verdict.violations, *(one for one in told if one not in causes)),
        rules=tuple(_looked_further(entry, looked.get(entry.id, 0)) for entry in verdict.rules),
    )


def _looked_further(entry: LookedAt, more: int) -> LookedAt:
    return replace(entry, looked_at=entry.looked_at + more)


Compared = tuple[str, Any, Any]
"""Where a value is, what is said there, and what follows from the timeline."""


def _agreement(
    rule: Literal["RUN-4", "RUN-5"], file: str, what: str, values: Iterator[Compared], by: str = "the timeline says"
) -> Agreement:
    looked_at, odd = 0, []
    for where, said, follows in values:
        looked_at += 1
        if not same(said, follows):
            odd.append((where, said, follows))
    violation = None
    if odd:
        (where, said, follows), *more = odd
        named = ", ".join((*(one for one, _, _ in more[:_NAMED]), *("…" for _ in more[_NAMED:][:1])))
        others = f" (and {len(more):,} more {'differs' if len(more) == 1 else 'differ'}: {named})" if more else ""
        source = "verdict.json says" if file == "summary.json" and where.split(".")[0] in _FROM_VERDICT else by
        message = f"says {_shown(said)}, {source} {_shown(follows)}{others}"
        violation = Violation(rule=rule, level="T", where=f"{file}, {where}", message=message, fix=_FIX)
    return Agreement(rule=rule, file=file, what=what, looked_at=looked_at, violation=violation)


def same(said: Any, follows: Any) -> bool:
    """Return whether a file says what follows; sums of numbers may differ by as much as machines may."""
    if isinstance(said, Mapping) and isinstance(follows, Mapping):
        return said.keys() == follows.keys() and all(same(said[key], follows[key]) for key in follows)
    if isinstance(said, float) and isinstance(follows, (int, float)):
        both_nan = math.isnan(said) and math.isnan(follows)
        return both_nan or math.isclose(said, follows, rel_tol=CLOSE)
    return type(said) is type(follows) and bool(said == follows)


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "nothing"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _requests(recorded: RecordedRun) -> Iterator[Compared]:
    said, follows = recorded.run.requests, recorded.requests
    yield from _table(said, follows)
    outcome = np.asarray(follows["outcome"], object)
    explained = np.isin(outcome, EXPLAINED)
    if len(said["reason"]) == len(explained):
        has = np.array([reason is not None for reason in said["reason"]], bool)
        for row in np.flatnonzero(has != explained)[:1].tolist():
            yield f"reason, row {row + 1}", said["reason"][row], f"that it is {outcome[row]}"


def _table(said: Columns, follows: Columns) -> Iterator[Compared]:
    """Compare a table row by row; of each column its first difference and how many values there are."""
    columns = list(follows)
    rows = len(follows[columns[0]]), len(said[columns[0]])
    yield "rows", rows[1], rows[0]
    count = min(rows)
    for name in columns:
        mine, other = np.asarray(follows[name])[:count], np.asarray(said[name])[:count]
        differ = mine != other
        if mine.dtype.kind == other.dtype.kind == "f" or {mine.dtype.kind, other.dtype.kind} == {"f", "i"}:
            differ = differ & ~(np.isnan(mine.astype(np.float64)) & np.isnan(other.astype(np.float64)))
        places = np.flatnonzero(differ)
        if len(places):
            row = int(places[0])
            yield f"{name}, row {row + 1}", _plain(other[row]), _plain(mine[row])
        else:
            yield name, count, count


def _plain(value: Any) -> Any:
    found = value.item() if isinstance(value, np.generic) else value
    if isinstance(found, float) and found.is_integer():
        return int(found)
    return found


def _head(recorded: RecordedRun) -> Iterator[Compared]:
    timeline = recorded.run.timeline
    yield "num_spans", timeline.num_spans, timeline.count_spans()
    yield "num_steps", timeline.num_steps, timeline.count_steps()


def _summary(recorded: RecordedRun) -> Iterator[Compared]:
    """Compare every value of ``summary.json``; what is legal with ``verdict.json``, which is compared too."""
    try:
        follows = json.loads(json.dumps(summary_again(recorded)))
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
