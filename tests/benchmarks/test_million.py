"""What many requests cost, and how that grows: ratios within one run, absolute figures beside them.

``pytest tests/benchmarks -m benchmark -s`` prints them; nothing passes or fails by time. Each replay runs in a process
of its own, so that its memory can be told. CPU seconds are what to compare on a machine that does other things too.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

import pytest

from clustersim.scenario.load import load
from tests.benchmarks.child import Took, in_child
from tests.benchmarks.plain_loop import plain_loop

pytestmark = pytest.mark.benchmark

MANY = int(os.environ.get("CLUSTERSIM_BENCHMARK_REQUESTS", "200_000"))
FLEET = int(os.environ.get("CLUSTERSIM_BENCHMARK_FLEET", "100_000"))
TENTH = MANY // 10
RATE = 1.5
"""Times the rate of the Azure sample: one DGX H100 has some 50 sequences running, and the queue stays short."""


def azure(requests: int, rate: float) -> str:
    """The Azure conversation sample, again and again."""
    trace = f"path: traces/azure-conv-sample.csv, requests: {requests}, repeat: true, rate_scale: {rate}"
    return f"workload={{trace: {{{trace}}}}}"


def closed(requests: int, concurrency: int = 48) -> str:
    """A closed loop: its steps are the same however long they take."""
    drawn = "{uniform: {low: 20, high: 400}}"
    arrivals = f"{{process: closed_loop, concurrency: {concurrency}}}"
    return f"workload={{arrivals: {arrivals}, prompt_tokens: {drawn}, output_tokens: {drawn}, requests: {requests}}}"


@cache
def one_node(requests: int) -> Took:
    """Llama-3.1-70B on TP 8."""
    return in_child("tp-on-one-node", azure(requests, RATE))


def report(benchmark: Any, ratio: float, *rows: object) -> None:
    """Print a ratio with its figures, and keep it with those of pytest-benchmark."""
    benchmark.extra_info["ratio"] = ratio
    print(f"\n  {benchmark.name}: {ratio:,.3g}")
    for row in rows:
        print(f"    {row}")


def test_many_requests_over_a_plain_loop(benchmark):
    """CPU seconds of the replay over those of ``plain_loop`` on the same requests."""
    took = benchmark.pedantic(lambda: one_node(MANY), rounds=1, iterations=1)
    scenario = load("tp-on-one-node", [azure(MANY, RATE)])
    requests, serving = scenario.requests(), scenario.serving
    began = time.process_time()
    steps = plain_loop(requests, serving.max_batch_requests, serving.max_batch_tokens)
    plain = time.process_time() - began
    report(benchmark, took.cpu_s / plain, took, f"plain loop: {steps:,} steps in {plain:.2f} s of CPU")


RING = "{degree: 2, scheme: ring, partition: zigzag, decode: %s}"
PLANS = {
    "TP 4 × PP 2 on one node": ("tp-on-one-node", azure(TENTH, RATE), "plan={tp: 4, pp: 2}"),
    "TP 4 × PP 2 on two nodes": (
        "tp-on-one-node",
        azure(TENTH, RATE),
        "plan={tp: 4, pp: 2, placement: [0, 1, 2, 3, 8, 9, 10, 11]}",
        "topology={name: dgx-h100, nodes: 2}",
    ),
    "Mixtral on EP 4": ("mixtral-ep", azure(TENTH, RATE)),
    "TP 4 × SP 2, ring, decodes on one rank": (
        "tp-on-one-node",
        azure(TENTH, RATE),
        f"plan={{tp: 4, sp: {RING % 'idle'}}}",
    ),
    "TP 4 × SP 2, ring, decodes on each": ("tp-on-one-node", azure(TENTH, RATE), f"plan={{tp: 4, sp: {RING % 'dp'}}}"),
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_request_of_another_plan_over_one_of_tp_8(benchmark, plan):
    """CPU seconds per request, over those of Llama-3.1-70B on TP 8."""
    name, *overrides = PLANS[plan]
    took = benchmark.pedantic(lambda: in_child(name, *overrides), rounds=1, iterations=1)
    base = one_node(TENTH)
    ratio = took.cpu_s / took.requests / (base.cpu_s / base.requests)
    report(benchmark, ratio, f"{plan}: {took}", f"TP 8: {base}")


@pytest.mark.parametrize("requests", [25, 50])
def test_full_over_folded_on_the_same_requests_of_tp_8(benchmark, requests):
    """CPU seconds of ``full`` over those of ``folded``; of few requests ``folded`` mostly compiles programs."""
    full = benchmark.pedantic(
        lambda: in_child("tp-on-one-node", azure(requests, RATE), "run.replay=full"), rounds=1, iterations=1
    )
    folded = one_node(requests)
    report(benchmark, full.cpu_s / folded.cpu_s, f"full: {full}", f"folded: {folded}")


def test_growth_with_ten_times_the_requests_of_one_node(benchmark):
    """CPU seconds of ten times the requests over those of one time; memory beside it."""
    many = benchmark.pedantic(lambda: one_node(MANY), rounds=1, iterations=1)
    few = one_node(TENTH)
    memory = f"memory: {many.memory_bytes / few.memory_bytes:.2f}"
    report(benchmark, many.cpu_s / few.cpu_s, memory, many, few)


REPLICAS = 10


@pytest.mark.parametrize("router", ["round_robin", "least_outstanding"])
def test_growth_with_ten_times_the_replicas(benchmark, router):
    """CPU seconds of ten replicas with ten times the requests and the rate, over those of one; memory beside it."""
    many = benchmark.pedantic(
        lambda: in_child(
            "tp-on-one-node",
            azure(TENTH, RATE * REPLICAS),
            f"plan={{tp: 8, dp: {REPLICAS}}}",
            f"topology={{name: dgx-h100, nodes: {REPLICAS}}}",
            f"serving.router={router}",
        ),
        rounds=1,
        iterations=1,
    )
    one = one_node(TENTH // REPLICAS)
    memory = f"memory: {many.memory_bytes / one.memory_bytes:.2f}"
    report(benchmark, many.cpu_s / one.cpu_s, memory, many, one)


def test_growth_with_twice_the_layers(benchmark):
    """CPU seconds of 160 layers over those of 80, on the same steps."""
    config = dict(load("tp-on-one-node").document["model"]["config"])
    layers = config["num_hidden_layers"]
    twice = f"model.config.num_hidden_layers={2 * layers}"
    pool = "serving.kv_blocks=5000"
    deep = benchmark.pedantic(lambda: in_child("tp-on-one-node", closed(TENTH), twice, pool), rounds=1, iterations=1)
    base = in_child("tp-on-one-node", closed(TENTH), pool)
    report(benchmark, deep.cpu_s / base.cpu_s, deep, base)


def test_growth_with_tp_8_instead_of_1(benchmark):
    """CPU seconds of Llama-3.1-8B on TP 8 over those on TP 1, on the same steps."""
    options = ("model=llama-3.1-8b", closed(TENTH), "serving.kv_blocks=5000")
    eight = benchmark.pedantic(lambda: in_child("tp-on-one-node", *options), rounds=1, iterations=1)
    one = in_child("tp-on-one-node", *options, "plan={tp: 1}")
    report(benchmark, eight.cpu_s / one.cpu_s, eight, one)


def test_growth_with_ten_times_the_batch(benchmark):
    """CPU seconds of 240 sequences a step over those of 24, on the same requests."""
    big, small = (
        ("model=llama-3.1-8b", closed(TENTH, many), "serving={max_batch_requests: 256, max_batch_tokens: 2048}")
        for many in (240, 24)
    )
    ten = benchmark.pedantic(lambda: in_child("tp-on-one-node", *big), rounds=1, iterations=1)
    one = in_child("tp-on-one-node", *small)
    report(benchmark, ten.cpu_s / one.cpu_s, ten, one)


def test_growth_with_eight_stages_instead_of_one(benchmark):
    """CPU seconds of Llama-3.1-8B on PP 8 over those on PP 1, on the same requests."""
    options = ("model=llama-3.1-8b", azure(TENTH, RATE))
    eight = benchmark.pedantic(
        lambda: in_child("tp-on-one-node", *options, "plan={pp: 8, tp: 1}"), rounds=1, iterations=1
    )
    one = in_child("tp-on-one-node", *options, "plan={tp: 1}")
    report(benchmark, eight.cpu_s / one.cpu_s, eight, one)


TEN_THOUSAND = (
    "tp-on-one-node", azure(FLEET, RATE * 1250), "plan={tp: 8, dp: 1250}", "topology={name: dgx-h100, nodes: 1250}",
    "serving.router=least_outstanding",
)  # fmt: skip
"""1,250 replicas of TP 8, least outstanding; ``CLUSTERSIM_BENCHMARK_FLEET`` says how many requests there are."""


def test_a_fleet_of_ten_thousand_devices(benchmark):
    """CPU seconds per request of ten thousand devices over those of one replica; and bytes per request."""
    took = benchmark.pedantic(lambda: in_child(*TEN_THOUSAND), rounds=1, iterations=1)
    base = one_node(TENTH)
    held = f"{took.memory_bytes / took.requests:,.0f} bytes a request"
    report(benchmark, took.cpu_s / took.requests / (base.cpu_s / base.requests), held, took, base)
