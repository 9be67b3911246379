"""Predictions for a table of points: one simulation per scenario, however many figures it has."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from clustersim.accuracy.families import closed_loop, collectives, offline, published, replays, static_batch
from clustersim.accuracy.held_out import held_out_engine, is_in_sample
from clustersim.accuracy.metrics import check_metric, value_of
from clustersim.accuracy.plans import check_devices, ranks_of
from clustersim.accuracy.remarks import check_remarks
from clustersim.accuracy.row import Inexpressible, Row, nearest_first, numbers_in
from clustersim.accuracy.systems import ROUTING, ROUTING_FROM, check_joined, decided_alone, pooled, routed
from clustersim.errors import InputError
from clustersim.processes import local_pool
from clustersim.report.files.summary import summary_of
from clustersim.scenario.document import Document
from clustersim.scenario.load import build_scenario
from clustersim.simulation.legality import check_scenario_plan
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.simulate import simulate
from clustersim.values import dataclass

_SCENARIOS: Final = {
    "F5-static-batch": static_batch.scenario,
    "F6-saturated": offline.scenario,
    "F6-pp-tp-sweep": offline.scenario,
    "F7-closed-loop": closed_loop.scenario,
    "F7-moe-ep": closed_loop.scenario,
    "F10-cluster-published": published.scenario,
}
_WORKLOADS: Final[tuple[tuple[re.Pattern[str], Callable[[Row], dict[str, Any]], str], ...]] = (
    (static_batch.WORKLOAD, static_batch.scenario, static_batch.FORM),
    (offline.WORKLOAD, offline.scenario, offline.FORM),
    (closed_loop.WORKLOAD, closed_loop.scenario, closed_loop.FORM),
    (published.WORKLOAD, published.scenario, published.FORM),
)
_REPLAYS: Final = ("F1-replay-vllm", "F2-h100-70b-modes", "F3-distserve-a100", "F4-apex-h100")
_COLLECTIVES: Final = "F11-collectives"
FORMS: Final = {
    **dict.fromkeys(_REPLAYS, replays.FORM),
    "F5-static-batch": static_batch.FORM,
    **dict.fromkeys(("F6-saturated", "F6-pp-tp-sweep"), offline.FORM),
    **dict.fromkeys(("F7-closed-loop", "F7-moe-ep"), closed_loop.FORM),
    "F10-cluster-published": f"{published.FORM}` with the plan `{published.PLAN}",
    _COLLECTIVES: f"{collectives.FORM}`, `{collectives.EXPERTS_FORM}",
}
"""How the rows of a family give their workload; those of another family may take any of these forms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A row with its prediction, or with the reason why there is none.

    Parameters
    ----------
    row : Row
    predicted : float or None
        In the row's unit.
    reason : str or None
        Why it is None.
    scenario : mapping or None
        What was simulated.
    in_sample : bool
        Whether constants of its engine were found with its family; see :mod:`clustersim.accuracy.held_out`.
    held_out : float or None
        What is predicted without them; None where they were not, or nothing is.
    """

    row: Row
    predicted: float | None = None
    reason: str | None = None
    scenario: dict[str, Any] | None = None
    in_sample: bool = False
    held_out: float | None = None

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return None if self.predicted is None else self.predicted / self.row.value


def scenario_of(row: Row, traces: Path) -> dict[str, Any]:
    """Return the scenario document of a row.

    Raises
    ------
    Inexpressible
        When there can be none.
    """
    try:
        document = _reader(row, traces)(row)
    except InputError as error:  # what no topology, model or engine can be
        raise Inexpressible("; ".join(problem.message for problem in error.problems)) from None
    check_devices(row, document["plan"])
    check_joined(row, ranks_of(document["plan"]))
    check_metric(row)
    return routed(pooled(document), ROUTING)


def _reader(row: Row, traces: Path) -> Callable[[Row], dict[str, Any]]:
    """Return what makes a scenario of a row: by the form of its workload, whichever the family, else by its family."""
    for pattern, scenario, _ in _WORKLOADS:
        if numbers_in(pattern, row.workload):
            return scenario
    if row.family in _REPLAYS or (row.family not in FORMS and replays.is_there(row, traces)):
        return lambda row: replays.scenario(row, traces)
    if row.family not in FORMS:
        known = nearest_first(row.workload, (*(form for _, _, form in _WORKLOADS), replays.FORM, collectives.FORM))
        raise Inexpressible(f"not understood: {row.workload!r}; of a family that is not known expected one of {known}")
    return _SCENARIOS[row.family]


def compare(rows: Sequence[Row], traces: Path, *, workers: int = 1) -> Iterator[Point]:
    """Predict every row, in the order in which predictions are ready.

    Parameters
    ----------
    rows : sequence of Row
    traces : Path
        Folder in which, and below which, recorded requests lie.
    workers : int
        Processes that simulate.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        try:
            check_remarks(row)
            if row.family == _COLLECTIVES or (row.family not in FORMS and row.workload.startswith("payload ")):
                yield Point(row=row, predicted=collectives.value(row))
            else:
                groups.setdefault(_key(scenario_of(row, traces)), []).append(row)
        except Inexpressible as why:
            yield Point(row=row, reason=str(why))
    if workers == 1:
        for key, members in groups.items():
            yield from _points(key, members)
        return
    with local_pool(workers) as pool:
        for found in pool.map(_points, groups, groups.values()):
            yield from found


