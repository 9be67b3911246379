"""What holds of every run, whatever is in its scenario: checked from the scenario's document to the run directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from clustersim.cli.commands.audit_run import audit_run_directory
from clustersim.legality.rule import Verdict
from clustersim.report.files.run_directory import write_run
from clustersim.report.files.summary import summary_of
from clustersim.report.layouts import overview
from clustersim.simulation.audit import check_run, violation_line
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.simulate import RunResult, simulate
from tests.core_storage import core
from tests.laws.agreement import figures_agree, left_by, others_than
from tests.laws.random_scenarios import scenario_of


def account_for(document: dict[str, Any]) -> Counter[str]:
    """Run a scenario in both replays, audit it, write it and audit what was written; return what became of requests.

    Every request is accounted for: it finishes, or is rejected, given up by its client or lost, and then says why;
    nothing is lost where nothing fails.
    """
    scenario, kept = scenario_of(document, replay="folded"), None
    full = simulate(scenario_of(document, replay="full"))
    requests, before = full.input.requests, left_by(full.input.requests)
    if before is not None:
        kept = KeptPrices()
        with core(before):
            simulate(scenario, requests=others_than(requests), kept=kept)
    folded = simulate(scenario, kept=kept)
    assert folded.timeline.digest == full.timeline.digest
    if kept is not None or "trace" in document["workload"]:  # of others ``agreement`` compares each way
        with core("compiled"):
            assert simulate(scenario, kept=kept).timeline.digest == full.timeline.digest
    assert folded.timeline.num_spans == full.timeline.num_spans
    for column in folded.table:
        assert np.array_equal(*(np.ma.filled(one.table[column], -1) for one in (folded, full))), column
    figures_agree(folded, full)
    verdict = check_run(folded)
    assert [violation_line(one) for one in verdict.violations] == []
    outcome, reason = (folded.requests[name].tolist() for name in ("outcome", "reason"))
    counts = Counter(outcome)
    for word, why in zip(outcome, reason, strict=True):
        assert (why is not None) == (word in ("rejected", "cancelled", "lost")), (word, why)
    if document["run"].get("horizon") is None:
        workload = document["workload"]
        asked = len(folded.scenario.requests()) if "trace" in workload else workload["requests"]
        assert len(outcome) == len(folded.requests["request"]) == asked
        assert counts["unfinished"] == 0
    if not document.get("faults"):
        assert counts["lost"] == 0
    assert audited_again(folded, verdict) == []
    return counts


def audited_again(result: RunResult, verdict: Verdict) -> list[str]:
    """Write a run, and return what an audit finds wrong with its run directory; nothing audits the dashboard."""
    with (
        TemporaryDirectory() as folder,
        patch("clustersim.report.files.run_directory.dashboard_of", lambda *_, **__: ""),
    ):
        path = Path(folder) / "run"
        write_run(path, result, summary_of(result), lambda: verdict, overview())
        found, _ = audit_run_directory(path, None, None)
    return [violation_line(violation) for violation in found.violations]
