"""What a run leaves out of a deployment is said by each run of it; what an engine has no longer, when it had it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim import units
from clustersim.cli import main
from clustersim.errors import InputError
from clustersim.interop import sglang, vllm
from clustersim.interop.command import Grammar
from clustersim.interop.launch.versions import span_of
from clustersim.interop.translated import scenario_from_command

SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct"
START = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct"
LMCACHE = """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'"""
PARTS = "--kv-transfer-config"
IMAGE = "docker run vllm/vllm-openai:v0.9.2 --model meta-llama/Llama-3.1-8B-Instruct"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def left_out(command: str) -> list[str]:
    found = yaml.safe_load(scenario_from_command(command).text).get("left_out", [])
    return [str(text) for text in found]


def test_a_store_of_kv_is_said_by_every_run_of_its_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = invoke("from-vllm", f"{SERVE} --kv-offloading-size 20 {LMCACHE}", "--out", "served.yaml")
    assert made.exit_code == 0, made.output
    told = "NOT SIMULATED: --kv-offloading-size, --kv-transfer-config: K/V in host memory"
    assert told in " ".join(Path("served.yaml").read_text(encoding="utf-8").replace("#", " ").split())
    checked = invoke("check", "served.yaml")
    assert told in " ".join(checked.output.split())
    assert len(json.loads(invoke("check", "served.yaml", "--json").output)["left_out"]) == 1
    run = invoke("run", "served.yaml", "--set", "workload.requests=3", "--out", "runs/served")
    assert run.exit_code == 0, run.output
    assert told in " ".join(run.output.split())
    summary = json.loads(Path("runs/served/summary.json").read_text(encoding="utf-8"))
    assert [text.partition(":")[0] for text in summary["not_simulated"]] == [
        "--kv-offloading-size, --kv-transfer-config"
    ]
    assert told in " ".join(Path("runs/served/dashboard.html").read_text(encoding="utf-8").split())
    few = (
        "--set",
        "workload.arrivals={process: constant, rate: 4/s}",
        "--set",
        "workload.requests=3",
        "--targets",
        "ttft=1 s",
        "--lasting",
        "1 s",
        "--workers",
        "1",
    )
    assert told in " ".join(invoke("rate", "served.yaml", *few).output.split())
    assert f"NOTE add yourself what the scenario leaves out:{told.partition(':')[2]}" in " ".join(
        invoke("launch", "served.yaml", "--for", "vllm").output.replace("#", " ").split()
    )


@pytest.mark.parametrize(
    "connectors",
    [
        '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "no-offloading"}',
        '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_producer"}',
        '{"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": '
        '[{"kv_connector": "NixlConnector"}, {"kv_connector": "OffloadingConnector"}]}}',
    ],
)
def test_a_connector_of_two_pools_is_refused_whatever_store_stands_beside_it(connectors: str) -> None:
    with pytest.raises(InputError, match="two pools are read of no command"):
        scenario_from_command(f"{SERVE} --kv-transfer-config '{connectors}'")


@pytest.mark.parametrize(("tag", "engine"), [("v0.6.3@sha256:0a1b", "vllm-0.6.3"), ("v0.9", "vllm-0.9")])
def test_the_tag_of_an_image_names_the_engine_with_a_digest_and_as_a_whole_profile(tag: str, engine: str) -> None:
    made = scenario_from_command(IMAGE.replace("v0.9.2", tag)).text
    assert yaml.safe_load(made)["serving"]["engine"]["name"] == engine


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (SERVE, []),
        (f"{SERVE} --kv-offloading-size 0", []),
        (f"{SERVE} --kv-offloading-size 0.0", []),
        (
            f"{SERVE} --kv-transfer-config.kv_connector OffloadingConnector --kv-transfer-config.kv_role kv_both",
            ["--kv-transfer-config"],
        ),
        (f"{SERVE} --disable-hybrid-kv-cache-manager", []),
        (f"{SERVE} {PARTS}.kv_connector LMCacheConnectorV1 {PARTS}.kv_role=kv_both", [PARTS]),
        (f"{START} --enable-hierarchical-cache --hicache-ratio 2", ["--enable-hierarchical-cache, --hicache-ratio"]),
        (f"{START} --radix-eviction-policy lfu", ["--radix-eviction-policy"]),
        (f"{START} --radix-eviction-policy lru", []),
        (f"LMCACHE_LOCAL_CPU=True {SERVE}", ["LMCACHE_LOCAL_CPU"]),
        (f"VLLM_ATTENTION_BACKEND=X VLLM_LOGGING_LEVEL=DEBUG {SERVE}", ["VLLM_ATTENTION_BACKEND"]),
        (f"{SERVE} --attention-backend X --stream-interval 8", ["--attention-backend", "--stream-interval"]),
        (f"{START} --enable-priority-scheduling --disable-priority-preemption", ["--disable-priority-preemption"]),
        (f"{START} --schedule-policy lpm", ["--schedule-policy lpm"]),
        (f"{IMAGE} --swap-space 8 --max-seq-len-to-capture 8192", ["--swap-space", "--max-seq-len-to-capture"]),
    ],
)
def test_what_is_left_out_is_written_by_the_options_that_ask_for_it(command: str, names: list[str]) -> None:
    assert [text.partition(":")[0] for text in left_out(command)] == names


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (
            "",
            "--swap-space 8",
            "--swap-space: vLLM 0.19.0 has no such option; it was there from 0.3.3 to before 0.19.0",
        ),
        ("", "--max-seq-len-to-capture 8192", "0.12.0; --max-cudagraph-capture-size took its place"),
        (":v0.12.0", "--num-scheduler-steps 8", "it was there from 0.6.0 to before 0.11.0"),
        (":v0.8.5", "--num-scheduler-steps 8", "NOT SIMULATED: --num-scheduler-steps: several steps"),
        (":v0.8.5", "--speculative-model x", "speculative decoding is not simulated"),
        (":v0.6.3", "--enable-chunked-prefill False", "without chunked prefill vLLM mixes"),
        (":v0.6.3", "--enable_chunked_prefill False", "without chunked prefill vLLM mixes"),
        (":v0.9.2", "--enable-chunked-prefill False", "expected one"),
        (":latest", "--num-scheduler-steps 8", "it was there from 0.6.0 to before 0.11.0"),
    ],
)
def test_options_of_earlier_releases_are_taken_by_their_images_alone(image: str, options: str, message: str) -> None:
    served = IMAGE.replace(":v0.9.2", image) if image else SERVE
    result = invoke("from-vllm", f"{served} {options}")
    assert message in " ".join(result.output.replace("#", " ").split())


