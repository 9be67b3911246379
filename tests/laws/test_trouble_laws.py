"""Limits, cancellations and faults: both replays agree, the audit finds nothing, and every request is accounted for."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings

from clustersim.report.metrics import summarise
from clustersim.run.audit import audit_run
from clustersim.run.simulate import simulate
from tests.laws.random_scenarios import scenario_of, troubled

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=SLOW)
@given(troubled())
def test_whatever_happens_replays_agree_and_no_request_is_lost_silently(document: dict[str, Any]) -> None:
    folded, full = (simulate(scenario_of(document, replay=replay)) for replay in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert folded.timeline.num_spans == full.timeline.num_spans
    for column in ("replica", "arrived_ns", "generated_tokens", "preemptions", "outcome", "reason"):
        assert np.array_equal(folded.requests[column], full.requests[column])
    assert audit_run(folded).violations == ()
    counts = summarise(folded.requests)["requests"]
    assert counts.pop("arrived") == sum(counts.values())
    if document["run"]["horizon"] is None:
        assert len(folded.requests["request"]) == document["workload"]["requests"]
        assert counts["unfinished"] == 0
