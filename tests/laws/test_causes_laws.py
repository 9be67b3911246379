"""Law: the causes of every request add up to its latencies, in whole nanoseconds, and are the same in every replay."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from clustersim.simulation.causes.causes import causes_of
from clustersim.simulation.causes.columns import cause_columns
from clustersim.simulation.causes.conditions import conditions_of
from clustersim.simulation.causes.labels import COLUMNS
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.step_parts import step_parts
from tests.effort import examples
from tests.laws.everything import everything
from tests.laws.random_scenarios import scenario_of


def causes_add_up(result: RunResult) -> None:
    """Hold the causes of a run to its latencies."""
    columns, timeline, finished = result.requests, result.timeline, result.requests["outcome"] == "finished"
    parts = step_parts(timeline)
    assert np.array_equal(parts.ns.sum(axis=1), timeline.steps["end_ns"] - timeline.steps["start_ns"])
    assert parts.ns.min(initial=0) >= 0
    by_operator = causes_of(
        timeline, result.step_rows.rows, columns, conditions_of(result.scenario, result.input.requests)
    )
    for causes in (result.causes, by_operator):
        for ns, ends in ((causes.to_first_ns, "first_token_ns"), (causes.ns, "finished_ns")):
            end = np.where(np.ma.getmaskarray(columns[ends]), columns["finished_ns"].filled(0), columns[ends].filled(0))
            latency = end - columns["arrived_ns"] + columns["front_end_ns"]  # who asks for no token has no first one
            assert np.array_equal(ns.sum(axis=1), np.where(finished, latency, 0))
            assert ns.min(initial=0) >= 0


@examples(60)
@given(document=everything())
def test_causes_of_requests_add_up(document: dict[str, Any]) -> None:
    folded, full = (
        simulate(scenario_of(document | {"run": {**document.get("run", {}), "replay": mode}}))
        for mode in ("folded", "full")
    )
    causes_add_up(folded)
    one, other = (cause_columns(result.causes, result.requests) for result in (folded, full))
    for name in COLUMNS:
        assert np.array_equal(one[name].filled(-1), other[name].filled(-1)), name