@pytest.mark.parametrize(("release", "is_taken"), [("0.5.2", True), ("0.5.23", False), ("latest", False)])
def test_another_name_of_an_option_is_taken_by_an_image_that_has_it(release: str, is_taken: bool) -> None:
    result = invoke("from-vllm", f"docker run lmsysorg/sglang:v{release}-cu126 {START} --cuda-graph-max-bs 160")
    assert ("graph_max_tokens: 160" in result.output) == is_taken
    assert ("from 0.4.0 to before 0.5.23; --cuda-graph-max-bs-decode took its place" in result.output) != is_taken


@pytest.mark.parametrize("grammar", [vllm.GRAMMAR, sglang.GRAMMAR], ids=["vllm", "sglang"])
def test_an_option_that_is_gone_has_its_releases_and_what_took_its_place(grammar: Grammar) -> None:
    for name, gone in grammar.gone.items():
        _, until = span_of(gone.engine, name) or ("", "")
        assert until, name
        assert name not in grammar.flags, name
        instead = gone.instead.partition(" ")[0]
        assert not instead or instead in grammar.flags or instead in grammar.gone, name
        assert not gone.is_renamed or grammar.flags[gone.instead].takes == gone.flag.takes, name


def test_windows_that_keep_their_kv_are_said_where_a_request_outgrows_them(tmp_path: Path) -> None:
    text = "workload: {requests: 2, prompt_tokens: %d, output_tokens: 8, arrivals: {process: all_at_once}}\n"
    for tokens, is_said in ((64, False), (4096, True)):
        file = tmp_path / f"s{tokens}.yaml"
        body = "topology: {name: dgx-h100, nodes: 1}\nmodel: gpt-oss-20b\nplan: {tp: 1}\n"
        file.write_text(body + text % tokens, encoding="utf-8")
        run = invoke("run", str(file), "--out", str(tmp_path / f"r{tokens}"))
        assert run.exit_code == 0, run.output
        assert ("K/V is not freed behind the windows of 12 of 24 layers" in " ".join(run.output.split())) == is_said


@pytest.mark.parametrize(
    ("dimension", "unit", "meant"),
    [
        ("bandwidth", "GBps", "'GB/s'?"),
        ("bandwidth", "gb/s", "'GB/s' (bytes) or 'Gb/s' (bits)?"),
        ("bandwidth", "gbit/s", "'Gb/s'?"),
        ("bandwidth", "GiBps", "'GiB/s'?"),
        ("bandwidth", "Gib/s", "'GiB/s'? (8 Gib, bits, are 1 GiB)"),
        ("bandwidth", "Gibit/s", "'GiB/s'? (8 Gib, bits, are 1 GiB)"),
        ("bytes", "Mib", "'MiB'? (8 Mib, bits, are 1 MiB)"),
        ("bytes", "Gb", "'GB'? (8 Gb, bits, are 1 GB)"),
        ("bytes", "gib", "'GiB'?"),
        ("time", "MS", "'ms'?"),
        ("time", "m", "'min' or 'ms'?"),
        ("time", "minutes", "'min'?"),
        ("rate", "/m", "'/min'?"),
        ("rate", "req/s", "'/s'?"),
        ("flops", "tflops", "'TFLOP/s'?"),
        ("power", "kw", "'kW'?"),
        ("price", "USD/hr", "'USD/h'?"),
    ],
)
def test_a_unit_that_is_unknown_is_answered_by_what_it_measures(dimension: str, unit: str, meant: str) -> None:
    with pytest.raises(units.UnitError) as caught:
        units.parse(f"4 {unit}", dimension)
    assert str(caught.value).endswith(f"; did you mean {meant}")


@pytest.mark.parametrize(
    ("dimension", "unit"),
    [
        ("power", "mW"),
        ("power", "pW"),
        ("rate", "kreq/s"),
        ("rate", "GB/s"),
        ("rate", "k/s"),
        ("rate", "tok/s"),
        ("rate", "kHz"),
        ("bandwidth", "GB/min"),
        ("flops", "EFLOPS"),
    ],
)
def test_nothing_is_suggested_for_a_unit_of_another_amount(dimension: str, unit: str) -> None:
    with pytest.raises(units.UnitError) as caught:
        units.parse(f"4 {unit}", dimension)
    assert "did you mean" not in str(caught.value)
