"""How fast two pools are replayed, as a ratio to one pool on the same requests and as many devices.

``pytest tests/benchmarks -m benchmark -s`` prints the ratios, of CPU times in one process, without compiled lanes.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from typing import Final

import pytest

from clustersim.replay.replay import ReplayInput, replay
from tests.benchmarks.test_replay_speed import given, report

pytestmark = pytest.mark.benchmark

NAME: Final = "distserve-tp2-tp1"
REQUESTS: Final = {"whole": 2_000, "layerwise": 300}
PLACES: Final = {
    "apart": ("topology.nodes=2", "plan.prefill.placement=[0, 1]", "plan.decode.placement=[8]"),
    "on one node": (),
}
"""K/V on links of its own, or beside the collectives of the prefill pool."""


def cpu_seconds(start: ReplayInput) -> float:
    """CPU of a replay whose prices are known."""
    start = replace(start, compiled="never")
    replay(start)
    gc.collect()
    began = time.process_time()
    replay(start)
    return time.process_time() - began


@pytest.mark.parametrize("transfer", REQUESTS)
@pytest.mark.parametrize("place", PLACES)
def test_two_pools_over_one(benchmark, place: str, transfer: str) -> None:
    """Requests per CPU second of two pools, over those of three replicas of one; asked: 0.3, layerwise 0.15."""
    count = REQUESTS[transfer]
    few = f"workload.requests={count}"
    pools = cpu_seconds(given(NAME, few, "expect={}", f"serving.transfer={transfer}", *PLACES[place]))
    plain = cpu_seconds(given(NAME, few, "expect={}", "plan={dp: 3}", "serving={scheduler: chunked_prefill}"))
    benchmark.pedantic(lambda: None, rounds=1)
    report(benchmark, plain / pools, f"{count / pools:,.0f} requests per CPU s, one pool {count / plain:,.0f}")
