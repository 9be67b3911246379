"""``launch``: what engines refuse and from where that is known, what is written for each, and what is listed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim import catalog
from clustersim.cli import main
from clustersim.errors import IllegalPlanError, InputError
from clustersim.interop import bench_flags, sglang, vllm
from clustersim.interop.command import Grammar
from clustersim.interop.launch.added import GRAMMARS, MEANS, OPTIONS
from clustersim.interop.launch.asked import Asked
from clustersim.interop.launch.launch import TARGETS, Launch, launch_of
from clustersim.interop.launch.refusals import REFUSALS, refused
from clustersim.interop.launch.text import launch_json, launch_text
from clustersim.interop.translated import scenario_from_command
from clustersim.model.hub import ON_THE_HUB, shipped_model
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario, load
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.legality import pool_blocks, scenario_memory

PLAIN = """\
name: plain
topology: {name: dgx-h100, nodes: 4}
model: llama-3.1-8b
workload: {arrivals: all_at_once, prompt_tokens: 512, output_tokens: 64, requests: 10}
"""


def asked(engine: str, options: str, **of: Any) -> Asked:
    """Return what is asked for by options as they would be typed."""
    found: dict[str, str] = {}
    words = shlex.split(options)
    for at, word in enumerate(words):
        if word.startswith("--no-"):
            found[f"--{word[5:]}"] = "false"
        elif word.startswith("--"):
            following = words[at + 1 : at + 2]
            found[word] = following[0] if following and not following[0].startswith("--") else "true"
    return Asked(engine=engine, options=found, **of)


URLS = {"num_instances": 2, "urls": ["a:1", "b:1"]}
CASES: list[tuple[int, str, dict[str, Any], str, dict[str, Any]]] = [
    (1, "--tp-size 6 --nnodes 4", {}, "--tp-size 8 --nnodes 4", {}),
    (2, "--tp-size 8 --attn-dp-size 3", {}, "--tp-size 8 --attn-dp-size 4", {}),
    (3, "--tp-size 2 --dp-size 2 --attn-dp-size 2", {}, "--tp-size 2 --attn-dp-size 2", {}),
    (4, "--tp-size 8 --dp-size 2 --nnodes 2", {}, "--tp-size 8 --dp-size 2", {}),
    (5, "--tp-size 8 --attn-dp-size 4 --attn-cp-size 4", {}, "--tp-size 8 --attn-dp-size 4 --attn-cp-size 2", {}),
    (6, "--enable-prefill-cp", {}, "--enable-prefill-cp --cp-strategy zigzag", {}),
    (6, "--enable-prefill-cp --cp-strategy zigzag --dcp-size 2", {}, "--dcp-size 2", {}),
    (7, "--tp-size 8 --ep-size 4 --moe-dp-size 4", {}, "--tp-size 8 --ep-size 4 --moe-dp-size 2", {}),
    (7, "--tp-size 8 --pp-size 2 --moe-dp-size 2", {}, "--tp-size 8 --pp-size 2", {}),
    (8, "--tp-size 8 --ep-size 4 --moe-runner-backend flashinfer_cutlass", {}, "--tp-size 8 --ep-size 4", {}),
    (9, "--chunked-prefill-size 1000 --page-size 64", {}, "--chunked-prefill-size -1 --page-size 64", {}),
    (9, "--chunked-prefill-size 64 --page-size 48", {},
     "--chunked-prefill-size 64 --page-size 48 --disaggregation-mode decode", {}),
    (10, "--pp-size 2 --speculative-algorithm EAGLE", {},
     "--pp-size 2 --speculative-algorithm EAGLE --disaggregation-mode prefill", {}),
    (11, "--speculative-eagle-topk 4", {}, "--speculative-eagle-topk 4 --speculative-num-steps 3", {}),
    (12, "--disaggregation-mode prefill --disaggregation-transfer-backend fake", {},
     "--disaggregation-mode decode --disaggregation-transfer-backend fake", {}),
    (13, "--context-length 9000", {"positions": 8192}, "--context-length 8192", {"positions": 8192}),
    (14, "--tensor-parallel-size 6", {}, "--tensor-parallel-size 8", {}),
    (15, "--enable-expert-parallel", {}, "--enable-expert-parallel", {"experts": 8}),
    (16, "--tensor-parallel-size 8 --pipeline-parallel-size 2", {},
     "--tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2", {}),
    (16, "--tensor-parallel-size 8 --pipeline-parallel-size 2", {},
     "--tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray", {}),
    (17, "--tensor-parallel-size 8 --decode-context-parallel-size 3", {"latent": True},
     "--tensor-parallel-size 8 --decode-context-parallel-size 4", {"latent": True}),
    (17, "--tensor-parallel-size 4 --prefill-context-parallel-size 2 --decode-context-parallel-size 4",
     {"latent": True},
     "--tensor-parallel-size 4 --prefill-context-parallel-size 2 --decode-context-parallel-size 2", {"latent": True}),
    (18, "--tensor-parallel-size 8 --decode-context-parallel-size 2", {"kv_heads": 8},
     "--tensor-parallel-size 8 --decode-context-parallel-size 2", {"kv_heads": 4}),
    (19, "--data-parallel-size 2 --data-parallel-size-local 4", {},
     "--data-parallel-size 4 --data-parallel-size-local 4", {}),
    (19, "--data-parallel-external-lb", {}, "--data-parallel-external-lb", {"experts": 8}),
    (20, "--data-parallel-hybrid-lb", {}, "--data-parallel-hybrid-lb --data-parallel-size-local 1", {}),
    (20, "--data-parallel-hybrid-lb --data-parallel-size-local 1 --data-parallel-external-lb", {"experts": 8},
     "--data-parallel-external-lb", {"experts": 8}),
    (21, "--max-num-batched-tokens 128 --max-num-seqs 256", {}, "--max-num-batched-tokens 256 --max-num-seqs 256", {}),
    (21, "--max-num-batched-tokens 8k --max-model-len 10k --no-enable-chunked-prefill", {},
     "--max-num-batched-tokens 8k --max-model-len 10k --enable-chunked-prefill", {}),
    (22, """--kv-transfer-config '{"kv_connector": "NixlConnector"}'""", {},
     """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'""", {}),
    (22, """--pipeline-parallel-size 2 """
     """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'""",
     {}, """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'""", {}),
    (23, "--tp_size 8", {"config": {"moe_tensor_parallel_size": 2, "moe_expert_parallel_size": 2}},
     "--tp_size 8", {"config": {"moe_tensor_parallel_size": 2, "moe_expert_parallel_size": 4}}),
    (23, "--tp_size 4 --cp_size 2 --ep_size 4", {}, "--tp_size 4 --cp_size 2 --ep_size 4",
     {"config": {"cp_config": {"cp_type": "HELIX"}}}),
    (24, "", {"config": {"kv_cache_config": {"free_gpu_memory_fraction": 1.2}}},
     "", {"config": {"kv_cache_config": {"free_gpu_memory_fraction": 1.0}}}),
    (24, "", {"config": {"context_servers": URLS | {"num_instances": 3}}}, "", {"config": {"context_servers": URLS}}),
    (24, "--tp_size 8 --pp_size 2 --ntasks 8", {}, "--tp_size 8 --pp_size 2 --ntasks 16", {}),
    (25, "", {"config": {"decode": {"containers": [{"modelCommand": "sglangServe"}]}}},
     "", {"config": {"decode": {"containers": [{"modelCommand": "vllmServe"}]}}}),
    (26, "--max-model-len 9k", {"positions": 8192}, "--max-model-len 8k", {"positions": 8192}),
]  # fmt: skip
"""Number of the rule, what breaks it, and a neighbour that does not."""
ENGINE = {rule.number: rule.engine for rule in REFUSALS}


