"""What the audit of a run costs: CPU seconds over those of its simulation, in one process.

``pytest tests/benchmarks -m benchmark -s`` prints them. Nothing here passes or fails by time. Each run is simulated and
audited several times and the median is told, as a machine that does other things too tells another ratio each time.
The core is interpreted, of which the aim speaks; what it takes compiled, where that pays, is told beside it. The
table of requests, which each run writes and the audit reads, is the run's; the ratio where it is the audit's is told.
``CLUSTERSIM_BENCHMARK_AUDITED`` says how many requests each has.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final, TypeVar

import pytest

from clustersim.scenario.load import load
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.core_storage import core

pytestmark = pytest.mark.benchmark
T = TypeVar("T")

TIMES: Final = 3
REQUESTS: Final = int(os.environ.get("CLUSTERSIM_BENCHMARK_AUDITED", "0"))
PLAIN: Final = ("serving.router=least_outstanding", "serving.prefix_caching=false", "workload.shared_prefixes=null")
CASES: Final[dict[str, tuple[str, int, tuple[str, ...]]]] = {
    "plain": ("tp-on-one-node", 60_000, ()),
    "stages": ("pp-on-one-node", 60_000, ()),
    "two pools": ("distserve-tp2-tp1", 10_000, ()),
    "two pools, layer by layer": ("distserve-tp2-tp1", 1_000, ("serving.transfer=layerwise",)),
    "prefix caching": ("shared-prefixes", 60_000, ()),
    "recompute": ("shared-prefixes", 60_000, (*PLAIN, "serving.kv_blocks=1000")),
    "swap": (
        "shared-prefixes",
        10_000,
        (*PLAIN, "serving.kv_blocks=1000", "serving.preemption=swap", "serving.host_kv=64 GB"),
    ),
}
"""What is served → scenario, requests, and what is said otherwise."""


def cpu(action: Callable[[], T]) -> tuple[T, float]:
    """Return what ``action`` returns, and the CPU seconds that it took."""
    gc.collect()
    started = time.process_time()
    result = action()
    return result, time.process_time() - started


@pytest.mark.parametrize("case", CASES)
def test_audit_over_simulation(benchmark: Any, case: str) -> None:
    """CPU seconds of the audit over those of the simulation; the aim is 0.25 or less at 60,000 requests."""
    name, usual, more = CASES[case]
    requests = REQUESTS or usual
    repeated = ("workload.trace.repeat=true",) if name.endswith("one-node") else ()
    many = f"workload.{'trace.' if repeated else ''}requests={requests}"
    scenario = load(name, (*repeated, many, "expect={}", *more))
    took = []
    for _ in range(TIMES):
        with core("interpreted"):
            result, simulated = cpu(partial(simulate, scenario))
        _, table = cpu(partial(getattr, result, "table"))
        verdict, audited = cpu(partial(audit_run, result))
        took.append((audited / (simulated + table), (audited + table) / simulated, simulated, audited))
        assert verdict.verdict == "legal"
    _, compiled = cpu(partial(simulate, scenario))
    ratio, with_table, simulated, audited = (median(column) for column in zip(*took, strict=True))
    benchmark.pedantic(audit_run, (result,), rounds=1, iterations=1)
    benchmark.extra_info["ratio"] = ratio
    print(
        f"\n  {case}: {ratio:.2f}, with the table {with_table:.2f}  "
        f"(simulated in {simulated:.2f} s, audited in {audited:.2f} s; {requests:,} requests; "
        f"{audited / compiled:.2f} of the {compiled:.2f} s where the core is compiled as it pays)"
    )
