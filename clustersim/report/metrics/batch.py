"""What places in the batch a run lacked: how many are enough that nobody waits, by replays of the same requests.

What a replica has running at most without a cap is what is tried; where some still wait with that, twice as many.
Of two pools it is the first, where requests arrive. No number is told that was not replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clustersim.report.metrics.blocks import LATENCIES, lead
from clustersim.report.metrics.faults import MOST_STEPS, all_met
from clustersim.report.metrics.latencies import summarise
from clustersim.simulation.legality import check_scenario_plan
from clustersim.simulation.simulate import RunResult, with_entry

CAPPED: Final = ("continuous", "chunked_prefill")
"""Schedulers of which a cap is all that a place in the batch waits for."""


def enough_batch(result: RunResult, causes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``enough_batch`` of ``summary.json``.

    None where a place in the batch is no cause of half of a latency, every target is met, more than ``MOST_STEPS``
    steps ran, or no number of places that the plan may have (its memory, its token budget) is enough. Otherwise
    ``max_batch_requests`` with which nobody waits for a place, and ``ttft_ms``, ``tpot_ms`` and ``e2e_ms`` of the same
    requests with it.

    Parameters
    ----------
    result : RunResult
    causes : mapping
        ``causes`` of its summary.
    """
    serving = result.scenario.serving
    if serving.scheduler not in CAPPED or not lead(causes, ("batch_wait",)):
        return None
    if all_met(result) or result.timeline.num_steps > MOST_STEPS:
        return None
    most = min(len(result.input.requests), serving.max_batch_tokens)
    found = _allowed(result, most)
    places = most if found is None else max(serving.max_batch_requests + 1, _running(found))
    while places <= most and (found := _allowed(result, places)) is not None:
        if not np.ma.filled(found.table["batch_wait_ns"], 0).any():
            told = summarise(found.columns, found.token_gaps)
            return {"max_batch_requests": places, **{name: told[name] for name in LATENCIES}}
        places *= 2
    return None


def _allowed(result: RunResult, places: int) -> RunResult | None:
    """Return the run with so many places; None where that is illegal."""
    serving = replace(result.scenario.serving, max_batch_requests=places)
    scenario = result.scenario.with_entry(serving=serving)
    return None if check_scenario_plan(scenario).violations else with_entry(result, scenario)


def _running(result: RunResult) -> int:
    """Return how many requests a replica of the first pool had running at most."""
    rows = result.step_rows.rows
    of = result.timeline.layout.of_replica(rows["replica"])
    return int(rows["running"][of == 0].max(initial=0))
