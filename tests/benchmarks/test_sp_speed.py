"""How fast plans are replayed whose prompts are split over SP ranks, as a ratio to one without SP on the same requests.

``pytest tests/benchmarks -m benchmark -s`` prints the ratios, of CPU times in one process, without compiled lanes.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.benchmarks.test_pools_speed import cpu_seconds
from tests.benchmarks.test_replay_speed import given, report

pytestmark = pytest.mark.benchmark

REQUESTS: Final = 2_000
PLANS: Final = {
    "SP 2, ring": "{tp: 8, sp: {degree: 2, scheme: ring, partition: zigzag, decode: idle}}",
    "SP 4, ring": "{tp: 8, sp: {degree: 4, scheme: ring, partition: zigzag, decode: idle}}",
    "SP 2, each rank decodes": "{tp: 8, sp: {degree: 2, scheme: ring, partition: zigzag, decode: dp}}",
    "SP 2, two stages": "{tp: 4, pp: 2, sp: {degree: 2, scheme: ring, partition: zigzag, decode: idle}}",
    "SP 2, two stages, each decodes": "{tp: 4, pp: 2, sp: {degree: 2, scheme: ring, partition: zigzag, decode: dp}}",
}
TRACE: Final = f"workload.trace={{path: traces/azure-conv-sample.csv, repeat: true, requests: {REQUESTS}}}"


@pytest.mark.parametrize("plan", PLANS)
def test_sp_over_plain_tp(benchmark, plan: str) -> None:
    """Requests per CPU second of Llama-3.1-70B with SP over those of TP 8 alone; asked: 0.3."""
    where = "topology.nodes=4", "expect={}", TRACE
    split = cpu_seconds(given("quickstart", *where, f"plan={PLANS[plan]}"))
    plain = cpu_seconds(given("quickstart", *where, "plan={tp: 8}"))
    benchmark.pedantic(lambda: None, rounds=1)
    report(benchmark, plain / split, f"{REQUESTS / split:,.0f} requests per CPU s, plain {REQUESTS / plain:,.0f}")
