"""Scenarios from command lines of SGLang: what becomes of its options, its defaults, and what it refuses itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.cost.unsaid import Place
from clustersim.errors import InputError
from clustersim.interop.sglang import GRAMMAR, human
from clustersim.interop.translated import scenario_from_command
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.parts import load_engine, load_topology

START = "python -m sglang.launch_server"
SERVE = f"{START} --model-path meta-llama/Llama-3.1-8B"
BENCH = "python -m sglang.bench_serving"
EXPERTS = f"{START} --model-path deepseek-ai/DeepSeek-V3"
AT = len(SERVE) + 2
"""Column of the first option behind the model."""


def document(command: str, bench: str | None = None, **others: str) -> Any:
    return parse_yaml(scenario_from_command(command, bench, **others).text, "text").data


def at(data: Any, path: str) -> Any:
    for part in path.split("."):
        data = data[part] if isinstance(data, dict) and part in data else None
    return data


def test_a_silent_command_means_what_the_profile_does() -> None:
    found = document(SERVE)
    place = Place(device=load_topology("dgx-h100").device, positions=131072)
    said = load_engine("sglang-0.5").decides({}, place)
    assert found["serving"] == {key: said[key] for key in said if key != "prefix_caching"} | {
        "engine": {"name": "sglang-0.5", "graph_max_tokens": 256}
    }
    assert found["plan"] == {"tp": 1, "pp": 1, "dp": 1}
    assert found["precision"] == {"weights": "bf16", "activations": "bf16", "kv_cache": "bf16"}


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m sglang.launch_server --model meta-llama/Llama-3.1-8B --tensor-parallel-size=2",
        "sglang serve meta-llama/Llama-3.1-8B --tp 2",
        "A=1 nohup /usr/bin/python -m sglang.launch_server --model-path 'meta-llama/Llama-3.1-8B' \\\n --tp 2 > log &",
        "docker run --gpus all -e HF_TOKEN=$T lmsysorg/sglang:v0.5.4 python3 -m sglang.launch_server "
        "--model-path meta-llama/Llama-3.1-8B --tp 2 --host 0.0.0.0 --port 30000",
    ],
)
def test_a_server_may_be_started_in_many_ways(command: str) -> None:
    assert document(command) == document(f"{SERVE} --tp-size 2")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--tp 4 --pipeline-parallel-size 2 --dp 2", {"plan": {"tp": 4, "pp": 2, "dp": 2}, "topology.nodes": 2}),
        ("--dp 2", {"serving.router": "round_robin", "serving.max_batch_requests": 2048}),
        ("--dp 2 --load-balance-method total_requests", {"serving.router": "least_outstanding"}),
        ("--tp 4 --nnodes 2", {"plan.placement": ["n0.g0", "n0.g1", "n1.g0", "n1.g1"], "topology.nodes": 2}),
        ("--max-running-requests 64", {"serving.max_batch_requests": 64, "serving.engine.graph_max_tokens": 64}),
        ("--chunked-prefill-size 4096", {"serving.max_batch_tokens": 4096, "serving.scheduler": "continuous"}),
        ("--enable-mixed-chunk", {"serving.max_batch_tokens": 8192, "serving.scheduler": "chunked_prefill"}),
        ("--chunked-prefill-size -1", {"serving.max_batch_tokens": 16384, "serving.scheduler": "continuous"}),
        ("--chunked-prefill-size -1 --enable-mixed-chunk", {"serving.scheduler": "continuous"}),
        ("--max-prefill-tokens 2k", {"serving.max_batch_tokens": 2000}),  # less than a chunk
        ("--max-prefill-tokens 16Ki", {"serving.max_batch_tokens": 8192}),
        ("--page-size 64 --max-total-tokens 1000", {"serving.kv_block_tokens": 64, "serving.kv_blocks": 15}),
        ("--mem-fraction-static .85", {"serving.memory_utilization": 0.85}),
        ("--tp 4", {"serving.memory_utilization": 0.829}),  # SGLang keeps more free for more ranks
        ("--chunked-prefill-size 16384", {"serving.memory_utilization": 0.682}),
        ("--max-queued-requests 9", {"serving.queue_limit": 9}),
        ("--disable-radix-cache", {"serving.prefix_caching": False}),
        ("--enable-priority-scheduling", {"serving.order": {"by": "priority", "patience": "unlimited"}}),
        ("--context-length 2Ki", {"model": {"name": "llama-3.1-8b", "config": {"max_position_embeddings": 2048}}}),
        ("--dtype half", {"precision": {"weights": "fp16", "activations": "fp16", "kv_cache": "fp16"}}),
        (
            "--kv-cache-dtype fp8_e5m2 --quantization w8a8_fp8",
            {"precision.kv_cache": "fp8", "precision.weights": "fp8"},
        ),
        ("--cuda-graph-max-bs-decode 64", {"serving.engine.graph_max_tokens": 64}),
        ("--cuda-graph-bs-decode 1 2 128 --port 1", {"serving.engine.graph_max_tokens": 128}),
        ("--disable-cuda-graph", {"serving.engine.graph_max_tokens": 0}),
        ("--disable-decode-cuda-graph", {"serving.engine.graph_max_tokens": 0}),
        ("--cuda-graph-backend-decode=disabled", {"serving.engine.graph_max_tokens": 0}),
    ],
)
def test_an_option_becomes_a_value(options: str, expected: dict[str, Any]) -> None:
    found = document(f"{SERVE} {options}")
    assert {path: at(found, path) for path in expected} == expected


@pytest.mark.parametrize("spelling", ["--attn-dp-size 8", "--dp-size 8 --enable-dp-attention"])
def test_replicas_of_attention_lie_inside_tp_and_share_chunk_and_requests(spelling: str) -> None:
    found = document(f"{EXPERTS} --tp 16 {spelling} --ep 16 --chunked-prefill-size 8192 --max-running-requests 512")
    assert found["plan"] == {"tp": 2, "pp": 1, "dp": 8, "ep": {"degree": 16, "scope": "global"}}
    assert (found["serving"]["max_batch_tokens"], found["serving"]["max_batch_requests"]) == (1024, 64)
    assert found["serving"]["router"] == "round_robin"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--tp 8", {"degree": 1}),
        ("--tp 8 --ep-size 8", {"degree": 8}),
        ("--tp 8 --dp 2 --ep 4", {"degree": 4}),  # of each replica
        ("--tp 8 --ep 8 --ep-num-redundant-experts 32", {"degree": 8, "redundant": 32}),
        ("--tp 8 --moe-a2a-backend mooncake", {"degree": 8, "exchange": "all_to_all"}),  # over all of TP
        ("--tp 8 --moe-a2a-backend deepep", {"degree": 8, "exchange": "all_to_all"}),
        (  # SGLang settles the degree before it looks whether the kernel has it
            "--tp 8 --ep 4 --moe-a2a-backend deepep --moe-runner-backend flashinfer_cutlass",
            {"degree": 8, "exchange": "all_to_all"},
        ),
        ("--tp 8 --moe-a2a-backend deepep --deepep-mode normal", {"degree": 8, "exchange": "deepep_normal"}),
        (
            "--tp 8 --moe-a2a-backend deepep --deepep-mode low_latency --enable-two-batch-overlap",
            {"degree": 8, "exchange": "deepep_low_latency", "overlap": "two_batch"},
        ),
    ],
)
def test_experts_are_spread_as_sglang_spreads_them(options: str, expected: dict[str, Any]) -> None:
    assert document(f"{EXPERTS} {options}")["plan"]["ep"] == expected


def test_layers_of_stages_are_in_the_environment() -> None:
    found = document(f"SGLANG_PP_LAYER_PARTITION=20,12 {SERVE} --pp-size 2")
    assert found["plan"]["stages"] == {"cuts": [20]}


@pytest.mark.parametrize(
    ("options", "column", "message"),
    [
        ("--tensor-paralel-size 8", 0, "did you mean '--tensor-parallel-size'?"),
        ("--cuda-graph-max-bs 8", 0, "before 0.5.23; --cuda-graph-max-bs-decode took its place"),
        ("--tp_size 8", 0, "no option '--tp_size'; did you mean '--tp-size'?"),
        ("--no-enable-mixed-chunk", 0, "no option '--no-enable-mixed-chunk'"),
        ("--enable-mixed-chunk=1", 0, "takes no value; give --enable-mixed-chunk"),
        ("--tp", 0, "needs a value"),
        ("--tp 2K", 5, "--tp-size: expected a whole number such as 8, but found '2K'"),
        ("--dp 0", 5, "--dp-size: must be at least 1"),
        ("--page-size $P", 12, "write its value"),
        ("--port abc", 7, "--port: expected a number"),
        ("--schedule-policy priority", 18, "expected one of fcfs, lpm"),
        ("--load-balance-method total_tokens", 22, "expected one of round_robin, auto, total_requests"),
        ("--quantization nothing", 15, "no method 'nothing'"),
        ("--kv-cache-dtype fp8", 17, "did you mean 'fp8_e4m3'"),
        ("--chunked-prefill-size 0", 23, "must be at least 1"),
        ("--page-size 64 --max-total-tokens 8", 34, "8 tokens are less than a page of 64"),
        ("--chunked-prefill-size 131072", 23, "no memory for weights on h100-sxm-80gb; give --mem-"),
        ("--speculative-algorithm EAGLE", 24, "speculative decoding is not simulated"),
        ("--disaggregation-mode prefill", 22, "write a scenario of two pools"),
        ("--enable-lora", 0, "LoRA is not simulated"),
        ("--attn-cp-size 2 --tp 2", 15, "see plan.sp for its own"),
        ("--attn-dp-size 2 --tp 2", 15, "SGLang splits the FFN over the ranks of all replicas"),
        # SGLang's own rules
        ("--page-size 64 --chunked-prefill-size 1000", 12, "chunked_prefill_size must be divisible by page_size"),
        ("--page-size 3", 12, "chunked_prefill_size must be divisible by page_size"),
        ("--context-length 200k", 17, "--context-length is longer than the model's"),
        ("--tp 2 --dp 2 --nnodes 2", 23, "multi-node data-parallel replicas are not supported"),
    ],
)  # fmt: skip
def test_a_mistake_is_pointed_at(options: str, column: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_from_command(f"{SERVE} {options}")
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"command:1:{AT + column}: ")
    assert message in problem.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tp 6 --attn-dp-size 4 --ep 6", "--tp-size must be divisible by --attn-dp-size"),
        ("--tp 8 --attn-dp-size 8 --dp 2 --ep 8", "combined with attention data parallelism are not supported"),
        ("--tp 8 --ep 4 --moe-runner-backend flashinfer_cutlass", "must be 1 or the same as the tensor parallel size"),
        ("--tp 8 --attn-dp-size 8", "splits each expert over the ranks of all replicas, which is not simulated; add"),
        ("--tp 8 --pp-size 2 --moe-a2a-backend deepep --enable-two-batch-overlap", "at --pp-size 1 only"),
        ("--tp 8 --ep 8 --enable-two-batch-overlap", "add --moe-a2a-backend deepep"),
        ("--tp 1 --ep-num-redundant-experts 2", "--ep-num-redundant-experts becomes plan.ep.redundant"),
    ],
)  # fmt: skip
def test_degrees_that_do_not_fit_are_refused(options: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_from_command(f"{EXPERTS} {options}")
    (problem,) = caught.value.problems
    assert problem.column is not None
    assert problem.column > len(EXPERTS)
    assert message in problem.message


@pytest.mark.parametrize(
    "neutral", ["--attn-cp-size 1", "--disaggregation-mode null", "--stream-interval 1", "--schedule-policy fcfs"]
)
def test_an_option_that_asks_for_nothing_changes_nothing(neutral: str) -> None:
    plain, found = scenario_from_command(SERVE), scenario_from_command(f"{SERVE} {neutral}")
    assert (document(f"{SERVE} {neutral}"), found.notes) == (document(SERVE), plain.notes)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ("--schedule-policy lpm", "NOT SIMULATED: --schedule-policy lpm: "),
        ("--attention-backend fa3", "NOT SIMULATED: --attention-backend: kernels"),
        ("--enable-hicache", "NOT SIMULATED: --enable-hierarchical-cache: "),
        ("--tp 2 --tp 4", "--tp-size is given twice; as in SGLang, the last one counts"),
        ("--tp 2 --ep 2", "--ep-size has no effect here: the model has no experts"),
        ("--enable-two-batch-overlap --moe-a2a-backend deepep", "no tokens are dispatched"),
        ("--model-path deepseek-v3 --tp 8 --moe-a2a-backend deepep", "normal or low_latency takes that kernel"),
        ("--model-path deepseek-v3 --tp 8 --ep 8 --deepep-mode normal", "no effect without --moe-a2a-backend deepep"),
        ("", "without --enable-mixed-chunk SGLang cuts long prompts into chunks"),
    ],
)
def test_an_effect_that_is_left_out_is_noted(options: str, note: str) -> None:
    command = f"{START} {options}" if "--model-path" in options else f"{SERVE} {options}"
    assert [text for text in scenario_from_command(command).notes if note in text]


@pytest.mark.parametrize("name", sorted(name for name, flag in GRAMMAR.flags.items() if flag.fate == "read"))
def test_no_option_is_read_in_vain(name: str) -> None:
    """An option that is read changes the scenario, or is noted."""
    values = {
        "--nnodes": "2", "--dtype": "half", "--kv-cache-dtype": "fp8_e4m3", "--quantization": "fp8",
        "--mem-fraction-static": "0.5", "--schedule-policy": "lof", "--cuda-graph-backend-decode": "disabled",
        "--moe-a2a-backend": "mori", "--deepep-mode": "normal", "--load-balance-method": "total_requests",
        "--model-path": "deepseek-v3", "--ep-size": "4", "--attn-dp-size": "2", "--tp-size": "16",
    }  # fmt: skip
    base = f"{START} --model-path mixtral-8x7b --tp-size 4 --ep 4"
    base += " --dp-size 2" if name in ("--load-balance-method", "--enable-dp-attention") else ""
    base += " --moe-a2a-backend mori" if name == "--enable-two-batch-overlap" else ""
    base = base.removesuffix(" --ep 4") if name in ("--ep-size", "--moe-a2a-backend") else base
    option = name if GRAMMAR.flags[name].takes == "switch" else f"{name} {values.get(name, '8')}"
    assert said_by(base) != said_by(f"{base} {option}")


@cache
def said_by(command: str) -> tuple[Any, Any]:
    """Return the values and the notes of a scenario from a command."""
    found = scenario_from_command(command)
    return parse_yaml(found.text, "text").data, found.notes


@pytest.mark.parametrize(
    ("text", "number"), [("8", 8), ("1k", 1000), ("1Ki", 1024), ("25.6k", 25600), ("2Mi", 2097152), ("1M", 10**6)]
)
def test_long_numbers_are_read_as_sglang_reads_them(text: str, number: int) -> None:
    assert human(text) == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "1K", "1m", "-1", "0", "0Ki", "1.5Ki", "9" * 5000, "9" * 5000 + "k"])
def test_what_is_no_long_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        human(text)


def test_origins_and_secrets() -> None:
    text = scenario_from_command(f"HF_TOKEN=hidden1 {SERVE} --tp 2 --api-key hidden2").text
    assert "# From a command line of SGLang, as release 0.5.23 reads it." in text
    assert "#   python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --tp-size 2\n" in text
    assert "tp: 2  # --tp-size\n" in text
    assert "# --max-running-requests: SGLang's default on h100-sxm-80gb\n" in text
    assert "hidden" not in text
    build_scenario(parse_yaml(text, "text"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{SERVE}; vllm serve meta-llama/Llama-3.1-8B", "found `vllm serve` and `python -m sglang.launch_server`"),
        (f"{SERVE}; {SERVE}", "a second `python -m sglang.launch_server`"),
        ("python -m sglang_router.launch_router", "found no `vllm serve` or `python -m sglang.launch_server`"),
        (START, "names no model"),
        ("sglang serve llama-3.1-8b --model llama-3.1-70b", "a second model beside 'llama-3.1-8b'"),
    ],
)
def test_a_scenario_is_one_server(command: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario_from_command(command)


def test_the_benchmark_caches_prefixes_as_the_server_does() -> None:
    bench = "vllm bench serve --random-prefix-len 64"
    assert document(SERVE, bench)["serving"]["prefix_caching"] is True
    assert "shared_prefixes" in document(f"{SERVE} --page-size 16", bench)["workload"]
    assert "shared_prefixes" not in document(f"{SERVE} --disable-radix-cache", bench)["workload"]


def test_the_command_has_two_names() -> None:
    for name in ("from-command", "from-vllm"):
        found = CliRunner().invoke(main, [name, "-"], input=f"{SERVE} \\\n --tp 2")
        assert (found.exit_code, "tp: 2  # --tp-size" in found.output) == (0, True), found.output


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "--dataset-name random",
            {
                "arrivals": {"process": "all_at_once"},
                "prompt_tokens": {"uniform": {"low": 1, "high": 1024}},
                "output_tokens": {"uniform": {"low": 1, "high": 1024}},
                "requests": 1000,
            },
        ),
        (
            "--dataset-name random-ids --random-input-len 99 --random-output-len 8 --random-range-ratio 0.5 "
            "--request-rate 4 --num-prompts 7",
            {
                "arrivals": {"process": "poisson", "rate": "4/s"},
                "prompt_tokens": {"uniform": {"low": 49, "high": 99}},
                "output_tokens": {"uniform": {"low": 4, "high": 8}},
                "requests": 7,
            },
        ),
        (
            "--dataset-name random --random-range-ratio 1 --max-concurrency 8",
            {
                "arrivals": {"process": "closed_loop", "concurrency": 8},
                "prompt_tokens": 1024,
                "output_tokens": 1024,
                "requests": 1000,
            },
        ),
        (
            "--dataset-name generated-shared-prefix --gsp-num-groups 4 --gsp-prompts-per-group 5",
            {
                "arrivals": {"process": "all_at_once"},
                "prompt_tokens": 2176,
                "output_tokens": 256,
                "requests": 20,
                "shared_prefixes": {"groups": 4, "tokens": 2048},
            },
        ),
    ],
)
def test_the_benchmark_of_sglang_becomes_a_workload(options: str, expected: dict[str, Any]) -> None:
    for start in (BENCH, "python3 -m sglang.benchmark.serving"):
        found = document(f"{SERVE} --page-size 16", f"{start} --backend sglang {options} --goodput ttft:200")
        assert found["workload"] == expected
        assert (found["seed"], found["targets"]) == (42, {"ttft": "200 ms"})
    assert document(f"{SERVE} &\n{BENCH} {options}")["workload"]["requests"] == expected["requests"]


@pytest.mark.parametrize(
    ("bench", "place", "message"),
    [
        (BENCH, "--bench:1:11", "the lengths of 'sharegpt' are in its files; expected random or random-ids or gen"),
        (f"{BENCH} --dataset-name mooncake", "--bench:1:47", "the lengths of 'mooncake' are in its files"),
        (f"{BENCH} --dataset-name random --random-range-ratio 2", "--bench:1:75", "and up to 1"),
        (f"{BENCH} --dataset-name random --gsp-num-turns 3", "--bench:1:70", "all prefixes are alike"),
        (f"{BENCH} --dataset-name random --burstiness 3", "--bench:1:54", "no option '--burstiness'"),
    ],
)
def test_a_mistake_in_the_benchmark_is_pointed_at(bench: str, place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_from_command(SERVE, bench)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{place}: ")
    assert message in problem.message


def test_a_name_that_is_too_long_is_no_file() -> None:
    with pytest.raises(InputError, match="no architecture that ships"):
        scenario_from_command(f"{START} --model-path {'x' * 5000}")
