"""The comparison with published points: what rows are turned into, how errors are counted, and, on request, a table.

The rows here are literals of the kinds that such a table has. ``CLUSTERSIM_POINTS`` names a whole table (its columns
are in ``clustersim/accuracy/row.py``) for the optional check.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from clustersim.accuracy import systems
from clustersim.accuracy.compare import FORMS as FAMILY_FORMS
from clustersim.accuracy.compare import compare, scenario_of
from clustersim.accuracy.families import closed_loop, collectives, offline, published, replays, static_batch
from clustersim.accuracy.metrics import FORMS as METRIC_FORMS
from clustersim.accuracy.metrics import check_metric, value_of
from clustersim.accuracy.plans import FORMS, plan_in, plan_of, ranks_of
from clustersim.accuracy.result import result_of
from clustersim.accuracy.row import COLUMNS, Inexpressible, Row, read_rows
from clustersim.accuracy.score import score
from clustersim.errors import InputError

LOOP = Row(
    id="F7-closed-loop-1", family="F7-closed-loop", hardware="h100_sxm", num_gpus=2, model="Qwen/Qwen3-32B",
    precision="bf16", framework="vllm 0.12.0", parallel="TP2", workload="closed loop concurrency 8, ISL 1024, OSL 128",
    metric="TTFT", value=150.0, unit="ms", source="", note="qwen3_32b_c8_tp2",
)  # fmt: skip
BURST = Row(
    id="F6-pp-tp-sweep-1", family="F6-pp-tp-sweep", hardware="RTXPRO6000", num_gpus=2, model="Llama-3.3-70B",
    precision="FP4", framework="TensorRT-LLM 1.0", parallel="TP1 PP2",
    workload="offline burst 3000 requests, ISL 1000, OSL 2000", metric="total output throughput", value=3000.0,
    unit="tok/s", source="", note="",
)  # fmt: skip
BATCH = Row(
    id="F5-static-batch-1", family="F5-static-batch", hardware="A100-80GB", num_gpus=1, model="Llama-2-7B",
    precision="FP16", framework="TensorRT-LLM 0.9.0", parallel="TP1", workload="static batch 32, ISL 100, OSL 28",
    metric="output_token_throughput_per_gpu", value=1500.0, unit="tok/s/GPU", source="", note="",
)  # fmt: skip
REDUCE = Row(
    id="F11-collectives-1", family="F11-collectives", hardware="H200 (NVLink4)", num_gpus=8, model="", precision="",
    framework="nccl-tests", parallel="all_reduce", workload="payload 8000000000 algo Ring", metric="bandwidth",
    value=365.0, unit="GB/s", source="", note="",
)  # fmt: skip
SPLIT = replace(LOOP, id="F3-1", family="F3-distserve-a100", parallel="ctx TP2 PP1, dec TP1 PP1")


def test_a_closed_loop_keeps_ten_requests_per_client():
    document = closed_loop.scenario(LOOP)
    assert document["topology"] == {"name": "dgx-h100", "nodes": 1}
    assert document["plan"] == {"tp": 2}
    assert document["workload"] == {
        "arrivals": {"process": "closed_loop", "concurrency": 8},
        "prompt_tokens": {"fixed": 1024},
        "output_tokens": {"fixed": 128},
        "requests": 80,
    }


def test_lengths_of_dated_runs_are_drawn():
    drawn = closed_loop.scenario(replace(LOOP, note="2026_04_06_qwen3"))["workload"]
    assert drawn["prompt_tokens"] == {"uniform": {"low": 819, "high": 1024}}


def test_experts_inside_a_tp_group_share_its_all_reduce_and_those_of_replicas_are_sent_their_tokens():
    assert closed_loop.scenario(replace(LOOP, parallel="TP4 moe_ep4"))["plan"] == {
        "tp": 4,
        "ep": {"degree": 4, "exchange": "all_reduce"},
    }
    spread = {"dp": 4, "ep": {"degree": 4, "scope": "global"}}
    assert closed_loop.scenario(replace(LOOP, parallel="DP4 EP4"))["plan"] == spread


def test_an_offline_burst_arrives_at_once():
    document = offline.scenario(BURST)
    assert document["plan"] == {"pp": 2}
    assert document["precision"] == {"weights": "fp4", "kv_cache": "fp8"}
    assert document["workload"] == {
        "arrivals": "all_at_once", "prompt_tokens": 1000, "output_tokens": 2000, "requests": 3000
    }  # fmt: skip


def test_a_static_batch_is_one_step_of_prompts_in_a_pool_that_just_holds_it():
    serving = static_batch.scenario(BATCH)["serving"]
    assert (serving["max_batch_requests"], serving["max_batch_tokens"]) == (32, 3200)
    assert serving["kv_blocks"] == 32  # 128 tokens in a block, as TensorRT-LLM 0.9 has them


def test_a_replay_takes_the_trace_and_the_limits_of_its_row(tmp_path):
    (tmp_path / "recorded").mkdir()
    trace = tmp_path / "recorded" / "distserve__chat.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n", encoding="utf-8")
    row = replace(
        LOOP, workload="chat.csv: 1 request", note="max_num_seqs 7, max_num_batched_tokens 99, 5 KV blocks x16"
    )
    document = replays.scenario(row, tmp_path)
    assert document["workload"] == {"trace": {"path": str(trace)}}
    assert [document["serving"][key] for key in ("max_batch_requests", "max_batch_tokens", "kv_blocks")] == [7, 99, 5]


@pytest.mark.parametrize(
    ("build", "row", "reason"),
    [
        (closed_loop.scenario, replace(LOOP, hardware="abacus"), "no device in the catalogs for 'abacus'"),
        (closed_loop.scenario, replace(LOOP, workload="busy"), "not understood: 'busy'"),
        (published.scenario, replace(LOOP, workload="ISL  OSL  "), "the workload is not given"),
        (lambda row: replays.scenario(row, Path("/nowhere")), SPLIT, "is not below the folder of traces"),
        (closed_loop.scenario, replace(LOOP, parallel="TP2 XP3"), "not understood: 'TP2 XP3'"),
        (collectives.value, replace(REDUCE, parallel="psum over DCN"), "not modelled"),
    ],
)
def test_what_cannot_be_expressed_has_a_reason(build, row, reason):
    with pytest.raises(Inexpressible, match=reason):
        build(row)


def test_the_bus_bandwidth_of_a_ring_is_what_a_link_carries():
    # at most the 450 GB/s of a device's links, and most of it at 8 GB
    assert 300 < collectives.value(REDUCE) < 450
    seconds = collectives.value(replace(REDUCE, metric="latency", unit="us")) * 1e-6
    assert collectives.value(REDUCE) == pytest.approx(8.0 / seconds * 2 * 7 / 8)


def test_figures_are_in_the_unit_of_the_row():
    summary = {"ttft_ms": {"mean": 1500.0, "p50": 1000.0}, "throughput": {"output_tokens_per_s": 80.0}}
    assert value_of(LOOP, summary) == 1500.0
    assert value_of(replace(LOOP, metric="TTFT median", unit="s"), summary) == 1.0
    assert value_of(replace(BATCH, num_gpus=4), summary) == 20.0
    with pytest.raises(Inexpressible, match="no such metric: 'joy' in 'ms'"):
        value_of(replace(LOOP, metric="joy"), summary)


def test_a_point_is_predicted_or_has_a_reason():
    small = replace(BATCH, workload="static batch 2, ISL 100, OSL 2")
    lost = replace(SPLIT, num_gpus=3, workload="chat.csv: 1 request")
    predicted, reason = sorted(compare([lost, small], Path("/nowhere")), key=lambda point: point.predicted is None)
    assert predicted.row == small
    assert predicted.predicted > 0
    assert "is not below the folder of traces" in reason.reason


def test_prefill_and_decode_on_devices_of_their_own_are_two_pools(tmp_path):
    (tmp_path / "chat.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n", encoding="utf-8")
    row = replace(SPLIT, num_gpus=3, framework="distserve (early 2024)", workload="chat.csv: 1 request")
    document = scenario_of(row, tmp_path)
    assert document["plan"] == {"prefill": {"tp": 2}, "decode": {}}
    assert document["serving"]["engine"] == "distserve-2024"
    assert document["serving"]["scheduler"] == "disaggregated"
    assert document["serving"]["decode"] == {"scheduler": "continuous"}


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("TP1 (see the example)", {}),
        ("2 replicas x TP4", {"dp": 2, "tp": 4}),
        ("2 x TP4 PP2", {"dp": 2, "pp": 2, "tp": 4}),
        ("4DP2TP", {"dp": 4, "tp": 2}),
        ("TP2 over PCIe", {"tp": 2}),
        ("TP4, EP4, attention DP", {"dp": 4, "ep": {"degree": 4, "scope": "global"}}),
        ("prefill TP4, decode TP8 PP2", {"prefill": {"tp": 4}, "decode": {"pp": 2, "tp": 8}}),
        ("disaggregated: prefill TP4; decode TP2", {"prefill": {"tp": 4}, "decode": {"tp": 2}}),
        ("1P1D", {"prefill": {}, "decode": {}}),
        ("2P4D TP2", {"prefill": {"dp": 2, "tp": 2}, "decode": {"dp": 4, "tp": 2}}),
        ("1P2D ctx TP4, dec TP2", {"prefill": {"tp": 4}, "decode": {"dp": 2, "tp": 2}}),
        ("attention-DP 8", {"dp": 8, "ep": {"degree": 8, "scope": "global"}}),
        ("ADP4 EP4", {"dp": 4, "ep": {"degree": 4, "scope": "global"}}),
        ("DEP8", {"dp": 8, "ep": {"degree": 8, "scope": "global"}}),
        ("TEP8", {"tp": 8, "ep": {"degree": 8, "exchange": "all_reduce"}}),
        ("TP8EP8", {"tp": 8, "ep": {"degree": 8, "exchange": "all_reduce"}}),
        ("TP2 x 3", {"dp": 3, "tp": 2}),
        ("prefill(TP2) decode(TP4)", {"prefill": {"tp": 2}, "decode": {"tp": 4}}),
        ("P:TP2 D:TP4", {"prefill": {"tp": 2}, "decode": {"tp": 4}}),
        ("2xP(TP2) + 1xD(TP4)", {"prefill": {"dp": 2, "tp": 2}, "decode": {"tp": 4}}),
        ("TP2 prefill + TP4 decode", {"prefill": {"tp": 2}, "decode": {"tp": 4}}),
    ],
)
def test_plans_are_read_in_the_words_of_benchmarks(text, plan):
    assert plan_in(text) == plan


@pytest.mark.parametrize("form", [form for form, _ in FORMS])
def test_every_form_of_a_plan_that_is_documented_is_read(form):
    assert ranks_of(plan_in(form)) > 1


@pytest.mark.parametrize(
    ("module", "row"),
    [(closed_loop, LOOP), (offline, BURST), (static_batch, BATCH), (published, replace(LOOP, parallel=published.PLAN))],
)
def test_every_form_of_a_workload_that_is_documented_is_read(module, row):
    assert f" {module.FORM} " in f" {FAMILY_FORMS[row.family]} " or module is published
    filled = re.sub(r"\b[CNnm]\b", "16", module.FORM)
    assert module.scenario(replace(row, workload=filled, parallel=row.parallel.replace("N", "16")))["workload"]


@pytest.mark.parametrize(("name", "units"), [form for form in METRIC_FORMS if "F11" not in form[1]][:-1])
def test_every_metric_that_is_documented_is_known_in_its_units(name, units):
    for unit in re.findall("`([^`]*)`", units):
        check_metric(replace(LOOP, metric=name.replace("STATISTIC", "p90"), unit=unit))


def test_one_device_needs_no_plan():
    assert [plan_of(replace(LOOP, num_gpus=1, parallel=text)) for text in ("", "none", "single GPU")] == [{}] * 3
    with pytest.raises(Inexpressible, match="not understood"):
        plan_of(replace(LOOP, num_gpus=2, parallel="none"))


@pytest.mark.parametrize(
    ("change", "workload"),
    [
        ({"workload": "closed loop concurrency 2, ISL 1,024, OSL 4"}, "closed_loop"),
        ({"workload": "Closed loop of concurrency 2 ISL 1024 OSL 4 (Table 3)"}, "closed_loop"),
        ({"workload": "offline burst of 2 requests, ISL 1024, OSL 4"}, "all_at_once"),
        ({"family": "F6-saturated", "workload": "closed loop concurrency 2, ISL 1024, OSL 4"}, "closed_loop"),
    ],
)
def test_a_family_that_nobody_has_seen_is_read_by_the_form_of_its_workload(change, workload):
    document = scenario_of(replace(LOOP, **{"family": "F12-new", **change}), Path("/nowhere"))
    arrivals = document["workload"]["arrivals"]
    assert workload in (arrivals, arrivals["process"] if isinstance(arrivals, dict) else "")
    prompt = document["workload"]["prompt_tokens"]
    assert prompt in (1024, {"fixed": 1024})


@pytest.mark.parametrize("text", ["", "banana", "TP4 TP8", "DP2 EP4", "TP2 of 4", "0P1D", "1P1D 2 x TP2"])
def test_words_that_give_no_plan_are_not_guessed(text):
    with pytest.raises(Inexpressible, match="not understood"):
        plan_in(text)


@pytest.mark.parametrize(
    ("framework", "hardware", "engine", "limits"),
    [
        ("vLLM 0.6.0", "H100-SXM-80GB", "vllm-0.6", (512, 256)),
        ("vllm 0.18.1", "H100-SXM-80GB", "vllm-0.14", (8192, 1024)),
        ("vLLM 0.19.0", "RTX 4090", "vllm-0.19", (2048, 256)),
        ("vLLM (2025)", "H200", "vllm-0.12", (8192, 1024)),
        ("vllm (early 2024)", "A100-80GB", "vllm-2023", (40960, 256)),
        ("trtllm 1.0.0rc3", "b200_sxm", "trtllm-1.0", (8192, 2048)),
        ("TensorRT-LLM 0.12.0", "L40S-48GB", "trtllm-0.14", (8192, 2048)),
        ("SGLang", "H200", "sglang-0.5", (8192, 2048)),
    ],
)
def test_an_engine_has_the_limits_of_its_version(framework, hardware, engine, limits):
    serving = systems.serving(replace(LOOP, framework=framework, hardware=hardware))
    assert serving["engine"] == engine
    assert (serving["max_batch_tokens"], serving["max_batch_requests"]) == limits


def test_prefixes_are_cached_where_the_row_says_so():
    assert systems.serving(replace(LOOP, framework="vLLM 0.19.0 (prefix caching on)"))["prefix_caching"] is True
    assert systems.serving(LOOP)["prefix_caching"] is False


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("LLaMA-v3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama-3.1-70B(-Instruct)", "llama-3.1-70b"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
    ],
)
def test_models_are_found_by_the_names_of_their_checkpoints(text, name):
    assert systems.model(replace(LOOP, model=text)) == name


def test_a_call_from_torch_takes_longer_than_one_in_a_graph():
    inside = collectives.value(replace(REDUCE, metric="latency", unit="us"))
    called = replace(REDUCE, metric="latency", unit="us", framework="NCCL 2.27.7 torch 2.9.1")
    assert collectives.value(called) == pytest.approx(inside + 20)


def test_the_number_of_processes_changes_nothing():
    rows = [replace(BATCH, id=str(size), workload=f"static batch {size}, ISL 100, OSL 2") for size in (1, 2, 3)]
    found = [sorted(compare(rows, Path("/nowhere"), workers=workers), key=lambda one: one.row.id) for workers in (1, 2)]
    assert found[0] == found[1]


def test_a_plan_that_is_illegal_has_no_prediction():
    (point,) = compare([replace(LOOP, parallel="TP3", num_gpus=3)], Path("/nowhere"))
    assert point.reason.startswith("TP-1: ")


CELLS = {"num_gpus": "2", "value": "1.5", "unit": "ms"}


def table(*lines: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> str:
    """Return a table whose cells are the names of their columns where nothing else is said."""
    named = [{name: name for name in columns} | CELLS | line for line in lines]
    return "\n".join([",".join(columns), *(",".join(line[name] for name in columns) for line in named)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table({"value": "fast"}, {}, {"num_gpus": "-1"}), ["2:73: value: found 'fast'", "4:20: num_gpus: found '-1'"]),
        (table({"value": "1e-320"}), ["found '1e-320'; expected a number from 1e-12 to 1e+18"]),
        (table({"value": "٢٠"}), ["found '٢٠'; expected a number above zero"]),
        (table({"value": "nan"}), ["2:73: value: found 'nan'; expected a number above zero"]),
        (table({"unit": ""}), ["2:77: unit: found nothing; expected a text"]),
        (table({}, columns=COLUMNS[1:]), ["1: no column 'id'"]),
        (
            table({}).replace("framework", "frame_work", 1),
            ["1: no column 'framework'; rename 'frame_work' if that is it"],
        ),
        (table({}).replace("note", "unit", 1), ["1: no column 'note'", "1: column 'unit' stands twice"]),
        (table({}) + "\nF1,F1", ["3: found cells: 2; expected cells: 14"]),
        (table(), ["2: a header but no points"]),
        ("", ["1: is empty; expected the columns id"]),
        ("a,b\n1,2", ["1: is no table of measured points"]),
        (table({"id": '"x'}), ["not a CSV line: unexpected end of data"]),
    ],
)
def test_a_table_with_problems_names_every_place(tmp_path, text, said):
    path = tmp_path / "points.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as found:
        read_rows(path)
    told = [str(problem).replace(f"{path}:", "") for problem in found.value.problems]
    assert len(told) == len(said)
    assert all(word in line for line, word in zip(told, said, strict=True))


def test_columns_may_stand_in_any_order_with_others_between(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text(table({"spare": "1", "num_gpus": "5.3"}, columns=(*COLUMNS[::-1], "spare")), encoding="utf-8")
    (row,) = read_rows(path)
    assert (row.id, row.num_gpus, row.value) == ("id", 5.3, 1.5)


@pytest.mark.skipif("CLUSTERSIM_POINTS" not in os.environ, reason="CLUSTERSIM_POINTS names no table of measured points")
def test_most_points_of_a_table_are_within_a_fifth():
    """Half of all points within 20 %: no more is claimed, since rows leave much unsaid (``accuracy/systems.py``)."""
    path = Path(os.environ["CLUSTERSIM_POINTS"])
    points = compare(read_rows(path), path.resolve().parent.parent, workers=os.cpu_count() or 1)
    assert score([result_of(point) for point in points]).median < 0.2


@pytest.mark.parametrize(
    ("framework", "engine"),
    [
        ("vLLM + LMCache 0.3", "vllm-0.19"),
        ("Ray Serve 2.9, vLLM", "vllm-0.19"),
        ("vllm-openai:v0.9.2", "vllm-0.9"),
        ("vLLM V1 0.8.5", "vllm-0.9"),
        ("vLLM (early 2019)", "vllm-2023"),
        ("SGLang (2025)", "sglang-0.5"),
        ("TensorRT-LLM (2024)", "trtllm-0.14"),
    ],
)
def test_a_version_is_what_stands_behind_the_name_of_an_engine(framework, engine):
    assert systems.profile(framework) == engine


def test_memory_of_an_a100_and_the_chips_of_a_slice_are_as_a_row_says():
    topologies = [systems.topology(replace(LOOP, hardware=of, num_gpus=4)) for of in ("A100-SXM4-40GB", "TPU v6e-4")]
    assert topologies == [
        {"name": "dgx-a100", "device": "a100-sxm-40gb", "nodes": 1},
        {"name": "tpu-v6e", "dims": [2, 2]},
    ]


def test_metrics_are_known_in_any_case():
    summary = {"itl_ms": {"p95": 7.0}, "e2e_ms": {"mean": 9.0}, "throughput": {"requests_per_s": 6.0}}
    said = [("itl P95", "us", 7000.0), ("E2E latency", "ms", 9.0), ("Request throughput", "req/s/GPU", 3.0)]
    assert [value_of(replace(LOOP, metric=of, unit=unit), summary) for of, unit, _ in said] == [one[2] for one in said]