@pytest.mark.parametrize(("number", "bad", "of_bad", "good", "of_good"), CASES)
def test_an_engine_refuses_by_its_rule_and_not_the_neighbour(
    number: int, bad: str, of_bad: dict[str, Any], good: str, of_good: dict[str, Any]
) -> None:
    engine = ENGINE[number]
    assert [rule.number for rule in refused(asked(engine, bad, **of_bad))] == [number]
    assert refused(asked(engine, good, **of_good)) == []


def test_every_refusal_is_tried_and_names_its_source() -> None:
    assert [rule.number for rule in REFUSALS] == list(range(1, 27)) == sorted({number for number, *_ in CASES})
    assert all("/" in rule.source and rule.message for rule in REFUSALS)


def scenario(text: str = PLAIN, **parts: Any) -> Scenario:
    document = yaml.safe_load(text) | parts
    return build_scenario(parse_yaml(yaml.safe_dump(document), "s.yaml"))


def command(found: Launch, at: int = 0) -> str:
    return str(found.commands[at]["command"])


WIDE: dict[str, Any] = {"model": "deepseek-v3", "plan": {"dp": 16, "ep": {"degree": 16, "scope": "global"}}}
WIDE["precision"] = {}
TWO_BATCH = {"dp": 16, "ep": {"degree": 16, "scope": "global", "overlap": "two_batch"}}