_MOST_REQUESTS: Final = 1_000_000
"""Of one run (assumed): some minutes."""
_PRICES: Final = KeptPrices()
"""What rows have in common that this process simulates."""


def run(document: dict[str, Any]) -> dict[str, Any]:
    """Simulate a scenario document and return its summary.

    Raises
    ------
    Inexpressible
        When the scenario is refused, or not every request finishes.
    """
    try:
        data = copy.deepcopy(document)
        scenario = build_scenario(Document(file=document["name"], data=data, marks={}, key_marks={}))
        if (scenario.num_requests or 0) > _MOST_REQUESTS:
            raise Inexpressible(f"{scenario.num_requests:,} requests; at most {_MOST_REQUESTS:,} are simulated")
        verdict = check_scenario_plan(scenario)
        if verdict.verdict == "illegal":
            raise Inexpressible("; ".join(f"{found.rule}: {found.message}" for found in verdict.violations))
        summary = summary_of(simulate(scenario, kept=_PRICES))
    except InputError as error:
        told = (str(replace(problem, file=None, line=None, column=None)) for problem in error.problems)
        raise Inexpressible("; ".join(told)) from None
    requests = summary["requests"]
    if requests["finished"] < requests["arrived"]:
        raise Inexpressible(f"only {requests['finished']} of {requests['arrived']} requests finish")
    return summary


def _key(document: dict[str, Any]) -> str:
    """Return a scenario as text, alike for all rows that were measured in one run."""
    return json.dumps(document | {"name": "point"}, sort_keys=True)


def _points(key: str, rows: Iterable[Row]) -> list[Point]:
    document = json.loads(key)
    try:
        summary = run(document)
    except Inexpressible as why:
        return [Point(row=row, reason=str(why), scenario=document) for row in rows]
    return [_point(row, summary, document) for row in rows]


def _held_out(row: Row, document: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario without constants that were found with a row's family."""
    other, runs = copy.deepcopy(document), document["serving"]["engine"]
    engine, changed = (runs, {}) if isinstance(runs, str) else (runs["name"], runs)
    if is_in_sample(engine, row.family, row.source):
        instead = held_out_engine(engine, row.family, row.source)
        named = {"name": instead} if isinstance(instead, str) else instead
        other["serving"]["engine"] = {**changed, **named} if changed else instead
        other["serving"] |= decided_alone(row)
    return routed(other, {"zipf": 0.0}) if row.family == ROUTING_FROM else other


def _point(row: Row, summary: Mapping[str, Any], document: dict[str, Any]) -> Point:
    try:
        point = Point(row=row, predicted=value_of(row, summary), scenario=document)
    except Inexpressible as why:
        return Point(row=row, reason=str(why), scenario=document)
    other = _held_out(row, document)
    if other == document:
        return point
    try:
        return replace(point, in_sample=True, held_out=value_of(row, _summary(json.dumps(other))))
    except Inexpressible:
        return replace(point, in_sample=True)


@lru_cache(maxsize=4)
def _summary(document: str) -> dict[str, Any]:
    """Return the summary of a scenario given as text: rows of one run follow each other."""
    return run(json.loads(document))
