"""What a step takes inside a run: α-β of its collectives, linear in the context, bound by what it must read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.model import weights
from clustersim.model.kv import kv_bytes_per_token
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.load import load
from tests.audit import replayed, simulated
from tests.round_numbers import ALGORITHMS, ATTENTION, DENSE, deployment, step_ends

MODES = pytest.mark.parametrize("mode", ["full", "folded"])


def lengths(timeline, name):
    """Return the different lengths of the spans of an operator, ns."""
    spans = timeline.unfold()
    chosen = spans.name == spans.names.index(name)
    return np.unique((spans.end_ns - spans.start_ns)[chosen]).tolist()


@MODES
@pytest.mark.parametrize("tokens", [1, 8, 40])
@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize(
    ("algorithm", "steps", "share"),
    [
        ("ring", lambda p: 2 * (p - 1), lambda p: 2 * (p - 1) / p),
        ("halving_doubling", lambda p: 2 * (p.bit_length() - 1), lambda p: 2 * (p - 1) / p),
        ("one_shot", lambda p: 1, lambda p: p - 1),
    ],
)
def test_an_all_reduce_in_a_run_takes_alpha_plus_beta_n(mode, algorithm, steps, share, p, tokens):
    """α = 1 µs per serial step, β = 1 ns per byte and n = 1,000 bytes per token (Thakur et al., IJHPCA 19, 2005)."""
    plan = ParallelPlan(tp=p)
    given = deployment([(0, tokens, 1)], mode=mode, plan=plan, algorithms=ALGORITHMS | {"all_reduce": algorithm})
    expected = steps(p) * 1_000 + share(p) * tokens * 1_000
    assert lengths(replayed(given).timeline, "o_proj_all_reduce") == [round(expected)]


@MODES
def test_a_decode_step_is_linear_in_the_context(mode):
    """10 ns per key, layer and sequence: 3 sequences and 2 layers grow by 60 ns a step."""
    timeline = replayed(deployment([(0, 9, 50)] * 3, mode=mode, layers=2)).timeline
    ends = step_ends(timeline)
    assert set(np.diff(ends, n=2)[1:].tolist()) == {60}
    assert ends[1] - ends[0] == 2_000 + 2 * (4_600 + 3 * 10 * 10)


@MODES
def test_a_decode_step_stops_growing_where_its_window_is_full(mode):
    """A window of 16 keys: 10, 11, … 16 keys, and 16 from then on."""
    windowed = replace(DENSE, attention=replace(ATTENTION, sliding_window=16))
    timeline = replayed(deployment([(0, 9, 12)], mode=mode, layer=windowed)).timeline
    keys = [10, 11, 12, 13, 14, 15, 16, 16, 16, 16, 16]
    assert np.diff(step_ends(timeline)).tolist() == [2_000 + 4_600 + 10 * attended for attended in keys]


def decode_lengths(model, *overrides):
    """Simulate one request on H100s, and return the lengths of its decode steps in ns."""
    given = (
        f"model={model}", "workload={arrivals: {process: all_at_once}, prompt_tokens: {fixed: 1000}, "
        "output_tokens: {fixed: 200}, requests: 1}", "plan={tp: 4}", "topology={name: dgx-h100, nodes: 1}",
        "serving.engine=ideal", "targets={}", "expect={}",
    )  # fmt: skip
    return np.diff(step_ends(simulated(load("quickstart", (*given, *overrides))).timeline))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-2-7b", "qwen3-14b", "mistral-7b"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_decode_step_takes_at_least_as_long_as_reading_weights_and_cache(model, tp):
    """Every weight but the input embedding, and the K/V of the context, is read once a step, 1/tp of it by a rank.

    And at batch 1 not much longer: within a factor of 3 on one device, the engine being ideal.
    """
    steps = decode_lengths(model, f"plan.tp={tp}")
    scenario = load("quickstart", (f"model={model}",))
    spec, rate = scenario.model, load("quickstart", ("topology={name: dgx-h100, nodes: 1}",)).topology.device
    read = weights.active_parameters(spec, input_embedding=False) * 2
    context = 1_000 + 1 + np.arange(len(steps))
    bound = (read + context * kv_bytes_per_token(spec, 2)) / tp / rate.memory_bytes_per_s * 1e9
    assert (steps >= bound).all()
    assert tp > 1 or (steps <= 3 * bound).all()


def test_a_decode_step_grows_at_least_by_the_cache_of_a_token():
    """16 sequences of 20,000 tokens: from one step to the next the K/V of 16 tokens more is read.

    The last prompt is through after 160 steps of 2,048 tokens, and the first request ends after 410.
    """
    steps = decode_lengths(
        "llama-3.1-8b", "plan.tp=1", "workload.requests=16", "workload.prompt_tokens.fixed=20000",
        "workload.output_tokens.fixed=400", "serving.kv_blocks=30000",
    )  # fmt: skip
    scenario = load("quickstart", ("model=llama-3.1-8b",))
    added = 16 * kv_bytes_per_token(scenario.model, 2) / scenario.topology.device.memory_bytes_per_s * 1e9
    assert steps[300] - steps[200] >= 100 * added
