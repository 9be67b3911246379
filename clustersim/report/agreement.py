"""Whether the files of a run directory say what its timeline says: requests, steps, summary and verdict.

What was recorded is the timeline; the other files are made from it, so each of their figures is worked out anew here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from clustersim.legality.deployment import counted
from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.report.metrics import EXPLAINED, Columns, reasons, summarise
from clustersim.report.preempted import preempted
from clustersim.report.priorities import by_priority
from clustersim.report.recorded import RecordedRun
from clustersim.report.run_directory import step_columns
from clustersim.report.summary import devices_of
from clustersim.run.prefixes import prefix_figures

CLOSE: Final = 1e-9
"""Relative difference of two sums of the same numbers: machines may add them in another order."""
ASKED_LATER: Final = frozenset({"RUN-5", "TP-9", "DP-4"})
"""Rules that compare with something that was not there when the run was audited first."""
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
        _agreement("RUN-4", "requests.parquet", counted(rows, "request"), _requests(recorded)),
        _agreement("RUN-5", "steps.parquet", counted(steps, "row"), _table(run.steps, step_columns(timeline))),
        _agreement("RUN-5", "timeline/templates.json", "counts", _head(recorded)),
        _agreement("RUN-5", "summary.json", "figures", _summary(recorded)),
        _agreement("RUN-5", "verdict.json", "answers", _verdicts(recorded, verdict), by="the rules say"),
    )


def with_agreements(verdict: Verdict, found: Sequence[Agreement]) -> Verdict:
    """Return a verdict together with what the files say otherwise."""
    looked = {rule: sum(one.looked_at for one in found if one.rule == rule) for rule in ("RUN-4", "RUN-5")}
    return Verdict(
        violations=(*verdict.violations, *(one.violation for one in found if one.violation is not None)),
        rules=tuple(_looked_further(entry, looked.get(entry.id, 0)) for entry in verdict.rules),
    )


def _looked_further(entry: LookedAt, more: int) -> LookedAt:
    return replace(entry, looked_at=entry.looked_at + more)


Compared = tuple[str, Any, Any]
"""Where a value is, what is said there, and what follows from the timeline."""


def _agreement(
    rule: Literal["RUN-4", "RUN-5"], file: str, what: str, values: Iterator[Compared], by: str = "the timeline says"
) -> Agreement:
    compared, first, more = 0, None, 0
    for where, said, follows in values:
        compared += 1
        if not _same(said, follows):
            first, more = (first, more + 1) if first is not None else ((where, said, follows), 0)
    violation = None
    if first is not None:
        where, said, follows = first
        others = f" (and {more:,} more {'differs' if more == 1 else 'differ'})" if more else ""
        message = f"says {_shown(said)}, {by} {_shown(follows)}{others}"
        violation = Violation(rule=rule, level="T", where=f"{file}, {where}", message=message, fix=_FIX)
    return Agreement(rule=rule, file=file, what=what, looked_at=compared, violation=violation)


def _same(said: Any, follows: Any) -> bool:
    if isinstance(said, Mapping) and isinstance(follows, Mapping):
        return said.keys() == follows.keys() and all(_same(said[key], follows[key]) for key in follows)
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
    """Compare ``summary.json``; whether the run is legal follows from ``verdict.json``, which is compared as well."""
    said, scenario, timeline = recorded.run.summary, recorded.scenario, recorded.run.timeline
    follows: dict[str, Any] = {
        "name": scenario.name,
        "digest": scenario.digest,
        "seed": scenario.seed,
        "scenario": dict(scenario.document),
        "devices": devices_of(scenario),
        "targets": dict(scenario.targets),
        "kv_blocks": recorded.kv_blocks,
        "steps": timeline.count_steps(),
        "spans": timeline.count_spans(),
        "timeline_digest": recorded.digest,
        "preemptions": int(recorded.requests["preemptions"].sum()),
        "preempted": preempted(timeline),
        "priorities": by_priority(recorded.requests, recorded.arrivals.priorities),
        **summarise(recorded.requests, recorded.token_gaps),
    }
    if len(recorded.run.requests["reason"]) == len(recorded.requests["outcome"]):
        told = {"outcome": recorded.requests["outcome"], "reason": recorded.run.requests["reason"]}
        follows["reasons"] = reasons(told)
    if scenario.serving.prefix_caching:
        size = scenario.serving.kv_block_tokens
        follows["prefix_cache"] = prefix_figures(recorded.arrivals, recorded.requests, size)
    if said.get("legal") is not None:
        follows["legal"] = recorded.verdict.word == "legal"
    for where, value in _leaves(json.loads(json.dumps(follows))):
        yield where, _at(said, where), value


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values of the figures; the scenario and targets are compared as a whole."""
    for name, value in values.items():
        if isinstance(value, Mapping) and name not in ("scenario", "targets"):
            yield from ((f"{name}.{key}", part) for key, part in value.items())
        else:
            yield name, value


def _at(said: Any, where: str) -> Any:
    for key in where.split("."):
        said = said.get(key) if isinstance(said, Mapping) else None
    return said


def _verdicts(recorded: RecordedRun, verdict: Verdict) -> Iterator[Compared]:
    """Compare what ``verdict.json`` answers for each rule with what the rules answer now."""
    said = recorded.verdict
    yield "verdict", said.word, "illegal" if said.broken else said.word if said.word != "illegal" else "legal"
    now: dict[tuple[str, str], str] = {
        (entry.id, entry.level): verdict.of(entry.id, entry.level) for entry in verdict.rules
    }
    for (rule, level), answer in said.answers.items():
        if (rule, level) in now and rule not in ASKED_LATER:
            yield f"{rule} at level {level}", answer, now[rule, level]
