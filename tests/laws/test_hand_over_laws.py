"""Two pools: ``full`` and ``folded`` give the same timeline, it is legal, and every request is accounted for."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from clustersim.serving.decision import HANDED_OVER, RECEIVED
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.effort import examples
from tests.laws.accounts import account_for
from tests.laws.everything import failing_pools, left_early
from tests.laws.random_scenarios import disaggregated, scenario_of


@examples(20, sieved=True)
@given(disaggregated())
def test_replays_of_two_pools_agree_and_are_legal(document: dict[str, Any]) -> None:
    folded, full = (simulate(scenario_of(document, replay=replay)) for replay in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert folded.timeline.num_spans == full.timeline.num_spans
    for column in ("admitted_ns", "first_token_ns", "finished_ns"):
        assert np.array_equal(folded.requests[column].filled(-1), full.requests[column].filled(-1)), column
    assert audit_run(folded).violations == ()
    told = folded.timeline.facts
    left, came = (set(told["request"][told["kind"] == kind].tolist()) for kind in (HANDED_OVER, RECEIVED))
    assert left == came
    if document["run"]["horizon"] is None:
        least = 0 if folded.scenario.first_token == "decode" else 1  # who asks for one token ends at the prefill pool
        wanted = folded.requests["output_tokens"] > least
        finished = folded.requests["outcome"] == "finished"
        assert left == set(folded.requests["request"][wanted & finished].tolist())
        assert not (folded.requests["outcome"] == "unfinished").any()


@examples(5, sieved=True)
@given(disaggregated().flatmap(left_early))
def test_replays_of_two_pools_agree_where_clients_give_up(document: dict[str, Any]) -> None:
    account_for(document)


@examples(5, sieved=True)
@given(failing_pools())
def test_replays_of_two_pools_agree_where_something_fails(document: dict[str, Any]) -> None:
    account_for(document)


def test_a_request_is_admitted_where_its_prompt_is_computed_and_then_received() -> None:
    document = {
        "name": "two-pools",
        "seed": 29,
        "model": {"name": "qwen3-8b", "config": {"num_hidden_layers": 1}},
        "topology": {"name": "mi300x-node", "nodes": 2},
        "plan": {"prefill": {"tp": 2, "dp": 3}, "decode": {"tp": 2, "dp": 2}},
        "serving": {
            "scheduler": "disaggregated",
            "transfer": "layerwise",
            "kv_block_tokens": 16,
            "max_batch_requests": 4,
            "max_batch_tokens": 512,
            "prefill": {"scheduler": "continuous", "kv_blocks": 24},
            "decode": {"scheduler": "chunked_prefill", "kv_blocks": 47},
        },
        "workload": {
            "requests": 3,
            "arrivals": {"process": "constant", "rate": "200/s"},
            "prompt_tokens": {"fixed": 300},
            "output_tokens": {"uniform": {"low": 1, "high": 40}},
        },
        "run": {},
    }
    for replay in ("folded", "full"):
        found = simulate(scenario_of(document, replay=replay)).requests
        assert np.array_equal(found["admitted_ns"], found["arrived_ns"]), replay
