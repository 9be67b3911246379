"""How fast replays are, each as a ratio of two measurements of one process, with the absolute figures beside it.

``pytest tests/benchmarks -m benchmark -s`` prints them. Nothing here passes or fails by time: a machine that is busy
is no defect. The ratios are what to compare between commits.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Generator
from statistics import median
from typing import Any, TypeVar

import pytest
import simpy

from clustersim.replay.replay import ReplayInput, ReplayResult, replay
from clustersim.scenario.load import load
from clustersim.simulation.replay_input import replay_input

pytestmark = pytest.mark.benchmark
T = TypeVar("T")

FIRST_STEPS = "run.horizon=700 ms"
TIMEOUTS = 1_000_000


def given(name: str, *overrides: str) -> ReplayInput:
    """What a replay of a shipped scenario is a function of."""
    scenario = load(name, overrides)
    return replay_input(scenario, scenario.requests())


def timed(action: Callable[[], T]) -> tuple[T, float]:
    """Return what ``action`` returns, and how many CPU seconds it took."""
    gc.collect()
    started = time.process_time()
    result = action()
    return result, time.process_time() - started


def report(benchmark: Any, ratio: float, sentence: str) -> None:
    """Print a ratio with its figures, and keep it with those of pytest-benchmark."""
    benchmark.extra_info["ratio"] = ratio
    print(f"\n  {benchmark.name}: {ratio:,.3g}  ({sentence})")


def bare_simpy() -> None:
    """A process that waits and waits."""
    env = simpy.Environment()

    def waits() -> Generator[simpy.Event, Any, None]:
        for _ in range(TIMEOUTS):
            yield env.timeout(1)

    env.process(waits())
    env.run()


def once(benchmark: Any, action: Callable[[], T]) -> tuple[T, float]:
    """Run an action under pytest-benchmark, once, and return what it returned and its seconds."""
    gc.collect()
    result = benchmark.pedantic(action, rounds=1, iterations=1)
    return result, benchmark.stats.stats.total


def test_operators_of_the_full_replay_per_bare_simpy_timeout(benchmark):
    """Spans per second of ``full``, over timeouts per second of SimPy alone."""
    start = given("quickstart", FIRST_STEPS, "run.replay=full")
    result, _ = once(benchmark, lambda: replay(start))  # programs are compiled then
    each = [(timed(lambda: replay(start))[1], timed(bare_simpy)[1]) for _ in range(3)]
    spans = median(result.timeline.num_spans / took for took, _ in each)
    timeouts = median(TIMEOUTS / took for _, took in each)
    ratio = median(result.timeline.num_spans / took / (TIMEOUTS / alone) for took, alone in each)
    report(benchmark, ratio, f"asked 0.6; {spans:,.0f} spans/s, SimPy alone {timeouts:,.0f} timeouts/s")


def test_folded_replay_over_the_full_one_on_the_same_requests(benchmark):
    """Seconds of ``full`` over seconds of ``folded``; their timelines are the same."""
    starts = {mode: given("quickstart", FIRST_STEPS, f"run.replay={mode}") for mode in ("full", "folded")}
    folded, took = once(benchmark, lambda: replay(starts["folded"]))
    full, full_took = timed(lambda: replay(starts["full"]))
    assert folded.timeline.digest == full.timeline.digest
    report(benchmark, full_took / took, f"full {full_took:.2f} s, folded {took:.3f} s")


def test_memory_of_the_folded_timeline_per_unfolded_one(benchmark):
    """Bytes that a replay keeps for a span, under those of the span's own columns."""

    def traced() -> tuple[ReplayResult, int, int]:
        tracemalloc.start()
        try:
            result = replay(start)
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return result, kept, peak

    start = given("quickstart", "workload.trace.requests=50")
    (result, kept, peak), _ = once(benchmark, traced)
    timeline = result.timeline
    spans = timeline.unfold(0, timeline.end_ns // 200)
    span_bytes = sum(getattr(spans, name).nbytes for name in ("start_ns", "end_ns", "step"))
    span_bytes += sum(getattr(spans, n).nbytes for n in ("rank", "stream", "name", "op", "layer", "replica", "stage"))
    millions = timeline.num_spans / 1e6
    report(
        benchmark, span_bytes / len(spans) / (kept / timeline.num_spans),
        f"{kept / millions / 1e3:,.0f} kB per million spans kept, {peak / millions / 1e3:,.0f} kB at the peak, "
        f"{span_bytes / len(spans):.0f} MB unfolded; {millions:.0f} million spans",
    )  # fmt: skip


@pytest.fixture(scope="module")
def fleet() -> Callable[[int], ReplayInput]:
    """The first requests of an hour like the Azure conversation trace, on 8 replicas of TP 8."""
    return lambda requests: given("azure-hour-fleet", f"workload.requests={requests}")


def test_simulated_seconds_of_a_fleet_per_second(benchmark, fleet):
    """DP 8 × TP 8 under 5.53 requests per second: simulated time over wall time."""
    start = fleet(4_000)
    result, took = once(benchmark, lambda: replay(start))
    simulated = result.timeline.end_ns / 1e9
    report(
        benchmark, simulated / took,
        f"{4_000 / took:,.0f} requests/s, {result.timeline.num_steps / took:,.0f} steps/s, "
        f"{result.timeline.num_spans / took / 1e6:,.0f} million spans/s; {simulated:,.0f} s in {took:.2f} s",
    )  # fmt: skip


def test_growth_with_ten_times_the_requests(benchmark, fleet):
    """CPU seconds of 4,000 requests over those of 400: 10 is linear."""
    few, many = fleet(400), fleet(4_000)
    once(benchmark, lambda: replay(few))  # programs are compiled then
    (_, few_took), (_, took) = (timed(lambda given=given: replay(given)) for given in (few, many))  # type: ignore[misc]
    report(benchmark, took / few_took, f"400 requests {few_took:.2f} s, 4,000 requests {took:.2f} s")
