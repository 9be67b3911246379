"""What one candidate of a search costs, in process and warm: a scenario of 500 requests, resolved, checked, simulated
and summarised, over a plain loop on the same requests.

Candidates differ in rate and batch limit, on a plan that the process has seen. ``pytest tests/benchmarks -m benchmark
-s`` prints the ratio, and milliseconds of CPU.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from statistics import median
from typing import Final

import pytest

from clustersim.limits import Limits
from clustersim.report.files.summary import summary_of
from clustersim.search.load import load_of
from clustersim.search.plans.grid import step_of
from clustersim.search.plans.trial import Trial, try_rate
from clustersim.search.runs import Variants
from clustersim.simulation.legality import check_scenario_plan
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.simulate import simulate
from tests.benchmarks.plain_loop import plain_loop
from tests.benchmarks.test_replay_speed import report
from tests.core_storage import BOTH, Storage, core

pytestmark = pytest.mark.benchmark

PLANS: Final = {
    "one stage": ("plan={tp: 8}",),
    "two stages": ("plan={tp: 4, pp: 2}",),
    "two SP ranks": ("plan={tp: 4, sp: {degree: 2, scheme: ring, partition: zigzag, decode: idle}}",),
    "two SP ranks that decode": ("plan={tp: 4, sp: {degree: 2, scheme: ring, partition: zigzag, decode: dp}}",),
    "two pools": ("plan={prefill: {tp: 4}, decode: {tp: 4}}", "serving.scheduler=disaggregated"),
}
WARM: Final = {plan: 44 if plan == "one stage" else 8 for plan in PLANS}
"""Candidates before those that are counted: the core is compiled after so many."""
COUNTED: Final = 7


def changes(number: int) -> tuple[str, ...]:
    """What one candidate has in place of the scenario's values."""
    return f"workload.trace.rate_scale={1.0 + number % 30 / 100:g}", f"serving.max_batch_requests={200 + number}"


@pytest.mark.parametrize("storage", BOTH)
@pytest.mark.parametrize("plan", PLANS)
def test_a_warm_candidate_over_a_plain_loop(benchmark, plan: str, storage: Storage) -> None:
    """CPU of a candidate over CPU of a loop that only counts steps; asked: 50 ms interpreted, 10 ms compiled."""
    if storage == "compiled" and plan not in ("one stage", "two stages"):
        pytest.skip("prompts split over SP ranks are not compiled")
    variants = Variants("quickstart", (*PLANS[plan], "topology.nodes=1"), limits=Limits())
    kept, took, loops = KeptPrices(), [], []
    for number in range(WARM[plan] + COUNTED):
        started = time.process_time()
        scenario = variants.scenario(changes(number))
        requests = variants.requests(scenario)
        verdict = check_scenario_plan(scenario)
        with core(storage):
            summary_of(simulate(scenario, requests=requests, kept=kept), verdict)
        took.append(time.process_time() - started)
        started = time.process_time()
        plain_loop(requests, scenario.serving.max_batch_requests, scenario.serving.max_batch_tokens)
        loops.append(time.process_time() - started)
    benchmark.pedantic(lambda: None, rounds=1)
    mine, plain = median(took[WARM[plan] :]), median(loops[WARM[plan] :])
    report(
        benchmark,
        mine / plain,
        f"{1e3 * mine:.1f} ms of CPU, a plain loop {1e3 * plain:.1f} ms; {took[0]:.2f} s the first",
    )


@pytest.mark.parametrize("plan", PLANS)
def test_a_warm_candidate_of_a_search_over_a_plain_loop(benchmark, plan: str) -> None:
    """CPU of a rate that is tried, of which a search looks at the share alone, over CPU of a loop that counts steps."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        pytest.skip("NUMBA_DISABLE_JIT is not 0")
    variants = Variants("quickstart", (*PLANS[plan], "topology.nodes=1"), limits=Limits())
    base = variants.scenario()
    load, took, loops = load_of(base, variants.requests, 0.0), [], []
    for number in range(WARM[plan] + COUNTED):
        scenario = base.with_entry(serving=replace(base.serving, max_batch_requests=200 + number))
        trial = Trial(scenario=scenario, load=load, step=step_of(load.first) + number % 30, every=1)
        requests = trial.requests
        started = time.process_time()
        assert try_rate(trial)["failed"] is None
        took.append(time.process_time() - started)
        started = time.process_time()
        plain_loop(requests, scenario.serving.max_batch_requests, scenario.serving.max_batch_tokens)
        loops.append(time.process_time() - started)
    benchmark.pedantic(lambda: None, rounds=1)
    mine, plain = median(took[WARM[plan] :]), median(loops[WARM[plan] :])
    report(benchmark, mine / plain, f"{1e3 * mine:.1f} ms of CPU, a plain loop {1e3 * plain:.1f} ms")
