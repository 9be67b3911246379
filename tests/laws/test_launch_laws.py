"""Law: what ``launch`` writes, ``from-command`` reads back as the same scenario, but for what is listed."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from clustersim.errors import IllegalPlanError
from clustersim.interop.launch.launch import launch_of
from clustersim.interop.launch.text import launch_text
from clustersim.interop.translated import scenario_from_command
from clustersim.legality.rule import Verdict
from clustersim.plan.stages import stage_cuts
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.legality import check_scenario_plan
from clustersim.units import parse
from tests.effort import examples

MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "gpt-oss-20b",
    "opt-13b",
)
DENSE = ("llama-3.1-8b", "llama-3.1-70b", "opt-13b")


@st.composite
def served(draw: st.DrawFn, engine: str) -> dict[str, Any]:
    """Draw a document of plans, knobs and workloads that a server may be asked for."""
    model = draw(st.sampled_from(MODELS))
    tp, pp, dp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4, 8, 16), (1, 1, 2, 3), (1, 1, 2, 4)))
    plan: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp}
    if model not in DENSE and draw(st.booleans()):
        whole = draw(st.booleans())
        plan["ep"] = {"degree": tp * (dp if whole else 1), "scope": "global" if whole else "replica"}
        plan["ep"]["placement"] = draw(st.sampled_from(("contiguous", "contiguous", "strided")))
        if whole and pp == 1 and tp * dp > 1 and draw(st.booleans()):
            plan["ep"] |= {"overlap": "two_batch", "overlap_decode_tokens": 40, "overlap_prefill_tokens": 600}
        if plan["ep"]["degree"] > 1:
            ways = ("all_gather", "all_to_all", "deepep_low_latency") if whole and dp > 1 else ("all_reduce",)
            plan["ep"]["exchange"] = draw(st.sampled_from((None, "deepep_normal", *ways)))
            if plan["ep"]["placement"] == "contiguous" and draw(st.booleans()):
                plan["ep"]["redundant"] = plan["ep"]["degree"]
    if pp == 2 and draw(st.booleans()):
        plan["stages"] = {"cuts": [draw(st.integers(5, 20))]}
    nodes = -(-tp * pp * dp // 8) + draw(st.sampled_from((0, 0, 1)))
    if nodes > 1 and draw(st.integers(0, 3)) == 0:
        plan["placement"] = [f"n1.g{rank}" for rank in range(8)][: tp * pp * dp]
        assume(len(plan["placement"]) == tp * pp * dp)
    plain = draw(st.sampled_from(("bf16", "fp16")))
    precision = {"activations": plain, "kv_cache": draw(st.sampled_from((plain, plain, "fp8")))}
    if model in DENSE or model.startswith("mixtral"):
        precision["weights"] = draw(st.sampled_from((plain, "fp8")))
    serving: dict[str, Any] = {
        "scheduler": draw(st.sampled_from(("chunked_prefill", "chunked_prefill", "continuous", "static"))),
        "max_batch_requests": draw(st.sampled_from((1, 64, 256, 1000))),
        "max_batch_tokens": draw(st.sampled_from((512, 2048, 8192))),
        "kv_block_tokens": draw(st.sampled_from((16, 32, 64))),
        "memory_utilization": draw(st.sampled_from((0.5, 0.9, 0.95))),
        "prefix_caching": draw(st.booleans()),
        "router": draw(st.sampled_from(("fewest_waiting", "round_robin", "least_outstanding"))),
        "order": draw(st.sampled_from(("arrival", {"by": "priority", "patience": "unlimited"}, "shortest_prompt"))),
        "engine": {"name": engine, "graph_max_tokens": draw(st.sampled_from((0, 128, 512)))},
    }
    if draw(st.booleans()):
        serving |= {"kv_blocks": draw(st.integers(100, 5000)), "queue_limit": 100}
    if serving["scheduler"] == "chunked_prefill" and draw(st.booleans()):
        serving["long_prompt_tokens"] = 300
    rate = {"rate": draw(st.sampled_from(("4/s", "0.3/s", "12.5/s"))), "rescale": draw(st.booleans())}
    arrivals = draw(
        st.sampled_from(
            (
                {"process": "poisson"} | rate,
                {"process": "gamma", "cv": draw(st.sampled_from((0.3, 2.5)))} | rate,
                {"process": "constant", "rate": "3/s"},
                {"process": "all_at_once"},
                {"process": "closed_loop", "concurrency": 7},
            )
        )
    )
    lengths = st.one_of(
        st.integers(2, 500),
        st.builds(
            lambda low, more: {"uniform": {"low": low, "high": low + more}}, st.integers(1, 300), st.integers(0, 300)
        ),
    )
    workload: dict[str, Any] = {"arrivals": arrivals, "requests": draw(st.integers(1, 300))}
    workload |= {"prompt_tokens": draw(lengths), "output_tokens": draw(lengths)}
    if serving["prefix_caching"] and draw(st.booleans()):
        workload["shared_prefixes"] = {"groups": draw(st.integers(1, 4)), "tokens": 64}
    found: dict[str, Any] = {"name": "drawn", "seed": draw(st.integers(0, 99)), "plan": plan, "precision": precision}
    found |= {"serving": serving, "workload": workload, "topology": {"name": "dgx-h100", "nodes": nodes}}
    found["targets"] = draw(st.sampled_from(({}, {"ttft": "300 ms"}, {"tpot": "0.05 s", "e2e": "9 s"}, {"itl": "1 s"})))
    positions = draw(st.sampled_from((None, 2048)))
    return found | {"model": {"name": model, "config": {"max_position_embeddings": positions}} if positions else model}


def seen(scenario: Scenario, ranks: int) -> dict[str, Any]:
    """Return what a scenario asks for, by key, with nothing left to a default."""
    plan, serving = scenario.plan, scenario.serving
    spread = plan.ep.degree > 1
    found: dict[str, Any] = {
        "plan.tp": plan.tp, "plan.pp": plan.pp, "plan.dp": plan.dp, "plan.sp": plan.sp,
        "plan.ep.degree": plan.ep.degree, "plan.ep.scope": plan.is_lockstep,
        "plan.ep.placement": plan.ep.placement if spread else None,
        "plan.ep.redundant": plan.ep.redundant,
        "plan.ep.exchange": plan.ep.exchange if spread else None,
        "plan.ep.overlap": plan.is_two_batch,
        "plan.stages": stage_cuts(scenario.model, plan),
        "plan.placement": (plan.placement or tuple(range(plan.world)))[:ranks],
        "precision.weights": scenario.precision.weights, "precision.activations": scenario.precision.activations,
        "precision.kv_cache": scenario.precision.kv_cache, "model": scenario.model.layers,
        "model.config.max_position_embeddings": scenario.model.max_positions, "seed": scenario.seed,
        "serving.engine": scenario.engine, "serving.order.by": serving.order.by, "serving.order": serving.order,
    }  # fmt: skip
    for key in ("overlap_decode_tokens", "overlap_prefill_tokens"):
        found[f"plan.ep.{key}"] = getattr(plan.ep, key) if plan.is_two_batch else None
    for key in ("scheduler", "long_prompt_tokens", "max_batch_requests", "max_batch_tokens", "kv_block_tokens",
                "memory_utilization", "kv_blocks", "prefix_caching", "queue_limit", "preemption"):  # fmt: skip
        found[f"serving.{key}"] = getattr(serving, key)
    found["serving.router"] = serving.router if plan.dp > 1 else None
    workload = scenario.document["workload"]
    for key in ("arrivals", "prompt_tokens", "output_tokens", "requests", "shared_prefixes"):
        found[f"workload.{key}"] = workload.get(key)
    drawn: Any = scenario.workload
    found["workload.arrivals"] = type(drawn.arrivals), getattr(drawn.arrivals, "rate_per_s", None), getattr(
        drawn.arrivals, "concurrency", None), getattr(drawn.arrivals, "cv", None)  # fmt: skip
    found["workload.arrivals.rescale"] = getattr(drawn.arrivals, "rescale", None)
    found["workload.prompt_tokens"], found["workload.output_tokens"] = (
        (one.tokens, one.tokens) if hasattr(one, "tokens") else (one.low, one.high)
        for one in (drawn.prompt_tokens, drawn.output_tokens)
    )
    targets = scenario.document.get("targets", {})
    return found | {f"targets.{key}": _seconds(targets.get(key)) for key in ("ttft", "tpot", "itl", "e2e")}


def _seconds(text: str | None) -> float | None:
    return None if text is None else round(parse(text, "time"), 9)


@pytest.mark.parametrize(("target", "engine"), [("vllm", "vllm-0.19"), ("sglang", "sglang-0.5")])
@examples(120, sieved=True)
@given(data=st.data())
def test_what_launch_wrote_is_read_back_but_for_what_it_lists(target: str, engine: str, data: st.DataObject) -> None:
    document = data.draw(served(engine))
    scenario = build_scenario(parse_yaml(yaml.safe_dump(document), "drawn.yaml"))
    verdict: Verdict = check_scenario_plan(scenario)
    assume(not verdict.violations)
    try:
        found = launch_of(scenario, target)
    except IllegalPlanError:
        assume(False)
    text = launch_text(scenario, found)
    back = build_scenario(parse_yaml(scenario_from_command(text, topology="dgx-h100").text, "back.yaml"))
    one, other = seen(scenario, found.servers[0].devices), seen(back, found.servers[0].devices)
    unsaid = [entry.path for entry in found.unsaid]
    if not found.benchmark:
        unsaid += ["workload", "seed", "targets"]
    if "serving.order.by" in unsaid:
        unsaid.append("serving.order")
    different = [key for key in one if one[key] != other[key]]
    if "plan.dp" in unsaid and "serving.router" in different:  # said with the copies that somebody has to start
        different.remove("serving.router")
    silent = [key for key in different if not any(key == path or key.startswith(f"{path}.") for path in unsaid)]
    assert silent == [], (silent, [(one[key], other[key]) for key in silent], text)
    # and nothing that was said is listed
    told = [
        key for key in unsaid if key in one and one[key] == other[key] and key not in ("serving.order", "targets.itl")
    ]
    told = [
        key for key in told if key != "plan.placement" or (found.servers[0].copies, found.servers[0].nodes) == (1, 1)
    ]
    assert [key for key in told if not key.startswith(("workload", "seed", "targets"))] == [], text
