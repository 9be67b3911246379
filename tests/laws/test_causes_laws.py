"""Law: the causes of every request add up to its end-to-end latency, in whole nanoseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from clustersim.simulation.causes import causes_of
from clustersim.simulation.simulate import simulate
from clustersim.timeline.step_parts import step_parts
from tests.effort import examples
from tests.laws.everything import everything
from tests.laws.random_scenarios import scenario_of


@examples(60)
@given(document=everything())
def test_causes_of_requests_add_up(document: dict[str, Any]) -> None:
    result = simulate(scenario_of(document))
    columns, timeline = result.requests, result.timeline
    parts = step_parts(timeline)
    assert np.array_equal(parts.ns.sum(axis=1), timeline.steps["end_ns"] - timeline.steps["start_ns"])
    found = causes_of(timeline, columns)
    finished = np.array([outcome == "finished" for outcome in columns["outcome"]])
    e2e = np.where(finished, columns["finished_ns"] - columns["arrived_ns"] + columns["front_end_ns"], 0)
    assert np.array_equal(found.ns.sum(axis=1), e2e)
    stages = timeline.layout.pools[0].stages
    for at, (name, kind) in enumerate(found.labels):
        if kind != "overlap" and not (name == "wait for a stage" and stages > 1):
            assert found.ns[:, at].min(initial=0) >= 0, name