@pytest.mark.parametrize(
    ("target", "parts", "message"),
    [
        ("vllm", {"plan": {"sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "dp"}}}, "sequence"),
        (
            "vllm",
            {"serving": {"max_batch_requests": 256, "max_batch_tokens": 100}},
            "scheduler.py:332); raise serving.max_batch_tokens",
        ),
        ("vllm", {"serving": {"scheduler": "continuous"}}, "max_model_len without chunked prefill"),
        ("vllm", {"model": "mixtral-8x7b", "plan": {"tp": 4, "ep": 2}}, "over all 4 ranks of TP"),
        ("vllm", {"plan": {"pp": 2, "stages": {"cuts": ["12.ffn"]}}}, "between layers"),
        ("sglang", {"plan": {"pp": 33}, "topology": {"name": "dgx-h100", "nodes": 5}}, "take plan.pp=32 or fewer"),
        ("trtllm", {"plan": {"pp": 33}, "topology": {"name": "dgx-h100", "nodes": 5}}, "take plan.pp=32 or fewer"),
        ("vllm", {"precision": {"weights": "int4"}}, "from a checkpoint that has them"),
        ("vllm", {"precision": {"kv_cache": "int8"}}, "keeps K/V in bf16, fp16, fp8"),
        ("vllm", {"serving": {"engine": "vllm-0.3-eager", "scheduler": "chunked_prefill"}}, "computes prompts whole"),
        ("vllm", {"serving": {"engine": "vllm-0.3-eager", "prefix_caching": True}}, "caches no prefixes"),
        ("vllm", {"serving": {"engine": "vllm-0.3"}, "plan": {"pp": 2}}, "vLLM 0.3 has no pipeline parallelism"),
        ("vllm", {"serving": {"engine": "vllm-0.6"}, "model": "mixtral-8x7b", "plan": {"tp": 4, "ep": 4}}, "plan.ep=1"),
        ("vllm", {"serving": {"engine": "vllm-0.9"}, "plan": {"tp": 8, "pp": 2}}, "--nnodes from 0.12.0 on; before"),
        (
            "vllm",
            {"serving": {"engine": "vllm-0.9", "kv_block_tokens": 256}},
            "0.9 takes --block-size 1, 8, 16, 32, 64",
        ),
        ("vllm", {"serving": {"engine": "vllm-0.5"}, "plan": {"pp": 3}}, "has no VLLM_PP_LAYER_PARTITION"),
        ("sglang", {"serving": {"engine": "sglang-0.4.1"}}, "SGLang 0.4.1 has no --page-size; it is there from 0.4.6"),
        ("trtllm", {"serving": {"engine": "trtllm-0.9"}}, "0.9 does not know the rotary scaling of llama-3.1-8b"),
        ("trtllm", {"serving": {"engine": "trtllm-0.14"}, "model": "qwen3-8b"}, "no converter of TensorRT-LLM 0.14"),
        ("trtllm", {"serving": {"engine": "trtllm-0.14"}, "plan": {"tp": 8, "pp": 2}}, "several nodes"),
        (
            "trtllm",
            {"serving": {"engine": "trtllm-0.14"}, "precision": {"kv_cache": "fp8"}},
            "precision.weights=fp8 too",
        ),
        ("k8s", {"serving": {"engine": "trtllm-0.14"}}, "no manifest has; take --for trtllm"),
        ("k8s", {"serving": {"engine": "vllm-0.9"}, "plan": {"tp": 8, "pp": 2}}, "--nnodes from 0.12.0 on; before"),
        ("sglang", {"serving": {"max_batch_tokens": 1000}}, "validation_hook.py:244"),
        ("vllm", {**WIDE, "plan": TWO_BATCH}, "take plan.ep.exchange=deepep_normal or deepep_low_latency"),
        ("sglang", {**WIDE, "plan": TWO_BATCH}, "take plan.ep.exchange=deepep_normal, over all ranks"),
        ("trtllm", {"precision": {"weights": "fp8"}}, "--model"),
        ("llm-d", {"plan": {"tp": 2, "pp": 2}}, "no key for stages"),
        ("k8s", {"plan": {"tp": 8, "pp": 2}, "serving": {"engine": "trtllm-1.0"}}, "under MPI"),
    ],
)
def test_a_plan_that_an_engine_cannot_run_is_refused(target: str, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalPlanError, match="does not start this scenario") as caught:
        launch_of(scenario(**parts), target)
    assert message in str(caught.value)


def test_a_refusal_names_the_pool_and_the_values() -> None:
    tokens = {"prefill": {"max_batch_tokens": 128}, "decode": {"max_batch_tokens": 512}}
    serving = {"scheduler": "disaggregated", "max_batch_requests": 256, **tokens}
    pools = scenario(plan={"prefill": {"tp": 1}, "decode": {"tp": 1}}, serving=serving)
    with pytest.raises(IllegalPlanError) as caught:
        launch_of(pools, "vllm")
    (line,) = str(caught.value).splitlines()[1:]
    assert line.startswith("  prefill: max_num_batched_tokens must be")
    assert ": max_num_batched_tokens 128, max_num_seqs 256, max_model_len 131072 (" in line


def test_the_head_counts_devices_and_names_pools_where_there_are_some() -> None:
    assert launch_text(scenario(), launch_of(scenario(), "vllm")).startswith("# plain: vLLM on dgx-h100, 1 device.\n")


@pytest.mark.parametrize(("more", "told"), [((), True), (("--bench", "vllm bench serve --num-prompts 4"), False)])
def test_a_workload_that_is_not_carried_is_told_on_standard_error(more: tuple[str, ...], told: bool) -> None:
    done = CliRunner().invoke(main, ["from-vllm", "vllm serve meta-llama/Llama-3.1-8B", *more])
    assert done.exit_code == 0, done.output
    assert ("note: The workload is assumed" in done.stderr) == told
    assert "note:" not in done.stdout


def test_what_was_simulated_as_another_engine_says_so_before_all_else() -> None:
    other = scenario(serving={"engine": "vllm-0.19"})
    found = launch_of(other, "trtllm")
    words = "those of vllm-0.19, and TensorRT-LLM is started; for its own: --set serving.engine=trtllm-1.0."
    assert launch_text(other, found).splitlines()[0].startswith("# SIMULATED AS ANOTHER ENGINE: ")
    assert launch_text(other, found).splitlines()[0].endswith(words)
    assert launch_json(found)["simulated_as"] == "vllm-0.19"
    assert "serving.engine" not in {one.path for one in found.unsaid}
    own = scenario(serving={"engine": "trtllm-1.0"})
    assert "SIMULATED AS" not in launch_text(own, launch_of(own, "trtllm"))
    told = CliRunner().invoke(main, ["launch", "quickstart", "--for", "sglang"]).stderr.splitlines()
    assert told[0].startswith("simulated as another engine: figures of this scenario are those of vllm-0.19, and SG")


def test_an_option_that_is_added_is_held_to_the_rules() -> None:
    assert "--async-scheduling" in command(launch_of(scenario(), "vllm", add=["--async-scheduling"]))
    with pytest.raises(IllegalPlanError, match="speculative_hook"):
        launch_of(scenario(), "sglang", add=["--speculative-eagle-topk 4"])
    for target, added, said in (
        ("vllm", "-tp 4", "'--tensor-parallel-size 4' is said already: '--tensor-parallel-size 1', by the scenario"),
        ("vllm", "--no-enable-chunked-prefill", "-prefill' is said already: '--enable-chunked-prefill', by"),
        ("vllm", "-cc.max_cudagraph_capture_size=9", "is said already: '--max-cudagraph-capture-size 512', by"),
        (
            "vllm",
            """-cc '{"cudagraph_capture_sizes": [1]}'""",
            "is said already: '--max-cudagraph-capture-size 512', by",
        ),
        ("vllm", "--enforce_eager", "'--enforce-eager' is said already: '--max-cudagraph-capture-size 512', by"),
        (
            "vllm",
            "-dp=3",
            "'--data-parallel-size 3' is what plan.dp of the scenario says; change that (--set plan.dp=…)",
        ),
        ("vllm", "--kv-cache-memory-bytes 5", "is what serving.kv_blocks of the scenario says"),
        (
            "vllm",
            "-O3",
            "'--optimization-level 3' is what serving.engine.graph_max_tokens of the scenario says; change that",
        ),
        ("vllm", "--model x", "'--model x' is what --model says; change that"),
        ("vllm", "-cc.a=1 -cc.b=2 -cc.a=3", "-cc.a=3: --compilation-config.a is said twice"),
        ("sglang", "--tensor-parallel-size=2", "'--tp-size 2' is said already: '--tp-size 1', by the scenario"),
        ("sglang", "--ep 2", "'--ep-size 2' is what plan.ep.degree of the scenario says"),
        ("sglang", "--disable-cuda-graph", "is said already: '--cuda-graph-max-bs-decode 512', by"),
        ("sglang", "--schedule-policy lpm", "is what serving.order.by of the scenario says"),
        ("trtllm", "--tp_size 4", "'--tp_size 4' is said already: 'tensor_parallel_size: 1', by the scenario"),
        ("trtllm", "--tp-size=4", "'--tp-size 4' is said already: 'tensor_parallel_size: 1', by the scenario"),
        ("trtllm", "--free_gpu_memory_fraction .5", "is said already: 'kv_cache_config.free_gpu_memory_fraction: "),
        ("trtllm", "--kv_cache_free_gpu_memory_fraction=.5", "'kv_cache_config.free_gpu_memory_fraction: "),
        ("trtllm", "--config x.yaml", "is said already: '--extra_llm_api_options server.yaml', by the scenario"),
        ("trtllm", "--ep_size 2", "'--ep_size 2' is what plan.ep.degree of the scenario says"),
        ("trtllm", "--no_enable_chunked_prefill", "is said already: 'enable_chunked_prefill: True', by"),
        ("trtllm", "--seed 1 --seed 2", "--seed is said twice"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            launch_of(scenario(), target, add=[added])
    parts = launch_of(scenario(), "vllm", add=["-cc.mode=1 -cc.pass_config.x=true", "--no-async-scheduling"])
    written = "--compilation-config.mode 1 --compilation-config.pass_config.x true --no-async-scheduling"
    assert written in " ".join(command(parts).replace("\\\n", "").split())
    with pytest.raises(InputError, match="no option '--no-such'"):
        launch_of(scenario(), "vllm", add=["--no-such"])
    with pytest.raises(InputError, match="did you mean '--dp-size'"):
        launch_of(scenario(), "sglang", add=["--dp-sise 2"])
    with pytest.raises(InputError, match=r"--attn-cp-size: expected a number, but found .many."):
        launch_of(scenario(), "sglang", add=["--attn-cp-size many"])


def test_a_checkpoint_that_has_the_format_is_taken() -> None:
    name = "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16"
    found = launch_of(scenario(precision={"weights": "int4"}), "vllm", model=name)
    back = build_scenario(parse_yaml(scenario_from_command(launch_text(scenario(), found)).text, "back"))
    assert back.precision.weights == "int4"


def test_every_model_that_ships_has_a_name_on_the_hub_that_reads_back() -> None:
    assert sorted(ON_THE_HUB) == sorted(catalog.names("scenarios/models"))
    for own, name in ON_THE_HUB.items():
        known = shipped_model(name)
        assert known is not None
        assert (known.name, dict(known.changes), known.weights) == (own, {}, None)


@pytest.mark.parametrize("grammar", [vllm.GRAMMAR, sglang.GRAMMAR])
def test_keys_and_options_are_one_to_one_and_read(grammar: Grammar) -> None:
    assert len(set(grammar.keys.values())) == len(grammar.keys)
    for key, name in grammar.keys.items():
        assert name.isupper() if key == "plan.stages" else grammar.flags[name].fate == "read"
    engine = next(name for name, one in GRAMMARS.items() if one is grammar)
    read = {name for name, flag in grammar.flags.items() if flag.fate == "read"}
    assert {MEANS[engine].get(name, name) for name in read} <= OPTIONS[engine].keys()  # so that `launch` tells a key


def test_nodes_of_one_server_are_read_as_one() -> None:
    whole = scenario(plan={"tp": 8, "pp": 2})
    found = launch_of(whole, "vllm")
    assert [one["node"] for one in found.commands] == [0, 1]
    assert command(found, 1).endswith("--node-rank 1 --headless")
    back = build_scenario(parse_yaml(scenario_from_command(launch_text(whole, found)).text, "back"))
    assert (back.plan.tp, back.plan.pp, back.plan.placement) == (8, 2, None)


def test_layers_of_stages_are_read_back() -> None:
    text = launch_text(whole := scenario(plan={"pp": 3}), launch_of(whole, "vllm"))
    assert "VLLM_PP_LAYER_PARTITION=11,11,10 vllm serve" in text
    back = build_scenario(parse_yaml(scenario_from_command(text).text, "back"))
    assert [cut.layer for cut in back.plan.stages or ()] == [11, 22]
    with pytest.raises(InputError, match="vLLM refuses it: expected 3 stages with 32 layers"):
        scenario_from_command(text.replace("11,11,10", "11,11,11"))
    with pytest.raises(InputError, match="expected how many layers each stage has"):
        scenario_from_command(text.replace("11,11,10", "eleven"))


def test_what_options_cannot_say_is_listed() -> None:
    serving = {"queue_limit": 9, "order": "shortest_prompt", "engine": "vllm-0.9", "router": "power_of_two"}
    found = launch_of(scenario(serving=serving, plan={"dp": 2}, collectives={"all_reduce": "ring"}), "vllm")
    assert [one.path for one in found.unsaid] == [
        "serving.router", "serving.order.by", "serving.queue_limit", "collectives",
    ]  # fmt: skip
    assert "--max-cudagraph-capture-size" not in command(found)  # vLLM 0.9 has no such option …
    fewer = launch_of(scenario(serving={"engine": {"name": "vllm-0.9", "graph_max_tokens": 64}}), "vllm")
    assert [one.path for one in fewer.unsaid] == ["serving.engine.graph_max_tokens"]  # … and 512 of itself
    text = launch_text(scenario(), found)
    assert "# NOT SAID serving.order.by: shortest_prompt; vLLM takes requests up as they arrive" in text
    drawn = yaml.safe_load(PLAIN)["workload"] | {"prompt_tokens": {"lognormal": {"mean": 9, "cv": 1, "max": 99}}}
    text = launch_text(scenario(), launch_of(scenario(workload=drawn), "vllm"))
    assert "# NOT SAID workload.prompt_tokens: {lognormal: {mean: 9, cv: 1, min: 1, max: 99}}; vllm bench" in text


def test_a_router_of_ones_own_is_none_of_the_engines() -> None:
    for target in ("vllm", "sglang", "trtllm"):
        unsaid = [one.path for one in launch_of(load("own-scheduler", allow_code=False), target).unsaid]
        assert "serving.router" in unsaid


@pytest.mark.parametrize(
    ("target", "option"), [("vllm", "--max-model-len"), ("sglang", "--context-length"), ("trtllm", "max_seq_len:")]
)
def test_the_context_window_is_the_longest_sequence(target: str, option: str) -> None:
    for window in (4096, "unlimited"):
        whole = scenario(serving={"context_window": window})
        found = launch_of(whole, target)
        assert f"{option} {4096 if window == 4096 else 131072}" in launch_text(whole, found)
        assert ("serving.context_window" in [one.path for one in found.unsaid]) is (window == "unlimited")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("sglang", "--tp-size 16 --attn-dp-size 16 --ep-size 16"),
        ("vllm", "--enable-expert-parallel --data-parallel-size 16 --data-parallel-size-local 8"),
        ("trtllm", "srun -N2 --ntasks 16 --mpi=pmix trtllm-llmapi-launch trtllm-serve deepseek-ai/DeepSeek-V3"),
    ],
)
def test_experts_over_all_replicas_are_one_server(target: str, words: str) -> None:
    found = launch_of(scenario(**WIDE), target)
    whole = command(found).split()
    assert all(word in whole for word in words.split())
    assert found.servers[0].copies == 1


@pytest.mark.parametrize(
    ("target", "exchange", "words", "unsaid"),
    [
        ("vllm", None, "", False),
        ("vllm", "all_gather", "", False),
        ("vllm", "deepep_normal", "--all2all-backend deepep_high_throughput", False),
        ("vllm", "deepep_low_latency", "--all2all-backend deepep_low_latency", False),
        ("vllm", "all_to_all", "", True),
        ("sglang", "all_gather", "", False),
        ("sglang", "all_to_all", "--moe-a2a-backend deepep", False),
        ("sglang", "deepep_normal", "--moe-a2a-backend deepep --deepep-mode normal", False),
        ("trtllm", "all_to_all", "", False),  # more EP ranks than a token has experts
        ("trtllm", "all_gather", "", True),
    ],
)
def test_how_tokens_get_to_experts_is_said_or_listed(
    target: str, exchange: str | None, words: str, unsaid: bool
) -> None:
    plan = {"dp": 16, "ep": {"degree": 16, "scope": "global", "exchange": exchange}}
    found = launch_of(scenario(**{**WIDE, "plan": plan}), target)
    whole = command(found).split()
    assert all(word in whole for word in words.split())
    assert words or not {"--all2all-backend", "--moe-a2a-backend"} & set(whole)
    assert ("plan.ep.exchange" in [one.path for one in found.unsaid]) is unsaid


POOLS = {
    "plan": {"prefill": {"tp": 8}, "decode": {"tp": 4, "dp": 2}},
    "serving": {"scheduler": "disaggregated", "prefill": {"max_batch_tokens": 4096}, "engine": "vllm-0.19"},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("engine", ["vllm-0.19", "sglang-0.5", "trtllm-1.0"])
def test_two_pools_are_written_for_everything(target: str, engine: str) -> None:
    chunked = {"prefill": {"scheduler": "chunked_prefill"}, "decode": {"scheduler": "chunked_prefill"}}
    whole = scenario(**POOLS | {"serving": POOLS["serving"] | {"engine": engine} | chunked})
    found = launch_of(whole, target, image="images/mine:1")
    assert json.loads(json.dumps(launch_json(found)))["for"] == target
    text = launch_text(whole, found)
    if target in ("vllm", "sglang", "trtllm"):
        assert {one["name"] for one in found.commands} == {"prefill", "decode"}
        assert "--port 8192" in " ".join(found.router) or found.files["pools.yaml"]["port"] == 8192
        assert ("--port", "8192") in found.benchmark  # of itself it would ask port 8000, the prefill server
        shares = [one.partition(":")[0] for one in found.notes if " holds the " in one]
        assert shares == ([] if engine.startswith(target) else ["prefill", "decode"])
        return
    documents = list(yaml.safe_load_all(text))
    assert documents == list(found.manifest)
    if target == "llm-d":
        (values,) = documents
        assert values["prefill"]["parallelism"] == {"tensor": 8, "data": 1, "dataLocal": 1, "workers": 1}
        assert [values[pool]["containers"][0]["modelCommand"] for pool in ("prefill", "decode")] == ["vllmServe"] * 2
        return
    pods = [pod for document in documents for pod in containers(document)]
    devices = [pod["resources"]["limits"]["nvidia.com/gpu"] for pod in pods if "resources" in pod]
    assert devices in (["8", "8"], ["8", "4"])
    assert {pod["image"] for pod in pods} == {"images/mine:1"}
    shared = [mount["mountPath"] for pod in pods for mount in pod.get("volumeMounts", []) if mount["name"] == "shm"]
    assert shared == ["/dev/shm"] * (2 if target == "k8s" else 0)  # Dynamo's operator adds its own


def containers(document: Any) -> list[dict[str, Any]]:
    """Return all containers of a manifest, wherever they are."""
    if isinstance(document, dict):
        own = document.get("containers", [])
        return [*own, *(one for value in document.values() for one in containers(value) if one not in own)]
    return [one for item in document for one in containers(item)] if isinstance(document, list) else []


def test_pools_of_vllm_read_back_but_for_the_hand_over() -> None:
    found = launch_of(scenario(**POOLS), "vllm")
    for at, (tp, budget) in enumerate(((8, 4096), (4, 8192))):
        words = shlex.split(command(found, at))
        begin = words.index("--kv-transfer-config")
        alone = shlex.join(word for word in words[:begin] + words[begin + 2 :] if not word.startswith("VLLM_NIXL"))
        back = build_scenario(parse_yaml(scenario_from_command(alone).text, "back"))
        assert (back.plan.tp, back.serving.max_batch_tokens) == (tp, budget)


@pytest.mark.parametrize(
    ("prefill", "decode", "targets", "told"),
    [
        ({"tp": 2}, {"tp": 4}, "vllm sglang trtllm", {"prefill 0": "0,1", "decode 0": "2,3,4,5"}),
        ({"tp": 8}, {"tp": 4}, "vllm sglang trtllm", {"prefill 0": "", "decode 1": ""}),
        (
            {"tp": 4, "pp": 2, "placement": [f"n{node}.g{at}" for node in (0, 1) for at in range(4)]},
            {"tp": 4, "placement": [f"n1.g{at}" for at in range(4, 8)]},
            "vllm sglang",
            {"prefill 0": "0,1,2,3", "prefill 1": "0,1,2,3", "decode 1": "4,5,6,7"},
        ),
        ({"tp": 2, "pp": 3, "dp": 2}, {"tp": 4}, "vllm sglang trtllm", None),  # a replica over two nodes
        ({"tp": 2, "pp": 5}, {"tp": 4}, "vllm sglang", None),  # 8 ranks and 2
    ],
)
def test_pools_that_share_a_node_take_devices_of_their_own_or_are_refused(
    prefill: dict[str, Any], decode: dict[str, Any], targets: str, told: dict[str, str] | None
) -> None:
    whole = scenario(**POOLS | {"plan": {"prefill": prefill, "decode": decode}})
    for target in targets.split():
        if told is None:
            with pytest.raises(IllegalPlanError, match="takes as many devices of each node"):
                launch_of(whole, target)
            continue
        found = launch_of(whole, target)
        shown = {
            f"{one['name']} {one['node']}": "".join(re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", one["command"]))
            for one in found.commands
        }
        assert shown == told
        assert "\n# decode, on node" in launch_text(whole, found)
        assert not [one.path for one in found.unsaid if "placement" in one.path]
        hosts = re.findall(r'SIDE_CHANNEL_HOST="(.*?)"', launch_text(whole, found))  # of K/V: of each node its own
        assert len(set(hosts)) == len(hosts) == (len(told) if target == "vllm" else 0)
        ports = {port for one in found.commands for port in re.findall(r"SIDE_CHANNEL_PORT=(\d+)", one["command"])}
        assert len(ports) == (2 if target == "vllm" else 0)


def test_a_group_of_nodes_counts_ranks_from_the_leader() -> None:
    found = launch_of(scenario(plan={"tp": 8, "pp": 2}), "k8s")
    template = found.manifest[0]["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    leader, worker = (containers(template[kind])[0]["command"] for kind in ("leaderTemplate", "workerTemplate"))
    assert worker[:-1] == leader
    assert worker[-2:] == ["$(LWS_WORKER_INDEX)", "--headless"]
    template = launch_of(scenario(**WIDE), "k8s").manifest[0]["spec"]["leaderWorkerTemplate"]
    command = containers(template["workerTemplate"])[0]["command"]
    assert command[:2] == ["sh", "-c"]
    assert command[2].endswith("--headless --data-parallel-start-rank $((LWS_WORKER_INDEX * 8))")


def test_options_of_the_benchmark_are_options_of_vllm() -> None:
    found = launch_of(scenario(targets={"ttft": "200 ms", "e2e": "3 s"}), "sglang")
    assert {group[0] for group in found.benchmark if group[0].startswith("--")} <= set(bench_flags.FLAGS)
    assert ("--goodput", "ttft:200", "e2el:3000") in found.benchmark


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_the_command_writes_prints_and_refuses(tmp_path: Path) -> None:
    out = tmp_path / "start.sh"
    written = invoke("launch", "quickstart", "--for", "vllm", "--out", str(out))
    assert (written.exit_code, written.stdout) == (0, f"wrote {out}\n")
    assert "not said: workload.trace: {path: scenarios/traces/azure-conv-sample.csv, requests: …; v" in written.stderr
    balanced = invoke("launch", "quickstart", "--for", "vllm", "--set", "plan={tp: 4, dp: 2}").stderr
    told = "serving.router: round_robin; vLLM sends a request to the replica with the smallest 4 × waiting + running; "
    assert f"not said: {told}--set serving.router=fewest_waiting simulates that\n" in balanced
    assert invoke("launch", "quickstart", "--for", "vllm").stdout == out.read_text(encoding="utf-8")
    printed = json.loads(invoke("launch", "quickstart", "--for", "vllm", "--json").stdout)
    assert [one["path"] for one in printed["unsaid"]] == ["workload.trace"]  # targets ask nothing of a server
    assert invoke("launch", "illegal-five-ways", "--for", "vllm").exit_code == 1
    refusal = invoke("launch", "quickstart", "--for", "vllm", "--set", "serving.scheduler=continuous")
    assert (refusal.exit_code, refusal.stdout) == (1, "")
    assert "scheduler.py:332" in refusal.stderr
    assert invoke("launch", "quickstart", "--for", "vlm").exit_code == 2
    assert invoke("launch", "no-such", "--for", "vllm").exit_code == 2


@pytest.mark.parametrize("target", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("engine", ["vllm-0.19", "sglang-0.5", "trtllm-1.0"])
def test_the_share_of_memory_holds_the_pool_that_was_simulated(target: str, engine: str) -> None:
    serving = {"engine": engine, "scheduler": "chunked_prefill", "max_batch_requests": 128, "kv_block_tokens": 16}
    whole = scenario(serving=serving | {"max_batch_tokens": 4096, "memory_utilization": 0.8})
    found = launch_of(whole, target)
    option = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}.get(target)
    (server,) = found.servers
    config = server.config.get("kv_cache_config", {})
    share = float(config["free_gpu_memory_fraction"] if option is None else str(server.options[option]))
    other = {"vllm": "vllm-0.19", "sglang": "sglang-0.5", "trtllm": "trtllm-1.0"}[target]
    started = scenario(serving=whole.document["serving"] | {"engine": other, "memory_utilization": share})
    blocks = [pool_blocks(one, scenario_memory(one)) for one in (whole, started)]
    assert 0 <= blocks[1] - blocks[0] <= 0.001 * blocks[0]
    assert (
        (share == 0.8) == (target == engine.partition("-")[0]) == (not any("holds the" in one for one in found.notes))
    )
