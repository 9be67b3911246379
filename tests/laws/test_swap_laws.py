"""Swaps: both replays agree, the audit finds nothing, and every request is accounted for."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from clustersim.simulation.audit import audit_run
from clustersim.simulation.replay_input import replay_input
from clustersim.simulation.simulate import simulate
from tests.audit import audit
from tests.effort import examples
from tests.laws.random_scenarios import scenario_of, swapped


@examples(10, sieved=True)
@given(swapped())
def test_replays_with_swaps_agree_and_are_legal(document: dict[str, Any]) -> None:
    folded, full = (simulate(scenario_of(document, replay=replay)) for replay in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert folded.timeline.num_spans == full.timeline.num_spans
    for column in ("replica", "arrived_ns", "generated_tokens", "preemptions", "outcome", "reason"):
        assert np.array_equal(folded.requests[column], full.requests[column])
    assert audit_run(folded).violations == ()
    if not document["serving"].get("queue_timeout") and not document["workload"].get("cancel_after"):
        audit(replay_input(folded.scenario, folded.scenario.requests()), folded.replayed)
    if document["run"]["horizon"] is None:
        assert not (folded.requests["outcome"] == "unfinished").any()
