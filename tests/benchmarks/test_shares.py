"""What people deploy at the speed of the plain case: requests per CPU second over those of the plain case, interpreted.

Plain is Llama-3.1-70B on TP 8 under the Azure trace. ``pytest tests/benchmarks -m benchmark -s -k shares`` prints a row
per case: medians of three pairs of CPU times in a process of their own, each after one of both, so that prices are
known; where requests are drawn, others each time. Beside it stand the share that is wanted, and why a case goes by
events or is not compiled. A case fails below a fifth of what it was when this was written: that is another algorithm,
not another machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.benchmarks.paired import beside_plain
from tests.benchmarks.test_replay_speed import report
from tests.core_storage import Storage

pytestmark = pytest.mark.benchmark

SCENARIOS: Final = Path(__file__).parents[2] / "scenarios"
OWN: Final = f"scheduler: '{SCENARIOS}/user/pace_keeper.py:PaceKeeper', scheduler_options: {{prompt_tokens: 512}}"
TABLE: Final = """\
op,m,n,k,batch,keys,heads,kv_heads,qk_dim,v_dim,seconds
gemm,1,1280,8192,,,,,,,12e-6
gemm,256,1280,8192,,,,,,,16e-6
gemm,2048,1280,8192,,,,,,,70e-6
attention_decode,,,,1,1000,8,1,128,128,5e-6
attention_decode,,,,64,64000,8,1,128,128,25e-6
"""
"""Assumed: a few measured points of two operators."""


def azure(requests: int, rate: float = 1.0) -> str:
    """The Azure conversation sample, again and again."""
    trace = f"path: traces/azure-conv-sample.csv, requests: {requests}, repeat: true, rate_scale: {rate}"
    return f"workload={{trace: {{{trace}}}}}"


def nodes(count: int) -> str:
    """So many nodes of eight H100."""
    return f"topology={{name: dgx-h100, nodes: {count}}}"


def ring(plan: str, degree: int, decode: str) -> str:
    """A plan with prompts split over SP ranks."""
    return f"plan={{{plan}, sp: {{degree: {degree}, scheme: ring, partition: zigzag, decode: {decode}}}}}"


def drawn(requests: int) -> str:
    """Requests about as long as those of the trace, whose clients give up after ten seconds."""
    prompts = "prompt_tokens: {lognormal: {mean: 1196, cv: 0.9, max: 8000}}"
    lengths = f"{prompts}, output_tokens: {{lognormal: {{mean: 204, cv: 1}}}}"
    told = f"{lengths}, requests: {requests}, cancel_after: 10 s"
    return f"workload={{arrivals: {{process: poisson, rate: 5.66/s}}, {told}}}"


def vidur(requests: int, *overrides: str) -> tuple[str, ...]:
    """Vidur's own workload: 512 prompt and 128 output tokens, at the rate of its README's example."""
    lengths = "prompt_tokens: {fixed: 512}, output_tokens: {fixed: 128}"
    return f"workload={{arrivals: {{process: poisson, rate: 6.45/s}}, {lengths}, requests: {requests}}}", *overrides


BASE: Final = "tp-on-one-node"
POOLS: Final = "distserve-tp2-tp1"
WIDE: Final = "deepseek-v3-wide-ep"
APART: Final = ("topology.nodes=2", "plan.prefill.placement=[0, 1]", "plan.decode.placement=[8]")
FOUR_AND_FOUR: Final = ("serving={scheduler: disaggregated}", "plan={prefill: {tp: 4}, decode: {tp: 4}}")
LAYERWISE: Final = "serving.transfer=layerwise"
CONTINUOUS: Final = "serving.scheduler=continuous"
SHORT: Final = (azure(3_000, 1.5), CONTINUOUS, "serving.kv_blocks=700")
FOUR_APART: Final = (azure(6_000, 4.0), nodes(4), "plan={tp: 8, dp: 4}")
"""Four replicas, each as busy as the plain one."""
LIMITS: Final = ("serving.queue_limit=200", "serving.queue_timeout=20 s")
FAULTS: Final = "faults=[{node: n1, at: 10 s, until: 25 s}]"


class Case(NamedTuple):
    """A scenario of so many requests with overrides; the share that is wanted, and what it was."""

    name: str
    overrides: tuple[str, ...]
    asked: float
    was: float
    mode: Storage = "interpreted"


CASES: Final = {
    "plain, compiled": Case(BASE, (azure(300_000),), 60, 30, "compiled"),
    "PP 2 on one node": Case(BASE, (azure(2_000), nodes(1), "plan={tp: 4, pp: 2}"), 0.5, 0.14),
    "PP 2 on one node, compiled": Case(BASE, (azure(5_000), nodes(1), "plan={tp: 4, pp: 2}"), 0.5, 0.5, "compiled"),
    "PP 2 on two nodes": Case(BASE, (azure(2_000), nodes(2), "plan={tp: 8, pp: 2}"), 0.5, 0.14),
    "PP 2 on two nodes, compiled": Case(BASE, (azure(5_000), nodes(2), "plan={tp: 8, pp: 2}"), 0.5, 1, "compiled"),
    "PP 8": Case(BASE, (azure(2_000), nodes(1), "plan={pp: 8}"), 0.25, 0.14),
    "PP 8, compiled": Case(BASE, (azure(5_000), nodes(1), "plan={pp: 8}"), 0.25, 1, "compiled"),
    "in order of priority": Case(BASE, (azure(3_000), "serving.order={by: priority, patience: 1 s}"), 0.5, 0.6),
    "shortest prompts first": Case(BASE, (azure(3_000), "serving.order={by: shortest_prompt}"), 0.5, 0.6),
    "limits of the queue": Case(BASE, (azure(3_000), *LIMITS), 0.5, 0.6),
    "cancellation": Case(BASE, (drawn(3_000),), 0.5, 0.5),
    "faults": Case(BASE, (*FOUR_APART, "serving.router=least_outstanding", FAULTS), 0.5, 0.4),
    "router power of two": Case(BASE, (*FOUR_APART, "serving.router=power_of_two"), 0.5, 0.4),
    "router prefix-aware": Case(BASE, (*FOUR_APART, "serving.router=prefix_aware"), 0.5, 0.4),
    "shared prefixes": Case("shared-prefixes", ("workload.requests=4000",), 0.3, 0.29),
    "shared prefixes, Mooncake": Case("mooncake-conversation", (), 0.3, 0.2),
    "shared prefixes, compiled": Case("shared-prefixes", ("workload.requests=4000",), 0.3, 1.7, "compiled"),
    "shared prefixes, Mooncake, compiled": Case("mooncake-conversation", (), 0.3, 0.6, "compiled"),
    "prefix caching, nothing shared": Case(BASE, (azure(3_000), "serving.prefix_caching=true"), 0.9, 0.85),
    "two pools on one node": Case(POOLS, ("workload.requests=2000",), 0.3, 0.14),
    "two pools of TP 4 on one node": Case(BASE, (azure(1_000), *FOUR_AND_FOUR), 0.3, 0.1),
    "two pools apart": Case(POOLS, ("workload.requests=2000", *APART), 0.3, 0.3),
    "layerwise on one node": Case(POOLS, ("workload.requests=200", LAYERWISE), 0.15, 0.015),
    "layerwise apart": Case(POOLS, ("workload.requests=1000", LAYERWISE, *APART), 0.15, 0.12),
    "two pools on one node, compiled": Case(POOLS, ("workload.requests=20000",), 0.3, 3, "compiled"),
    "two pools of TP 4 on one node, compiled": Case(BASE, (azure(10_000), *FOUR_AND_FOUR), 0.3, 1, "compiled"),
    "two pools apart, compiled": Case(POOLS, ("workload.requests=20000", *APART), 0.3, 3, "compiled"),
    "layerwise on one node, compiled": Case(POOLS, ("workload.requests=2000", LAYERWISE), 0.15, 0.4, "compiled"),
    "layerwise apart, compiled": Case(POOLS, ("workload.requests=5000", LAYERWISE, *APART), 0.15, 1, "compiled"),
    "SP 2, ring": Case(BASE, (azure(2_000), nodes(2), ring("tp: 8", 2, "idle")), 0.3, 0.5),
    "SP 4 × TP 8, ring": Case(BASE, (azure(2_000), nodes(4), ring("tp: 8", 4, "idle")), 0.3, 0.3),
    "SP 2, ring, each rank decodes": Case(BASE, (azure(2_000), nodes(2), ring("tp: 8", 2, "dp")), 0.3, 0.3),
    "SP 2, two stages": Case(BASE, (azure(1_000), nodes(2), ring("tp: 4, pp: 2", 2, "idle")), 0.3, 0.1),
    "SP 2, two stages, dp": Case(BASE, (azure(1_000), nodes(2), ring("tp: 4, pp: 2", 2, "dp")), 0.3, 0.1),
    "wide EP in lockstep": Case(WIDE, ("workload.requests=1000",), 0.4, 0.18),
    "Mixtral on EP 8 in lockstep": Case(
        WIDE,
        (
            "workload.requests=1000", "topology.nodes=1", "model=mixtral-8x7b", "precision={}",
            "plan={dp: 8, ep: {degree: 8, scope: global}}",
        ),
        0.4, 0.1,
    ),
    "two batches": Case("deepseek-v3-two-batch", (), 0.2, 0.5),
    "DeepSeek-V3 on TP 8 × EP 8": Case(
        WIDE,
        (
            "workload.requests=1000", "topology={name: dgx-h200, nodes: 1}", "plan={tp: 8, ep: {degree: 8}}",
            "workload.arrivals={process: poisson, rate: 4/s}",
        ),
        0.3, 0.8,
    ),
    "short of blocks, recompute": Case(BASE, SHORT, 0.5, 0.15),
    "short of blocks, recompute, compiled": Case(BASE, SHORT, 0.5, 3, "compiled"),
    "short of blocks, swap": Case(BASE, (*SHORT, "serving.preemption=swap"), 0.3, 0.18),
    "short of blocks, swap, compiled": Case(BASE, (*SHORT, "serving.preemption=swap"), 0.3, 3, "compiled"),
    "own scheduler": Case(BASE, (azure(2_000), f"serving={{{OWN}}}"), 0.15, 0.12),
    "a cost table": Case(BASE, (azure(3_000), "cost={table: TABLE}"), 0.7, 0.8),
    "a cost table, compiled": Case(BASE, (azure(30_000), "cost={table: TABLE}"), 0.7, 3, "compiled"),
    "gpt-oss": Case(BASE, (azure(3_000), "model=gpt-oss-120b"), 0.7, 0.44),
    "gpt-oss, compiled": Case(BASE, (azure(5_000), "model=gpt-oss-120b"), 0.7, 5, "compiled"),
    "Vidur's workload, 8B on TP 1": Case(BASE, vidur(5_000, "model=llama-3.1-8b", "plan={tp: 1}"), 1, 1),
    "Vidur's workload, 8B on TP 1, compiled": Case(
        BASE, vidur(50_000, "model=llama-3.1-8b", "plan={tp: 1}"), 1, 10, "compiled"
    ),
    "Vidur's workload, 70B on TP 4": Case(BASE, vidur(5_000, "plan={tp: 4}"), 1, 1),
    "Vidur's workload, TP 4 × PP 2": Case(BASE, vidur(1_000, "plan={tp: 4, pp: 2}"), 0.5, 0.1),
    "Vidur's workload, TP 4 × PP 2, compiled": Case(BASE, vidur(5_000, "plan={tp: 4, pp: 2}"), 0.5, 1, "compiled"),
}  # fmt: skip
"""What is replayed → how, the share that is wanted, and the share when this was written."""


@pytest.mark.parametrize("case", CASES)
def test_shares_of_the_plain_case(benchmark, tmp_path: Path, case: str) -> None:
    """Requests per CPU second of a case over those of the plain case, interpreted."""
    name, overrides, asked, was, mode = CASES[case]
    table = tmp_path / "points.csv"
    table.write_text(TABLE, encoding="utf-8")
    said = ["expect={}", *(one.replace("TABLE", str(table)) for one in overrides)]
    took = benchmark.pedantic(lambda: beside_plain(mode, name, *said), rounds=1, iterations=1)
    report(benchmark, took.share, f"asked {asked:g}; {took}")
    assert took.share > was / 5
