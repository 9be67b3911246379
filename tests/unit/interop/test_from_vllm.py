"""Scenarios from command lines of vLLM: what becomes of every option, and what is said of those that are left out."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.errors import InputError
from clustersim.interop import flags, sglang_flags
from clustersim.interop.options import whole
from clustersim.interop.translated import scenario_from_command
from clustersim.interop.words import commands
from clustersim.model.hub import ARCHITECTURES, Shipped, shipped_model, why_unknown
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.parts import load_model

SERVE = "vllm serve meta-llama/Llama-3.1-8B"
BENCH = "vllm bench serve"


def document(command: str, bench: str | None = None, **others: str) -> Any:
    return parse_yaml(scenario_from_command(command, bench, **others).text, "text").data


def at(data: Any, path: str) -> Any:
    for part in path.split("."):
        data = data[part] if isinstance(data, dict) and part in data else None
    return data


DEFAULTS: dict[str, Any] = {
    "name": "Llama-3.1-8B",
    "seed": 0,
    "topology": {"name": "dgx-h100", "nodes": 1},
    "model": "llama-3.1-8b",
    "precision": {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16"},
    "plan": {"tp": 1, "pp": 1, "dp": 1},
    "serving": {
        "scheduler": "chunked_prefill",
        "max_batch_requests": 1024,
        "max_batch_tokens": 8192,
        "kv_block_tokens": 16,
        "memory_utilization": 0.9,
        "engine": {"name": "vllm-0.19", "graph_max_tokens": 512},
    },
    "workload": {
        "arrivals": {"process": "all_at_once"},
        "prompt_tokens": 1024,
        "output_tokens": 128,
        "requests": 1000,
    },
}
"""Of vLLM 0.19 for a server on a device of 80 GB; the workload is that of its benchmark."""


def test_a_silent_command_has_the_defaults_of_vllm() -> None:
    assert document(SERVE) == DEFAULTS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--tensor-parallel-size 8", {"plan.tp": 8, "topology.nodes": 1}),
        ("-tp 8 -pp 2 --data-parallel-size=2", {"plan": {"tp": 8, "pp": 2, "dp": 2}, "topology.nodes": 4}),
        ("-tp=4 --tensor_parallel_size 2", {"plan.tp": 2}),  # the last one counts
        ("--tensor-par 2", {"plan.tp": 2}),  # as argparse shortens it
        ("-dp 2", {"serving.router": "fewest_waiting"}),
        ("-dp 2 --data-parallel-external-lb", {"serving.router": "round_robin"}),
        ("-tp 4 --nnodes 2", {"plan.placement": ["n0.g0", "n0.g1", "n1.g0", "n1.g1"], "topology.nodes": 2}),
        ("-tp 8 -pp 2 --nnodes 2", {"plan.placement": None, "topology.nodes": 2}),
        ("--max-num-seqs 64", {"serving.max_batch_requests": 64, "serving.engine.graph_max_tokens": 128}),
        ("--max-num-batched-tokens 2k", {"serving.max_batch_tokens": 2000}),
        ("--max-num-batched-tokens 512", {"serving.max_batch_requests": 512}),  # no more sequences than tokens
        ("--performance-mode throughput", {"serving.max_batch_tokens": 16384, "serving.max_batch_requests": 2048}),
        ("--max-model-len 2K", {"model": {"name": "llama-3.1-8b", "config": {"max_position_embeddings": 2048}}}),
        ("--max-model-len 131072", {"model": {"name": "llama-3.1-8b", "config": {"max_position_embeddings": 131072}}}),
        ("--max-model-len auto", {"model": "llama-3.1-8b"}),
        ("--max-model-len 4 --max-num-seqs 8", {"serving.max_batch_tokens": 32}),  # all that 8 sequences can hold
        ("--no-enable-chunked-prefill", {"serving.scheduler": "continuous", "serving.max_batch_tokens": 131072}),
        ("--block-size 32 --num-gpu-blocks-override 500", {"serving.kv_block_tokens": 32, "serving.kv_blocks": 500}),
        ("--gpu-memory-utilization .85", {"serving.memory_utilization": 0.85}),
        ("--dtype half", {"precision": {"weights": "fp16", "activations": "fp16", "kv_cache": "fp16"}}),
        ("--kv-cache-dtype fp8_e4m3", {"precision.kv_cache": "fp8", "precision.weights": "bf16"}),
        ("--quantization fp8", {"precision.weights": "fp8", "precision.activations": "bf16"}),
        ("-q awq_marlin", {"precision.weights": "int4"}),
        ("--long-prefill-token-threshold 256", {"serving.long_prompt_tokens": 256}),
        ("--long-prefill-token-threshold 0", {"serving.long_prompt_tokens": None}),
        ("--scheduling-policy priority", {"serving.order": {"by": "priority", "patience": "unlimited"}}),
        ("--enforce-eager", {"serving.engine.graph_max_tokens": 0}),
        ("-O0", {"serving.engine.graph_max_tokens": 0}),
        ("-O 3 --max-cudagraph-capture-size 64", {"serving.engine.graph_max_tokens": 64}),
        ("--cudagraph-capture-sizes 1 2 128 --port 1", {"serving.engine.graph_max_tokens": 128}),
    ],
)
def test_an_option_becomes_a_value(options: str, expected: dict[str, Any]) -> None:
    found = document(f"{SERVE} {options}")
    assert {path: at(found, path) for path in expected} == expected


@pytest.mark.parametrize(
    ("topology", "requests", "tokens"),
    [
        ("dgx-h200", 1024, 8192),
        ("dgx-a100", 256, 2048),  # vLLM takes less for every A100
        ("l40s-node", 256, 2048),
        ("tpu-v6e", 256, 1024),
    ],
)
def test_the_budgets_of_vllm_depend_on_the_device(topology: str, requests: int, tokens: int) -> None:
    serving = document(SERVE, topology=topology)["serving"]
    assert (serving["max_batch_requests"], serving["max_batch_tokens"]) == (requests, tokens)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve Qwen/Qwen3-32B-AWQ", {"model": "qwen3-32b", "precision.weights": "int4"}),
        ("vllm serve RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic -tp 2", {"precision.weights": "fp8"}),
        ("vllm serve deepseek-ai/DeepSeek-R1 -tp 8", {"precision.weights": "fp8", "plan.ep.degree": 1}),
        ("vllm serve openai/gpt-oss-120b", {"precision.weights": "mxfp4", "precision.kv_cache": "bf16"}),
        ("vllm serve facebook/opt-13b", {"precision.weights": "fp16", "precision.activations": "fp16"}),
        (
            "vllm serve mistralai/Mixtral-8x7B-Instruct-v0.1 -tp 4 -ep --expert-placement-strategy round_robin",
            {"plan.ep": {"degree": 4, "placement": "strided"}},
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dp 2 --enable-expert-parallel",
            {"plan.ep": {"degree": 16, "scope": "global", "placement": "contiguous"}},
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-V3 -dp 16 -ep --enable-dbo --dbo-decode-token-threshold 64 "
            "--all2all-backend deepep_low_latency",
            {
                "plan.ep": {
                    "degree": 16,
                    "scope": "global",
                    "placement": "contiguous",
                    "exchange": "deepep_low_latency",
                    "overlap": "two_batch",
                    "overlap_decode_tokens": 64,
                    "overlap_prefill_tokens": 512,
                }
            },
        ),
        ("vllm serve mistralai/Mistral-7B-Instruct-v0.2", {"model.config": {"sliding_window": None}}),
        ("vllm serve mixtral-8x7b -tp 2", {"model": "mixtral-8x7b"}),  # clustersim's own name
    ],
)
def test_a_model_is_known_by_its_name(command: str, expected: dict[str, Any]) -> None:
    found = document(command)
    assert {path: at(found, path) for path in expected} == expected


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve --model meta-llama/Llama-3.1-8B -tp 2",
        "python -m vllm.entrypoints.openai.api_server --model=meta-llama/Llama-3.1-8B -tp 2",
        "/usr/bin/vllm serve \\\n  'meta-llama/Llama-3.1-8B' \\\n  -tp \"2\"  # two",
        "export A=1; cd /x && VLLM_LOGGING_LEVEL=DEBUG nohup vllm serve meta-llama/Llama-3.1-8B -tp 2 > log 2>&1 &",
        "docker run --gpus all -e HF_TOKEN=$T -p 1:1 vllm/vllm-openai:v0.19.0 --model meta-llama/Llama-3.1-8B -tp 2",
        "docker run img/vllm-openai vllm serve meta-llama/Llama-3.1-8B -tp 2",
    ],
)
def test_a_server_may_be_started_in_many_ways(command: str) -> None:
    assert document(command) == DEFAULTS | {"plan": {"tp": 2, "pp": 1, "dp": 1}}


def test_the_tag_of_an_image_chooses_the_engine() -> None:
    asked = "docker run --gpus all vllm/vllm-openai:v0.8.5 --model meta-llama/Llama-3.1-8B -tp 2"
    scenario = build_scenario(parse_yaml(scenario_from_command(asked).text, "text"))
    assert at(document(asked), "serving.engine.name") == "vllm-0.8.5"
    assert at(scenario.document, "serving.engine.name") == "vllm-0.9"
    assert at(document(asked.replace("v0.8.5", "latest")), "serving.engine.name") == "vllm-0.19"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--request-rate 4", {"arrivals": {"process": "poisson", "rate": "4/s", "rescale": True}}),
        (
            "--request-rate 2.5 --burstiness 0.25",
            {"arrivals": {"process": "gamma", "rate": "2.5/s", "rescale": True, "cv": 2.0}},
        ),
        ("--request-rate 4 --burstiness inf", {"arrivals": {"process": "constant", "rate": "4/s"}}),
        ("--request-rate inf", {"arrivals": {"process": "all_at_once"}}),
        ("--max-concurrency 32", {"arrivals": {"process": "closed_loop", "concurrency": 32}}),
        ("--num-prompts 500", {"requests": 500}),
        ("--random-input-len 256 --random-output-len 64", {"prompt_tokens": 256, "output_tokens": 64}),
        (
            "--input-len 256 --random-input-len 1 --random-prefix-len 50",
            {"prompt_tokens": 306, "shared_prefixes": {"groups": 1, "tokens": 50}},
        ),
        (
            "--random-input-len 99 --random-output-len 3 --random-range-ratio 0.5",
            {
                "prompt_tokens": {"uniform": {"low": 49, "high": 149}},
                "output_tokens": {"uniform": {"low": 1, "high": 5}},
            },
        ),
        (
            "--dataset-name prefix_repetition --prefix-repetition-suffix-len 44",
            {"prompt_tokens": 300, "output_tokens": 128, "shared_prefixes": {"groups": 10, "tokens": 256}},
        ),
    ],
)
def test_an_option_of_the_benchmark_becomes_a_value_of_the_workload(options: str, expected: dict[str, Any]) -> None:
    assert document(SERVE, f"{BENCH} {options}")["workload"] == DEFAULTS["workload"] | expected


def test_seed_and_targets_come_from_the_benchmark() -> None:
    found = document(SERVE, f"{BENCH} --seed 9 --goodput ttft:200 tpot:12.5 e2el:3000 --save-result")
    assert found["seed"] == 9
    assert found["targets"] == {"ttft": "200 ms", "tpot": "12.5 ms", "e2e": "3000 ms"}


def test_server_and_benchmark_may_stand_in_one_text() -> None:
    assert document(f"{SERVE} &\nsleep 99\n{BENCH} --num-prompts 7\n")["workload"]["requests"] == 7


@pytest.mark.parametrize(
    ("command", "bench", "place", "message"),
    [
        (f"{SERVE} --tensor-paralel-size 8", None, "command:1:36", "did you mean '--tensor-parallel-size'?"),
        (f"{SERVE} --tensor", None, "command:1:36", "needs a value"),
        (f"{SERVE} --max-num 8", None, "command:1:36", "could be --max-num-batched-tokens, --max-num-partial-prefills"),
        (f"{SERVE} -xy 8", None, "command:1:36", "no option '-xy'"),
        (f"{SERVE} -tp 0", None, "command:1:40", "--tensor-parallel-size: must be at least 1, but found '0'"),
        (f"{SERVE} --max-model-len 1e9", None, "command:1:52", "expected a whole number"),
        (
            f"{SERVE} --max-model-len 131073",
            None,
            "command:1:52",
            "refuses more than the 131,072 positions of the model",
        ),
        (f"{SERVE} --block-size 2000m", None, "command:1:49", "must be at most 1,000,000,000"),
        (f"{SERVE} \\\n  -tp eight", None, "command:2:7", "expected a whole number"),
        (f"{SERVE} --gpu-memory-utilization 90", None, "command:1:61", "up to 1"),
        (f"{SERVE} --enforce-eager=1", None, "command:1:36", "takes no value"),
        (f"{SERVE} -tp $TP", None, "command:1:40", "write its value"),
        (f"{SERVE} other/model", None, "command:1:36", "a second model"),
        (f"{SERVE} 'x", None, "command:1:36", "the quote ' is not closed"),
        ("vllm serve -tp 2", None, "command:1:6", "names no model"),
        ("vllm serve $MODEL", None, "command:1:12", "write the model's name"),
        ("vllm serve x/Llama-3.3-70B-Instruct-GGUF", None, "command:1:12", "the architecture ships as llama-3.3-70b"),
        ("vllm serve meta-llama/Llama-3.1-9B", None, "command:1:12", "the nearest is llama-3.1-8b"),
        ("echo hello", None, "command", "found no `vllm serve`"),
        ("trtllm-serve m --tp_size 2", None, "command", "; commands of TensorRT-LLM can't be read; expected such as"),
        (f"{SERVE}; {SERVE}", None, "command:1:37", "a second `vllm serve`"),
        (f"VLLM_USE_V1=0 {SERVE}", None, "command:1:1", "engine V0 is gone"),
        (f"{SERVE} --speculative-config '{{}}'", None, "command:1:57", "speculative decoding is not simulated"),
        (f"{SERVE} -dcp 2", None, "command:1:41", "--decode-context-parallel-size"),
        (f"{SERVE} --kv-transfer-config '{{}}'", None, "command:1:57", "two pools are read of no command"),
        (f"{SERVE} --enable-lora", None, "command:1:36", "LoRA is not simulated"),
        (f"{SERVE} -ep", None, "command:1:36", "without experts"),
        ("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -dp 2", None, "command:1:46", "add --enable-expert-parallel"),
        (f"{SERVE} -q nothing", None, "command:1:39", "no method 'nothing'"),
        (f"{SERVE} -q compressed-tensors", None, "command:1:39", "only the checkpoint tells"),
        (f"{SERVE} --max-num-seqs 64 --max-num-batched-tokens 32", None, "command:1:79", "below 64 sequences"),
        (f"{SERVE} --max-num-batched-tokens 99 --no-enable-chunked-prefill", None, "command:1:61", "--max-model-len"),
        (f"{SERVE} -tp 5 --nnodes 2", None, "command:1:51", "spread evenly"),
        (SERVE, f"{BENCH} --dataset-name sharegpt", "--bench:1:33", "the lengths of 'sharegpt' are in its files"),
        (SERVE, f"{BENCH} --request-rate 0", "--bench:1:33", "above 0"),
        (SERVE, f"{BENCH} --random-range-ratio 1", "--bench:1:39", "without, 1"),
        (SERVE, f"{BENCH} --goodput itl:5", "--bench:1:28", "expected ttft:, tpot: or e2el:"),
        (SERVE, f"{BENCH} --ramp-up-strategy linear", "--bench:1:37", "a rate that grows"),
        (SERVE, f"{BENCH} what", "--bench:1:18", "belongs to no option"),
        (SERVE, SERVE, "--bench", "found no `vllm bench serve`"),
    ],
)
def test_a_mistake_is_pointed_at(command: str, bench: str | None, place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_from_command(command, bench)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{place}: ")
    assert message in problem.message


def test_mistakes_are_reported_together_and_in_order() -> None:
    with pytest.raises(InputError) as caught:
        scenario_from_command(
            f"{SERVE} --enable-lora --block-size x -tp 0 --max-num-seqs y", f"{BENCH} --num-prompts 0"
        )
    places = [str(problem).split(": ")[0] for problem in caught.value.problems]
    assert places == ["--bench:1:32", "command:1:36", "command:1:63", "command:1:69", "command:1:86"]


@pytest.mark.parametrize("neutral", ["-dcp 1", "--scheduling-policy fcfs", "--cpu-offload-gb 0", "--no-enable-lora"])
def test_an_option_that_asks_for_nothing_is_not_refused(neutral: str) -> None:
    found = scenario_from_command(f"{SERVE} {neutral}")
    assert parse_yaml(found.text, "text").data == DEFAULTS
    assert found.notes == ()


WIDE = "vllm serve deepseek-ai/DeepSeek-V3 -dp 16 -ep"


@pytest.mark.parametrize(
    ("backend", "exchange", "note"),
    [
        ("allgather_reducescatter", "all_gather", ""),
        ("naive", "all_gather", ""),
        ("pplx", "all_to_all", "--all2all-backend pplx is of vLLM 0.9 to 0.12, and later ones have none"),
        ("deepep_high_throughput", "deepep_normal", ""),
        ("deepep_low_latency", "deepep_low_latency", ""),
        ("nixl_ep", "all_to_all", "--all2all-backend nixl_ep is not modelled"),
    ],
)
def test_a_backend_says_how_tokens_get_to_experts(backend: str, exchange: str, note: str) -> None:
    found = scenario_from_command(f"{WIDE} --all2all-backend {backend}")
    assert at(parse_yaml(found.text, "text").data, "plan.ep")["exchange"] == exchange
    assert any(note in text for text in found.notes) if note else not any("all2all" in text for text in found.notes)
    alone = scenario_from_command(f"{WIDE.replace('-dp 16', '-tp 8')} --all2all-backend {backend}")
    assert "exchange" not in at(parse_yaml(alone.text, "text").data, "plan.ep")
    assert any("--all2all-backend has no effect here" in text for text in alone.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--all2all-backend deepep_low", "did you mean 'deepep_low_latency'"),
        ("--enable-dbo", "deepep_high_throughput or deepep_low_latency only; add it"),
        ("--enable-dbo --all2all-backend naive", "deepep_high_throughput or deepep_low_latency only; add it"),
    ],
)
def test_a_backend_that_can_not_be_is_refused(options: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_from_command(f"{WIDE} {options}")
    (problem,) = caught.value.problems
    assert message in problem.message


@pytest.mark.parametrize(
    ("command", "bench", "note"),
    [
        (f"{SERVE} --no-async-scheduling", None, "NOT SIMULATED: --no-async-scheduling: "),
        (f"{SERVE} --compilation-config.mode 3", None, "NOT SIMULATED: --compilation-config: "),
        (f"{SERVE} --no-enable-chunked-prefill", None, "mixes whole prompts with decodes"),
        (f"{SERVE} --block-size 8 --block-size 16", None, "--block-size is given twice"),
        (SERVE, f"{BENCH} --request-rate 4 --max-concurrency 8", "--max-concurrency 8 has no effect"),
    ],
)
def test_an_effect_that_is_left_out_is_noted(command: str, bench: str | None, note: str) -> None:
    found = scenario_from_command(command, bench)
    assert [text for text in found.notes if note in text]
    assert f"# NOTE: {found.notes[0][:30]}" in found.text


@pytest.mark.parametrize(
    ("server", "options", "caching", "shared"),
    [
        (SERVE, "", None, None),  # vLLM would look for prefixes, and the benchmark has none
        (f"{SERVE} --enable-prefix-caching", "", True, None),
        (SERVE, "--random-prefix-len 64", True, {"groups": 1, "tokens": 64}),
        (f"{SERVE} --enable-prefix-caching", "--random-prefix-len 64", True, {"groups": 1, "tokens": 64}),
        (f"{SERVE} --no-enable-prefix-caching", "--random-prefix-len 64", False, None),
        (SERVE, "--dataset-name prefix_repetition", True, {"groups": 10, "tokens": 256}),
        (
            SERVE,
            "--dataset-name prefix_repetition --prefix-repetition-num-prefixes 3 --prefix-repetition-prefix-len 40",
            True,
            {"groups": 3, "tokens": 40},
        ),
    ],
)
def test_prefix_caching_is_that_of_the_server(server: str, options: str, caching: object, shared: object) -> None:
    found = document(server, f"{BENCH} {options}")
    assert found["serving"].get("prefix_caching") is caching
    assert found["workload"].get("shared_prefixes") == shared
    assert scenario_from_command(server, f"{BENCH} {options}").notes == ()


def test_every_value_says_where_it_comes_from_and_secrets_stay_out() -> None:
    text = scenario_from_command(f"HF_TOKEN=hidden1 {SERVE} -tp 2 --api-key hidden2 --port 80").text
    assert "tp: 2  # --tensor-parallel-size\n" in text
    assert "# --max-num-seqs: vLLM's default on h100-sxm-80gb\n" in text
    assert "# Ignored: --api-key, --port (where it listens, and who may ask).\n" in text
    assert "# Ignored: HF_TOKEN (the environment).\n" in text
    assert "hidden" not in text
    values = [line for line in text.splitlines() if not line.startswith("#") and not line.endswith(":")]
    assert [line for line in values if "  # " not in line] == ["name: Llama-3.1-8B"]


def test_a_local_model_is_its_own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 1000, "torch_dtype": "float16",
    }  # fmt: skip
    (tmp_path / "my model").mkdir()
    (tmp_path / "my model" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    for command, options in (("vllm serve './my model/'", {}), ("vllm serve /srv/x", {"model": "my model"})):
        found = document(command, **options)
        assert found["model"] == "./my model/config.json"
        assert found["precision"]["weights"] == "fp16"
        assert found["name"] == ("my-model" if not options else "x")


@pytest.mark.parametrize(("pattern", "architecture", "_"), ARCHITECTURES, ids=str)
def test_every_architecture_that_names_stand_for_ships(pattern: str, architecture: str, _: Any) -> None:
    del pattern
    sizes = "8b 70b 20b 120b 7b 405b 8x7b 8x22b 14b 32b 30b-a3b 235b-a22b 27b 4.5"
    for size in sizes.split():
        try:
            load_model(architecture.replace("\\1", size))
            break
        except InputError:
            continue
    else:
        pytest.fail(architecture)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", Shipped(name="llama-3-8b")),
        ("meta-llama/Llama-3.2-1B", None),
        ("deepseek-ai/DeepSeek-V3-0324", Shipped(name="deepseek-v3")),
        ("deepseek-ai/DeepSeek-V3.2", None),  # its attention is sparse
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", None),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", Shipped(name="llama-3.3-70b", weights="fp4")),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", Shipped(name="qwen3-30b-a3b", weights="int4")),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", Shipped(name="deepseek-v3", weights="fp4")),
        ("unsloth/Qwen3-14B-unsloth-bnb-4bit", Shipped(name="qwen3-14b", weights="int4")),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-BNB-NF4-BF16", Shipped(name="llama-3.1-70b", weights="int4")),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-8bit", Shipped(name="llama-3.1-8b", weights="int8")),
        ("bartowski/Llama-3.3-70B-Instruct-GGUF", None),
        ("RedHatAI/Qwen3-32B-NVFP4A16", None),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", Shipped(name="qwen3-235b-a22b")),
        ("moonshotai/Kimi-K2-Instruct-0905", Shipped(name="kimi-k2")),
        ("mistralai/Mistral-7B-Instruct", None),  # which version?
    ],
)
def test_names_of_the_hub(name: str, expected: Shipped | None) -> None:
    assert shipped_model(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bartowski/Llama-3.3-70B-Instruct-GGUF", "ships as llama-3.3-70b; the format 'gguf' is not known"),
        ("mlx-community/Llama-3.3-70B-Instruct-4bit", "ships as llama-3.3-70b; the format '4bit' is not known"),
        ("RedHatAI/Qwen3-32B-NVFP4A16", "ships as qwen3-32b; the format 'nvfp4a16' is not known"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", None),  # another architecture
        ("someone/Novel-7B-GGUF", None),
        ("./gemma-2-9b.json", None),  # a path
        ("google/gemma-3n-E4B-it", "gemma-3n-e4b-it has embeddings per layer, which are not modelled"),
        ("google/gemma-3-27b-it-GGUF", "ships as gemma-3-27b; the format 'gguf' is not known"),
    ],
)
def test_formats_that_are_not_known_lead_to_the_architecture(name: str, expected: str | None) -> None:
    found = why_unknown(name)
    assert found is None if expected is None else expected in str(found)


@pytest.mark.parametrize(
    ("text", "number"), [("8", 8), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2M", 2097152), ("1m", 1000000)]
)
def test_numbers_are_read_as_vllm_reads_them(text: str, number: int) -> None:
    assert whole(text) == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "1.5K", "-1", "1 2"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        whole(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('a \'b c\' "d\\"e" f\\ g', [["a", "b c", 'd"e', "f g"]]),
        ("a \\\n  b # c\nd", [["a", "b"], ["d"]]),
        ("a>x b 2>&1 <y && c|d;e", [["a", "b"], ["c"], ["d"], ["e"]]),
        ("a '' b#c '#'", [["a", "", "b#c", "#"]]),
        ("", []),
    ],
)
def test_words_are_those_of_a_shell(text: str, words: list[list[str]]) -> None:
    assert [[word.text for word in command] for command in commands(text)] == words


@pytest.mark.parametrize("module", [flags, sglang_flags])
def test_an_option_has_one_fate(module: Any) -> None:
    tables = (module.IGNORED, module.LEFT_OUT, module.REFUSED)
    texts = [module.READ, *(text for table in tables for text in table.values())]
    assert len(" ".join(texts).split()) == len(module.FLAGS)
    assert set(module.ALIASES.values()) <= set(module.FLAGS)
    assert not set(module.ALIASES) & set(module.FLAGS)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--a", {"takes": "switch", "neutral": ("false",)}),
        ("--a~", {"takes": "switch", "neutral": ("true",)}),
        ("--a=", {"takes": "value", "neutral": ()}),
        ("--a=auto|none", {"takes": "value", "neutral": ("auto", "none")}),
        ("--a=#0", {"takes": "value", "neutral": ("0",), "is_number": True}),
        ("--a=*", {"takes": "values", "neutral": ()}),
        ("--a=?", {"takes": "optional", "neutral": ()}),
    ],
)
def test_what_follows_an_option_stands_behind_its_name(word: str, expected: dict[str, Any]) -> None:
    found = flags.table(read="", ignored={}, left_out={"so": word}, refused={})
    assert found == {"--a": flags.Flag(name="--a", fate="left_out", words="so", **expected)}


@pytest.mark.parametrize("name", [name for name, flag in flags.FLAGS.items() if flag.fate == "read"])
def test_no_option_is_read_in_vain(name: str) -> None:
    """An option that is read changes the scenario, or is noted."""
    values = {
        "--model": "", "--hf-config-path": "", "--nnodes": "2", "--dtype": "half", "--kv-cache-dtype": "fp8",
        "--quantization": "fp8", "--performance-mode": "throughput", "--optimization-level": "0",
        "--gpu-memory-utilization": "0.5", "--data-parallel-rank": "0", "--scheduling-policy": "priority",
        "--expert-placement-strategy": "round_robin", "--all2all-backend": "deepep_low_latency",
    }  # fmt: skip
    if not values.get(name, "8"):
        return  # tests of models have these
    base = "vllm serve mixtral-8x7b -tp 4"
    base += " -dp 2 -ep" if name.startswith(("--data-parallel-", "--expert")) and name != "--data-parallel-size" else ""
    base += " -ep" if name == "--data-parallel-size" else ""
    base += " -dp 2 -ep" if name in ("--all2all-backend", "--enable-dbo") or name.startswith("--dbo") else ""
    base += " --all2all-backend deepep_low_latency" if "dbo" in name else ""
    base += " --enable-dbo" if name.startswith("--dbo") else ""
    takes = flags.FLAGS[name].takes
    off = name in ("--enable-chunked-prefill",)
    option = f"--no-{name[2:]}" if off else name if takes == "switch" else f"{name} {values.get(name, '8')}"
    assert said_by(base) != said_by(f"{base} {option}")


@cache
def said_by(command: str) -> tuple[Any, Any]:
    """Return the values and the notes of a scenario from a command."""
    found = scenario_from_command(command)
    return parse_yaml(found.text, "text").data, found.notes


def invoke(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


def test_the_command_prints_a_scenario_that_check_accepts(tmp_path: Path) -> None:
    printed = invoke("from-vllm", "-", stdin=f"{SERVE} \\\n -tp 2 --no-async-scheduling")
    assert printed.exit_code == 0, printed.output
    written = invoke("from-vllm", f"{SERVE} -tp 2 --no-async-scheduling", "--out", str(tmp_path / "s.yaml"))
    assert written.exit_code == 0, written.output
    assert "note: NOT SIMULATED: --no-async-scheduling: " in written.stderr
    assert (tmp_path / "s.yaml").read_text(encoding="utf-8") == printed.stdout
    checked = invoke("check", str(tmp_path / "s.yaml"))
    assert checked.exit_code == 0, checked.output


def test_the_command_shows_the_word_that_is_wrong() -> None:
    result = invoke("from-vllm", f"{SERVE} \\\n  --no-such 1")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[1:] == ["   |   --no-such 1", "   |   ^"]
    illegal = invoke("from-vllm", f"{SERVE} \\\n  -tp 3")
    assert illegal.exit_code == 1  # as of `check`, and it is written all the same: `check --fix` mends it
    assert illegal.stderr.splitlines()[-3:] == [
        "command:2:7: 3: --tensor-parallel-size becomes plan.tp: 3 does not divide 32 attention heads (llama-3.1-8b); "
        "use 1, 2, 4 or 8 [TP-1]", "   |   -tp 3", "   |       ^",
    ]  # fmt: skip
    assert "  tp: 3" in illegal.stdout


def test_what_is_written_is_a_scenario_without_names_to_look_up_in_vain() -> None:
    text = scenario_from_command("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 -pp 2 -ep", topology="dgx-h200").text
    scenario = build_scenario(parse_yaml(text, "text"))
    assert (scenario.plan.tp, scenario.plan.pp, scenario.plan.ep.degree) == (8, 2, 8)
    assert scenario.engine.graph_max_tokens == 512


@pytest.mark.parametrize(
    ("option", "admission"),
    [("", None), ("--scheduler-reserve-full-isl", "whole_prompt"), ("--no-scheduler-reserve-full-isl", "first_chunk")],
)
def test_which_blocks_admit_a_request_is_read(option: str, admission: str | None) -> None:
    found = scenario_from_command(f"{SERVE} {option}")
    assert parse_yaml(found.text, "text").data["serving"].get("admission") == admission
    assert found.notes == ()
