"""How tokens get to experts: what a plan says, what its engine does where it says nothing, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from clustersim.errors import InputError
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.scenario import Scenario


def built(plan: dict[str, Any], engine: Any = "vllm-0.19") -> Scenario:
    whole = {
        "name": "experts",
        "topology": {"name": "dgx-h100", "nodes": 1},
        "model": "mixtral-8x7b",
        "plan": plan,
        "serving": {"engine": engine},
        "workload": {
            "arrivals": "all_at_once", "prompt_tokens": {"fixed": 8}, "output_tokens": {"fixed": 2}, "requests": 1,
        },
    }  # fmt: skip
    return build_scenario(parse_yaml(yaml.safe_dump(whole), "experts.yaml"))


WIDE = {"dp": 4, "ep": {"degree": 4, "scope": "global"}}
DEEPEP = {"name": "vllm-0.19", "experts_across": "deepep_normal"}
SEGMENTS = {"degree": 2, "scheme": "all_gather", "partition": "zigzag", "decode": "dp"}


@pytest.mark.parametrize(
    ("plan", "engine", "found"),
    [
        ({"tp": 4, "ep": 4}, "vllm-0.19", "all_reduce"),
        ({"tp": 4, "ep": 2}, "sglang-0.5", "all_reduce"),
        ({"tp": 4, "ep": 4}, "trtllm-0.14", "all_reduce"),
        ({"tp": 4, "ep": 4}, "ideal", "all_to_all"),
        ({"tp": 4, "ep": {"degree": 4, "exchange": "deepep_low_latency"}}, "vllm-0.19", "deepep_low_latency"),
        ({"tp": 4, "ep": {"degree": 4, "overlap": "two_batch"}}, "vllm-0.19", "all_gather"),
        ({"tp": 2, "sp": SEGMENTS, "ep": 4}, "sglang-0.5", "all_gather"),
        (WIDE, "vllm-0.19", "all_gather"),
        (WIDE, "ideal", "all_to_all"),
        (WIDE, DEEPEP, "deepep_normal"),
        ({"tp": 4, "ep": 4}, DEEPEP, "all_reduce"),
        ({"tp": 4}, DEEPEP, "all_to_all"),
    ],
)
def test_what_a_plan_does_not_say_is_as_the_engine_does_it(plan, engine, found):
    scenario = built(plan, engine)
    assert scenario.plan.ep.exchange == found
    assert scenario.document["plan"]["ep"]["exchange"] == (found if scenario.plan.ep.degree > 1 else None)
    assert built(scenario.document["plan"], engine).plan == scenario.plan


@pytest.mark.parametrize(
    ("plan", "where", "words"),
    [
        ({"tp": 2, "sp": SEGMENTS, "ep": {"degree": 2, "exchange": "all_reduce"}}, "exchange", "inside one TP group"),
        ({**WIDE, "ep": {**WIDE["ep"], "exchange": "all_reduce"}}, "exchange", "inside one TP group"),
        ({"tp": 4, "ep": {"degree": 4, "exchange": "all_reduce", "overlap": "two_batch"}}, "overlap", "use none"),
        ({"tp": 4, "ep": {"degree": 1, "exchange": "deepep_normal"}}, "exchange", "a degree above 1"),
        ({"tp": 4, "ep": {"degree": 4, "dispatch": "fp8"}}, "dispatch", "deepep_normal or deepep_low_latency"),
        ({"tp": 4, "ep": {"degree": 4, "exchange": "deepep"}}, "exchange", "did you mean 'deepep_normal'"),
    ],
)
def test_what_can_not_be_is_refused_where_it_is_written(plan, where, words):
    with pytest.raises(InputError) as caught:
        built(plan)
    (problem,) = caught.value.problems
    assert (problem.path, words in problem.message) == (f"plan.ep.{where}", True)


def test_an_engine_can_not_keep_tokens_of_experts_on_other_replicas():
    with pytest.raises(InputError, match="experts_across: expected one of all_to_all, all_gather, deepep_normal"):
        built(WIDE, {"name": "vllm-0.19", "experts_across": "all_reduce"})


def test_an_engine_gathers_tokens_only_where_each_expert_is_on_one_rank():
    """TensorRT-LLM gathers over replicas; where ranks share an expert tokens are sent to each of them instead."""
    assert built(WIDE, "trtllm-1.0").plan.ep.exchange == "all_gather"
    shared = {"tp": 2, "dp": 2, "ep": {"degree": 2, "scope": "global"}}
    assert built(shared, "trtllm-1.0").plan.ep.exchange == "all_to_all"
    with pytest.raises(InputError, match="all_gather is for experts that are each on one rank"):
        built({**shared, "ep": {**shared["ep"], "exchange": "all_gather"}}, "trtllm-1.0")
