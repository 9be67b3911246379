"""The law of the two replays where sends between stages meet collectives on links: small plans on one node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan
from clustersim.replay.replay import replay
from clustersim.simulation.simulate import RunResult, simulate
from tests.effort import examples
from tests.laws.random_scenarios import DEEPSEEK, GPT_OSS, LLAMA, MIXTRAL, PADDED, scenario_of
from tests.round_numbers import DENSE, SPARSE, deployment

NODES = (
    {"name": "dgx-h100", "nodes": 1},
    {"name": "dgx-h100", "nodes": 1, "scaleup_bandwidth": "40 GB/s"},
    {"name": "dgx-h100", "nodes": 1, "scaleup_bandwidth": "4 GB/s", "scaleup_latency": "0.01 us"},
    {"name": "dgx-h100", "nodes": 1, "scaleup_bandwidth": "4 GB/s", "in_switch_reduction": False},
    {"name": "dgx-a100", "nodes": 1, "scaleup_bandwidth": "10 GB/s"},
    {"name": "mi300x-node", "nodes": 1},
)
"""The slower the links, the longer sends last, and the more they meet."""


@st.composite
def crowded_documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a plan with stages on one node, with prompts long enough that sends last, and short steps between them."""
    config: dict[str, Any] = dict(draw(st.sampled_from((LLAMA, LLAMA, MIXTRAL, GPT_OSS, DEEPSEEK))))
    pp = draw(st.sampled_from((2, 2, 3, 4)))
    tp = draw(st.sampled_from([t for t in (1, 2, 2, 4, 4) if t * pp <= 8]))
    dp = draw(st.sampled_from([d for d in (1, 1, 1, 2) if d * tp * pp <= 8]))
    config["num_hidden_layers"] = 4 if "layer_types" in config else draw(st.integers(pp, 6))
    config["hidden_size"] = draw(st.sampled_from((256, 4096, 16384)))
    plan: dict[str, Any] = {"dp": dp, "pp": pp, "tp": tp}
    if "num_experts_per_tok" in config:
        plan["ep"] = draw(st.sampled_from((1, tp)))
    if draw(st.integers(0, 3)) == 0:
        plan["decode_overlap"] = "none"
    if draw(st.integers(0, 3)) == 0:
        plan["placement"] = draw(st.permutations(range(8)))[: dp * pp * tp]
    arrivals = draw(
        st.sampled_from(
            (
                {"process": "all_at_once"},
                {"process": "poisson", "rate": "500/s"},
                {"process": "poisson", "rate": "5000/s"},
                {"process": "constant", "rate": "10000/s"},
                {"process": "closed_loop", "concurrency": 4},
            )
        )
    )
    longest = draw(st.sampled_from((8, 200, 1500)))
    block_tokens = draw(st.sampled_from((1, 16)))
    pool_tokens = draw(st.sampled_from((longest + 16, 2 * longest + 32, 65536)))
    return {
        "name": "random",
        "seed": draw(st.integers(0, 1000)),
        "topology": draw(st.sampled_from(NODES)),
        "model": {"name": "tiny", "source": "a test", "config": config},
        "plan": plan,
        "serving": {
            "scheduler": draw(st.sampled_from(("continuous", "chunked_prefill"))),
            "max_batch_requests": draw(st.sampled_from((2, 8))),
            "max_batch_tokens": draw(st.sampled_from((8, 64, 512, 4096))),
            "kv_block_tokens": block_tokens,
            "kv_blocks": -(-pool_tokens // block_tokens),
            "router": draw(st.sampled_from(("round_robin", "least_outstanding"))),
            "engine": draw(st.sampled_from(("vllm-0.19", "ideal", PADDED))),
        },
        "workload": {
            "arrivals": arrivals,
            "prompt_tokens": {"uniform": {"low": 1, "high": longest}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}},
            "requests": draw(st.sampled_from((1, 3, 6, 10, 25))),
        },
        "run": {"horizon": draw(st.sampled_from((None, None, None, "5 ms")))},
    }


def both(document: dict[str, Any]) -> tuple[RunResult, RunResult]:
    """Run a document in both replays."""
    full = simulate(scenario_of(document, replay="full"))
    return simulate(scenario_of(document)), full


@examples(20, sieved=True)
@given(crowded_documents())
def test_full_and_folded_agree_where_sends_meet_collectives(document: dict[str, Any]) -> None:
    folded, full = both(document)
    assert folded.timeline.digest == full.timeline.digest
    assert folded.timeline.num_spans == full.timeline.num_spans


@st.composite
def round_deployments(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a deployment of round numbers, where much falls on one instant: what ``deployment`` takes."""
    pp = draw(st.sampled_from((2, 2, 3, 4)))
    instants = st.integers(0, 60).map(lambda at: at * draw(st.sampled_from((100, 1_000, 2_300))))
    arrivals = draw(st.lists(st.tuples(instants, st.integers(1, 24), st.integers(1, 5)), min_size=2, max_size=14))
    batch = draw(st.sampled_from((1, 2, 8)))
    tp = draw(st.sampled_from((2, 2, 4)))
    sparse = draw(st.booleans())
    return {
        "arrivals": sorted(arrivals),
        "plan": ParallelPlan(
            dp=draw(st.sampled_from((1, 1, 2))),
            tp=tp,
            pp=pp,
            ep=ExpertPlan(degree=draw(st.sampled_from((1, tp)))) if sparse else ExpertPlan(),
            decode_overlap=draw(st.sampled_from(("per_sequence", "none"))),
        ),
        "layers": draw(st.integers(pp, 5)),
        "layer": SPARSE if sparse else DENSE,
        "max_batch_requests": batch,
        "max_batch_tokens": draw(st.sampled_from((8, 24, 64))),
        "kv_blocks": draw(st.sampled_from((8, 16, 1000))),
        "concurrency": draw(st.sampled_from((None, None, 3))),
        "horizon_ns": draw(st.sampled_from((None, None, 100_000))),
        "scheduler": draw(st.sampled_from(("continuous", "chunked_prefill"))),
        "router": draw(st.sampled_from(("round_robin", "least_outstanding"))),
    }


@examples(20, sieved=True)
@given(round_deployments())
def test_full_and_folded_agree_on_round_numbers(drawn: dict[str, Any]) -> None:
    folded, full = (replay(deployment(**drawn, mode=mode)) for mode in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert folded.obstacle == ""


@st.composite
def split_deployments(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a deployment of round numbers with stages of SP ranks, of which each sends its own part."""
    drawn = draw(round_deployments())
    sp = SequencePlan(
        degree=draw(st.sampled_from((2, 2, 3, 4))),
        scheme=draw(st.sampled_from(("ring", "all_gather", "all_to_all"))),
        partition=draw(st.sampled_from(("zigzag", "contiguous", "striped"))),
        decode=draw(st.sampled_from(("idle", "dp"))),
    )
    if sp.scheme == "all_to_all" and sp.degree == 3:
        sp = replace(sp, scheme="ring")  # three ranks don't divide the heads
    plan = ParallelPlan(dp=drawn["plan"].dp, pp=drawn["plan"].pp, sp=sp)
    layers = drawn["layers"] * draw(st.sampled_from((1, 1, 3)))
    return {**drawn, "plan": plan, "layer": DENSE, "layers": layers, "max_batch_tokens": 64}


@examples(20, sieved=True)
@given(split_deployments())
def test_full_and_folded_agree_where_sp_ranks_send_and_meet_collectives(drawn: dict[str, Any]) -> None:
    folded, full = (replay(deployment(**drawn, mode=mode)) for mode in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
