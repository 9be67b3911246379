"""Requests per CPU second in folded replay for each way of scheduling, over that of continuous batching on lanes.

``pytest tests/benchmarks -m benchmark -s`` prints them. All serve the same requests on one node, each in a process of
its own; what is not served on lanes is replayed by events, decision by decision. A ratio has to stay within a wide
margin of what it was when this was written: it is CPU seconds of one run over CPU seconds of another.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.benchmarks.child import Took, in_child
from tests.benchmarks.test_replay_speed import report

pytestmark = pytest.mark.benchmark

REQUESTS: Final = 3_000
OWN: Final = f"{Path(__file__).parents[2]}/scenarios/user/pace_keeper.py:PaceKeeper"
SENT: Final = (
    f"workload={{trace: {{path: traces/azure-conv-sample.csv, repeat: true, rate_scale: 1.5, requests: {REQUESTS}}}}}",
    "topology={name: dgx-h100, nodes: 1}",
    "expect={}",
)
CONTINUOUS: Final = "serving.scheduler=continuous"
FEW_BLOCKS: Final = "serving.kv_blocks=700"
WAYS: Final = {
    "chunked_prefill": ((), 0.8),
    "static": (("serving.scheduler=static",), 0.2),
    "in order of priority": ((CONTINUOUS, "serving.order={by: priority, patience: 1 s}"), 0.13),
    "shortest prompts first": ((CONTINUOUS, "serving.order={by: shortest_prompt, patience: 1 ms}"), 0.10),
    "prefix caching": ((CONTINUOUS, "serving.prefix_caching=true"), 0.12),
    "short of blocks": ((CONTINUOUS, FEW_BLOCKS), 0.15),
    "short of blocks, swap": ((CONTINUOUS, FEW_BLOCKS, "serving.preemption=swap"), 0.057),
    "two pools": (("serving={scheduler: disaggregated}", "plan={prefill: {tp: 4}, decode: {tp: 4}}"), 0.036),
    "own scheduler": ((f"serving={{scheduler: '{OWN}'}}",), 0.02),
}
"""What is scheduled how → what a scenario says of it, and the ratio when this was written."""


@cache
def continuous() -> Took:
    """Continuous batching on lanes, with what all are compared."""
    return in_child("tp-on-one-node", *SENT, CONTINUOUS)


@pytest.mark.parametrize(("says", "was"), WAYS.values(), ids=WAYS.keys())
def test_requests_per_cpu_second_over_those_of_continuous_batching(benchmark, says, was):
    """A fifth of what it was at least: less is another algorithm, not another machine."""
    lanes = continuous()
    took = benchmark.pedantic(lambda: in_child("tp-on-one-node", *SENT, *says), rounds=1, iterations=1)
    assert lanes.how == ""
    assert took.requests == lanes.requests == REQUESTS
    ratio = lanes.cpu_s / took.cpu_s
    report(benchmark, ratio, f"{took}; continuous: {REQUESTS / lanes.cpu_s:,.0f} requests per CPU second")
    assert ratio > was / 5
