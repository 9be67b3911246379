"""A run's own audit and that of the directory that it writes say the same, whatever the run says of its requests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from clustersim.cli.commands.audit_run import audit_run_directory
from clustersim.legality.rule import Verdict, together
from clustersim.report.files.run_directory import write_run
from clustersim.report.files.summary import summary_of
from clustersim.simulation.agreement import EXPLAINED
from clustersim.simulation.audit import audit_run
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.source_mutations import Change
from tests.legality.timeline.source_mutations import changed as change_source
from tests.legality.timeline.test_replay_mutations import document

FAULTS: Final = {"plan": {"tp": 1, "dp": 2}, "faults": [{"device": 0, "at": "1 ms", "until": "2 ms"}]}


@cache
def of_a_failing_replica() -> RunResult:
    return simulate(scenario_of(document(**FAULTS, serving={"queue_limit": 2, "max_batch_requests": 2})))


def changed(values: Any) -> Any:
    """Return a column with another value in its first row that has one."""
    found = values.copy()
    if found.dtype == object:
        row = next(row for row, value in enumerate(found) if value is not None)
        found[row] = "unfinished" if found[row] in (*EXPLAINED, "finished") else None
        return found
    row = int(np.flatnonzero(~np.ma.getmaskarray(found))[0])
    found[row] += 1
    return found


def told(verdict: Verdict) -> list[tuple[str, str, str]]:
    return [(one.rule, one.where, one.message) for one in verdict.violations]


def written(result: RunResult, folder: Path) -> Verdict:
    """Write a run with its verdict, as ``clustersim run`` does, and audit what was written."""
    verdict = together((check_scenario(result.scenario), audit_run(result)))
    layout = {"title": "t", "figures": [{"figure": "headline"}]}
    write_run(folder, result, summary_of(result), lambda: verdict, layout)
    return audit_run_directory(folder, None, None)[0]


def test_every_column_of_requests_is_compared() -> None:
    result = of_a_failing_replica()
    assert audit_run(result).verdict == "legal"
    for name in result.requests:
        other = {**result.requests, name: changed(result.requests[name])}
        found = told(audit_run(replace(result, requests=other)))
        assert [rule for rule, where, _ in found if where.startswith(f"requests.parquet, {name}")] == ["RUN-4"], name


COUNTED = "np.bincount(preempted, minlength=len(inputs.requests))"
MISTAKES: Final = (
    Change("clustersim.replay.part", "(PREEMPTED, SWAPPED_OUT)", "(SWAPPED_OUT,)"),
    Change("clustersim.replay.part", COUNTED, f"(7 + {COUNTED})"),
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_run_and_its_directory_have_one_verdict(
    mistake: Change, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = of_a_failing_replica().scenario
    assert written(of_a_failing_replica(), tmp_path / "legal").verdict == "legal"
    change_source(monkeypatch, mistake)
    result = simulate(scenario)
    own = audit_run(result)
    assert [rule for rule, where, _ in told(own) if where.startswith("requests.parquet, preemptions")] == ["RUN-4"]
    found = told(written(result, tmp_path / "run"))
    assert [one for one in found if not one[1].startswith("summary.json")] == told(own)  # figures that follow from it
