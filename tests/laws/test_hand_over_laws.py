"""Two pools: ``full`` and ``folded`` give the same timeline, it is legal, and every request is accounted for."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings

from clustersim.run.audit import audit_run
from clustersim.run.simulate import simulate
from clustersim.serving.decision import HANDED_OVER, RECEIVED
from tests.laws.random_scenarios import disaggregated, scenario_of


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(disaggregated())
def test_replays_of_two_pools_agree_and_are_legal(document: dict[str, Any]) -> None:
    folded, full = (simulate(scenario_of(document, replay=replay)) for replay in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert folded.timeline.num_spans == full.timeline.num_spans
    assert audit_run(folded).violations == ()
    told = folded.timeline.facts
    left, came = (set(told["request"][told["kind"] == kind].tolist()) for kind in (HANDED_OVER, RECEIVED))
    assert left == came
    if document["run"]["horizon"] is None:
        wanted = folded.requests["output_tokens"] > 1
        finished = folded.requests["outcome"] == "finished"
        assert left == set(folded.requests["request"][wanted & finished].tolist())
        assert not (folded.requests["outcome"] == "unfinished").any()
