"""Prices follow the format of each module's weights, of simulation and of the rules that judge what it recorded."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clustersim.errors import InputError
from clustersim.graph.batch import StepBatch, features_of
from clustersim.graph.blueprint import Node
from clustersim.graph.expand import step_blueprints
from clustersim.graph.prices.work import bytes_moved
from clustersim.graph.program import CostClass, class_node
from clustersim.legality.prices import kernels as rules
from clustersim.plan.parallel import SequencePlan
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.audit import audit_run
from clustersim.simulation.priced import priced
from clustersim.simulation.replay_input import cost_models
from clustersim.simulation.simulate import simulate

ONE = StepBatch(decode_sequences=(1,), decode_keys=(64,))


def scenario(model: str, precision: str = "{}", plan: str = "{tp: 1}") -> Scenario:
    text = f"""
name: formats
topology: {{name: dgx-h100, nodes: 1}}
model: {model}
precision: {precision}
plan: {plan}
serving: {{engine: vllm-0.19}}
workload: {{arrivals: all_at_once, prompt_tokens: 64, output_tokens: 4, requests: 2}}
"""
    return build_scenario(parse_yaml(text, "formats.yaml"), allow_code=False)


def products(one: Scenario) -> Mapping[str, tuple[Node, int, float]]:
    """Return node, nanoseconds and bytes of each product of a decode step of one sequence."""
    found, features = {}, features_of(ONE, SequencePlan())
    ((blueprints, pricer),) = priced(one, cost_models(one)).pools
    assert blueprints == step_blueprints(one.model, one.plan, one.precision)
    for unit in blueprints["decode"].stages[0]:
        for node in unit.body.nodes:
            if node.op in ("gemm", "grouped_gemm"):
                ns = int(pricer.price([CostClass(node=class_node(node), s=0)], ONE)[0])
                found[node.name] = node, ns, bytes_moved(node, features, 0, one.precision)
    return found


def test_the_lm_head_of_an_fp8_model_reads_two_bytes_a_weight() -> None:
    narrow, wide = (products(scenario(f"meta-llama/Llama-3.1-8B-Instruct{end}")) for end in ("-FP8", ""))
    _, ns, moved = narrow["lm_head"]
    assert moved == 128256 * 4096 * 2 + (128256 + 4096) * 2  # 1.051 GB
    assert (ns, moved) == wide["lm_head"][1:]
    assert narrow["ffn_up"][2] < 0.51 * wide["ffn_up"][2]
    assert narrow["ffn_up"][1] < 0.7 * wide["ffn_up"][1]


def test_what_is_named_in_fp8_is_priced_so() -> None:
    kept, named = (
        products(scenario("llama-3.1-8b", weights))
        for weights in ("{weights: fp8}", "{weights: {default: fp8, lm_head: fp8}}")
    )
    assert named["lm_head"][2] == 128256 * 4096 + (128256 + 4096) * 2
    assert named["lm_head"][1] < 0.7 * kept["lm_head"][1]
    assert {name: of[1] for name, of in named.items() if name != "lm_head"} == {
        name: of[1] for name, of in kept.items() if name != "lm_head"
    }


def test_a_format_for_a_module_that_the_model_lacks_is_refused_with_the_other_mistakes() -> None:
    with pytest.raises(InputError) as caught:
        scenario("gemma-2-9b", "{weights: {lm_head: fp8, experts: fp8, lm_hed: fp8}}")
    assert [(one.path, one.message) for one in caught.value.problems] == [
        ("precision.weights.lm_head", "gemma-2-9b has none of its own: it is the embedding; name that"),
        ("precision.weights.experts", "gemma-2-9b has none"),
        ("precision.weights.lm_hed", "unknown module; did you mean 'lm_head'?"),
    ]


@pytest.mark.parametrize(
    ("model", "precision", "plan"),
    [
        ("gpt-oss-20b", "{}", "{tp: 2}"),
        ("deepseek-v2-lite", "{weights: {default: fp8, attention: bf16, router: fp32}}", "{tp: 2}"),
        ("qwen3-30b-a3b", "{weights: {experts: int4-g32z, attention: fp8}, multiply: bf16}", "{tp: 2, ep: 2}"),
    ],
)
def test_rules_come_to_the_same_durations(
    model: str, precision: str, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = simulate(scenario(model, precision, plan))
    assert audit_run(ran).verdict == "legal"
    monkeypatch.setattr(rules, "bytes_of", lambda name: 2.0)  # one format for all weights: the rules see it
    assert "RUN-2" in {found.rule for found in audit_run(ran).violations}
