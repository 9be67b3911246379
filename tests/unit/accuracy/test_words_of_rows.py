"""What a row says in words that tables here do not use is read as it is meant, or told to be not understood."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clustersim.accuracy import compare, metrics, systems
from clustersim.accuracy.compare import scenario_of
from clustersim.accuracy.families import collectives
from clustersim.accuracy.remarks import check_remarks
from clustersim.accuracy.row import Inexpressible, Row

ROW = Row(
    id="x", family="mine", hardware="h100_sxm", num_gpus=8.0, model="Mixtral-8x7B", precision="bf16",
    framework="vllm 0.12.0", parallel="TP8", workload="closed loop concurrency 2, ISL 64, OSL 8", metric="TPOT",
    value=7.4, unit="ms", source="", note="",
)  # fmt: skip
RING = replace(
    ROW, family="F11-collectives", hardware="H200 (NVLink4)", parallel="all_reduce", metric="bandwidth", unit="GB/s",
    workload="payload 1048576 algo Ring", framework="nccl-tests",
)  # fmt: skip
EXPERTS = replace(RING, parallel="DeepEP dispatch fp8", workload="payload 4096 tok/rank x 7168, top300")


@pytest.mark.parametrize("parallel", ["TP8 (attention DP off)", "TP8, no attention DP", "TP8 without attn DP"])
def test_ranks_attend_together_where_a_plan_says_so(parallel):
    assert scenario_of(replace(ROW, parallel=parallel), Path())["plan"]["tp"] == 8


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parallel": "TP4 (EP4)"}, r"write what '\(EP4\)' says of the plan without brackets"),
        ({"parallel": "TP8 (disaggregated)"}, "without brackets"),
        ({"parallel": "TP8 (DP attention)"}, "without brackets"),
        ({"hardware": "H100 prefill, H200 decode"}, "names several devices"),
        ({"hardware": "H100 MIG 3g.40gb"}, "no device in the catalogs"),
        ({"hardware": "RTX 4090 Laptop"}, "no device in the catalogs"),
        ({"num_gpus": 1e9, "parallel": "TP8 x 125000000"}, "at most 1,000,000"),
        ({"parallel": "TP8 over PCIe"}, "devices of dgx-h100 are joined by NVLink; no topology .* by PCIe"),
        ({"parallel": "TP8 (NVLink)", "hardware": "L40S"}, "devices of l40s-node are joined by PCIe"),
        ({"parallel": "TP16 on one node", "num_gpus": 16.0}, "joined by NVLink, 8 in a node"),
        ({"family": "F1-replay-vllm", "workload": "y" * 300}, "not understood"),
        ({"family": "F1-replay-vllm", "workload": "**"}, "not understood"),
        ({"family": "F1-replay-vllm", "workload": ".."}, "not understood"),
    ],
)
def test_what_is_not_understood_is_told(change, told):
    with pytest.raises(Inexpressible, match=told):
        scenario_of(replace(ROW, **change), Path(__file__).parent)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "Mixtral-8x7B (LoRA)"}, "'LoRA': LoRA is not simulated"),
        ({"model": "Mixtral-8x7B + draft Llama-3.2-1B"}, "'draft': speculative decoding"),
        ({"framework": "vllm 0.12.0 (EAGLE-3)"}, "'EAGLE-3': speculative"),
        ({"note": "qwen_fp8_mtp_on"}, "'mtp': speculative"),
        ({"model": "Mixtral-8x7B (pruned 50%)"}, "'pruned': what was cut out of a model"),
        ({"framework": "vllm 0.12.0, KV offload"}, "'KV offload': offloading to a host"),
        ({"parallel": "TP٨"}, "expected digits from 0 to 9"),
    ],
)
def test_what_ran_and_is_not_simulated_makes_no_prediction(change, told):
    with pytest.raises(Inexpressible, match=told):
        check_remarks(replace(ROW, **change))


def test_a_remark_that_says_no_is_none():
    check_remarks(replace(ROW, framework="vllm 0.12.0 (no speculative decoding)", note="MTP off, without LoRA, MTP 0"))


def test_eager_mode_captures_no_graphs_and_is_held_out_as_such():
    eager = replace(ROW, framework="vllm 0.12.0 (enforce-eager)", source="ai-dynamo/aiconfigurator@095f58a51c4c")
    document = scenario_of(eager, Path())
    assert document["serving"]["engine"] == {"name": "vllm-0.12", "graph_max_tokens": 0}
    assert compare._held_out(eager, document)["serving"]["engine"]["graph_max_tokens"] == 0
    assert systems.serving(replace(ROW, framework="vLLM 0.3.3 eager"))["engine"] == "vllm-0.3-eager"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (replace(RING, num_gpus=1.0), "a collective of 1 devices"),
        (replace(RING, workload="payload 0 algo Ring"), "a payload of 0 bytes"),
        (replace(RING, metric="latency"), "'latency' in 'GB/s'; known are bandwidth in GB/s, latency in us"),
        (replace(EXPERTS, num_gpus=8.0), "more experts for each than the 256"),
    ],
)
def test_a_collective_that_there_is_none_of_is_told(row, told):
    with pytest.raises(Inexpressible, match=told):
        collectives.value(row)


def test_a_throughput_of_prefills_without_lengths_is_that_of_steps_that_are_full():
    row = replace(ROW, family="F10-cluster-published", hardware="H20", num_gpus=1.0, model="Qwen3-8B", parallel="TP1",
                  framework="SGLang", workload="ISL  OSL  ", metric="prefill throughput", unit="tok/s/GPU")  # fmt: skip
    document = scenario_of(row, Path())
    assert document["topology"]["name"] == "h20-node"
    assert systems.topology(replace(row, hardware="H200-SXM-141GB"))["name"] == "dgx-h200"
    assert document["workload"]["prompt_tokens"] == document["serving"]["max_batch_tokens"]
    assert document["workload"]["output_tokens"] == 1
    rates = {"throughput": {"total_tokens_per_s": 900.0, "output_tokens_per_s": 100.0}}
    assert metrics.value_of(row, rates) == 800.0
    with pytest.raises(Inexpressible, match="the workload is not given"):
        scenario_of(replace(row, metric="decode throughput"), Path())
    with pytest.raises(Inexpressible, match="no device in the catalogs for 'H20-3e 141 GB'"):
        scenario_of(replace(row, hardware="H20-3e 141 GB"), Path())


def test_one_output_token_has_no_tpot():
    with pytest.raises(Inexpressible, match="two output tokens or more"):
        metrics.value_of(ROW, {"tpot_ms": {"mean": None}})


@pytest.mark.parametrize("name", ["vllm==0.6.3", "vllm@0.6.3", "vllm/0.6.3", "vllm nightly 0.6.3", "vLLM v0.6.3"])
def test_a_version_stands_behind_any_sign(name):
    assert systems.profile(name) == "vllm-0.6"


@pytest.mark.parametrize(
    ("precision", "framework", "kv"),
    [
        ("FP8 (KV fp16)", "TensorRT-LLM 1.0", "fp16"),
        ("bf16 (fp8 KV cache)", "vllm 0.12.0", "fp8"),
        ("FP8", "TensorRT-LLM 1.0", "fp8"),
        ("FP8", "tensorrt-llm 1.0", "fp8"),
        ("fp8", "trtllm 1.0.0rc3", "bf16"),
    ],
)
def test_the_format_of_kv_is_what_a_row_says_or_its_publisher_takes(precision, framework, kv):
    assert systems.precision(replace(ROW, precision=precision, framework=framework))["kv_cache"] == kv


def test_a100_of_40_gb_and_caching_in_other_words():
    assert systems.topology(replace(ROW, hardware="A100-SXM 40 GiB"))["device"] == "a100-sxm-40gb"
    assert systems.topology(replace(ROW, hardware="A100 40G"))["device"] == "a100-sxm-40gb"
    assert systems.serving(replace(ROW, framework="vLLM 0.19.0 (Prefix caching enabled)"))["prefix_caching"]
    assert not systems.serving(replace(ROW, framework="vLLM 0.19.0"))["prefix_caching"]
