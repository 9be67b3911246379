"""All features together: both replays agree, audits find nothing, and every request is accounted for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from clustersim.simulation.simulate import simulate
from tests.effort import examples
from tests.laws.accounts import account_for
from tests.laws.everything import everything, traces
from tests.laws.random_scenarios import scenario_of


@examples(8, sieved=True)
@given(everything())
def test_whatever_happens_replays_agree_and_no_request_is_lost_silently(document: dict[str, Any]) -> None:
    account_for(document)


@examples(24, sieved=True)
@given(traces())
def test_whatever_a_trace_says_replays_agree_and_no_request_is_lost_silently(document: dict[str, Any]) -> None:
    account_for(document)


@pytest.mark.parametrize("scheduler", ["continuous", "chunked_prefill"])
@pytest.mark.parametrize("seed", range(4))
def test_who_leaves_the_queue_while_decodes_take_blocks_tells_of_those_too(scheduler: str, seed: int) -> None:
    document = {
        "name": "impatient",
        "seed": seed,
        "model": {"name": "qwen3-8b", "config": {"num_hidden_layers": 1}},
        "topology": {"name": "dgx-h100", "nodes": 1},
        "plan": {"dp": 2},
        "serving": {
            "scheduler": scheduler,
            "kv_blocks": 14,
            "kv_block_tokens": 8,
            "max_batch_requests": 3,
            "max_batch_tokens": 512,
            "queue_timeout": "200 ms",
        },
        "workload": {
            "requests": 14,
            "arrivals": "all_at_once",
            "prompt_tokens": {"uniform": {"low": 4, "high": 40}},
            "output_tokens": {"fixed": 40},
            "cancel_after": {"uniform": {"low": "0 s", "high": "60 ms"}},
        },
        "run": {},
    }
    folded, full = (simulate(scenario_of(document, replay=replay)) for replay in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert (folded.requests["outcome"] == "cancelled").sum() > 2
